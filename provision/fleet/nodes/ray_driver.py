"""Runs on the Python that has Ray, sent to it as text: one driver for all nodes of a cluster.

It is not imported here. The arguments are a mark, the cluster's address and a folder. One marked
line on standard output has the nodes, or the error; then each connection to the socket `s` of the
folder is one program for one node (see `ray_call`). It ends with its standard input. A task that
nobody waits for any more is cancelled.

https://docs.ray.io/en/latest/ray-core/scheduling/index.html and .../fault-tolerance.html
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, TextIO

POLL_S = 0.2
CONNECT_S = 10
GRACE_S = 15
CANCEL_S = 20
MOST_OUTPUT = 4 << 20
# Ray's exceptions for a node that is gone, or a worker that died: with its node, as Ray finds out
# about a node only seconds later.
LOST = {"ActorUnschedulableError", "LocalRayletDiedError", "NodeDiedError", "OwnerDiedError"}
LOST |= {"TaskUnschedulableError", "WorkerCrashedError"}


def run_program(program: bytes | None, seconds: float, grace: float) -> tuple[int, bytes, bytes]:
    """The task: a program on standard input of the node's own Python; its exit code and output."""
    env = dict(os.environ)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        env.pop(name, None)  # Ray sets them for tasks without GPUs or CPUs
    process = subprocess.Popen(
        [sys.executable, "-I", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=env,
        start_new_session=True,
    )
    deadline = time.monotonic() + seconds
    heard = None
    try:
        while time.monotonic() < deadline:
            try:
                # in short turns: Ray's cancel does not interrupt a call that waits
                out, err = process.communicate(program, timeout=0.2)
            except subprocess.TimeoutExpired as late:  # noqa: PERF203
                program, heard = None, late.output
            else:
                return process.returncode, out, err
        return 124, b"", b"it exceeded its time limit"
    finally:
        running = process.poll() is None  # also when the task is cancelled
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if running and heard:  # it writes while it works, and cleans up when nobody reads that
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=grace)
        if running and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class RayTasks:
    """What the connections share."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401  Ray is not installed here
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.ray = ray
        self.ending = threading.Event()
        self.affinity = NodeAffinitySchedulingStrategy
        # it needs no free CPU or GPU, so that busy nodes are read, too
        self.task = ray.remote(num_cpus=0, num_gpus=0, max_retries=0)(run_program)

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        """Run one program, and send its result as one line of JSON."""
        try:
            with connection, connection.makefile("rb") as stream:
                request = json.loads(stream.readline())
                program = stream.read(request["size"])
                reply = self.run(connection, request, program)
                if reply is not None:
                    connection.sendall(json.dumps(reply).encode() + b"\n")
        except (OSError, ValueError, KeyError):
            pass  # the caller was ended

    def run(
        self, connection: socket.socket, request: dict[str, Any], program: bytes
    ) -> dict[str, Any] | None:
        task = None
        try:
            place = self.affinity(node_id=request["node"], soft=False)
            task = self.task.options(scheduling_strategy=place).remote(
                program, request["seconds"], GRACE_S
            )
            while not self.ray.wait([task], timeout=POLL_S)[0]:
                if self.ending.is_set() or is_closed(connection):
                    self.cancel(task)
                    return None
            code, out, err = self.ray.get(task)
        except Exception as error:  # noqa: BLE001  the answer is the reason
            kind = "lost" if type(error).__name__ in LOST else "failed"
            return {kind: describe(error)}
        text = [part[-MOST_OUTPUT:].decode("utf-8", "replace") for part in (out, err)]
        return {"code": code, "out": text[0], "err": text[1]}

    def cancel(self, task: Any) -> None:  # noqa: ANN401  Ray's
        """First so that the task ends its program, then by ending its worker."""
        self.ray.cancel(task, force=False)
        if not self.ray.wait([task], timeout=CANCEL_S)[0]:
            self.ray.cancel(task, force=True)


def is_closed(connection: socket.socket) -> bool:
    readable = select.select([connection], [], [], 0)[0]
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


def describe(error: Exception) -> str:
    text, mark, trace = str(error).partition("Traceback (most recent call last):")
    if mark:  # of a program of Ray's: its last line says what happened
        text += trace.strip().split("\n")[-1]
    return type(error).__name__ + ": " + " ".join(text.split())


def reach(address: str) -> None:
    """OSError: nobody listens at HOST:PORT. Ray itself tries again for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()


def listed(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": node["NodeID"],
        "alive": bool(node["Alive"]),
        "host": node.get("NodeManagerHostname") or "",
        "address": node.get("NodeManagerAddress") or "",
        "port": node.get("NodeManagerPort") or 0,
        "label": node.get("NodeName") or "",
        "reason": node.get("DeathReason") or 0,
        "message": node.get("DeathReasonMessage") or "",
    }


def tell(channel: TextIO, mark: str, answer: dict[str, Any]) -> None:
    channel.write("\n" + mark + json.dumps(answer) + "\n")
    channel.close()


def main() -> None:
    mark, address, place = sys.argv[1:4]
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints, too
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(place, "s"))  # noqa: PTH118
        listener.listen(1024)
        reach(address)
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        driver = RayTasks(ray)
        answer = {"nodes": [listed(node) for node in ray.nodes()]}
    except Exception as error:  # noqa: BLE001  the answer is the reason
        tell(channel, mark, {"error": describe(error)})
        os._exit(1)
    tell(channel, mark, answer)
    threading.Thread(target=driver.serve, args=(listener,), daemon=True).start()
    sys.stdin.read()
    driver.ending.set()
    for thread in threading.enumerate():
        if thread.daemon and getattr(thread, "_target", None) == driver.answer:
            thread.join(CANCEL_S)
    ray.shutdown()
    shutil.rmtree(place, ignore_errors=True)  # where the caller was killed
    os._exit(0)


if __name__ == "__main__":
    main()
