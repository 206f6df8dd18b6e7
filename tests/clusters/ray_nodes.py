"""A real Ray cluster on this machine: Ray from the package index, several nodes on one address."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import need
from tests.clusters.packages import uv
from tests.clusters.ssh_servers import free_port

# with what its client (ray://) needs; "ray[client]" would pin an older grpcio
PACKAGES = ("ray==2.60.0", "grpcio")
LIMIT_S = 600.0


def wait(ready: Callable[[], bool], problem: str) -> None:
    """Until this is true."""
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < deadline, problem
        time.sleep(0.1)


class RayNodes:
    """Nodes n0 (the head), n1, ... `env` is what Ray's commands need. Each node has a folder of its
    own at the front of its PATH, `bin(name)`.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.venv = place / "v"
        self.port = free_port()
        self.client_port = free_port()
        self.env = {
            **os.environ,
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
            "RAY_TMPDIR": str(place),
            "RAY_USAGE_STATS_ENABLED": "0",
            # a dead node is noticed in seconds
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_failure_threshold": "4",
        }
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def install(self) -> None:
        for argv in (
            ("venv", "--quiet", "--python", sys.executable, str(self.venv)),
            ("pip", "install", "--quiet", "--python", str(self.venv), *PACKAGES),
        ):
            done = uv(*argv)
            if done.returncode:
                need.lacking(f"Ray cannot be installed: {done.stderr[-500:]}")

    def bin(self, name: str) -> Path:
        folder = self.place / f"bin-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def start(self, name: str, path: str | None = None) -> None:
        """A node, until it is up; the first is the head. `path`: its PATH. One after the other: two
        that start at once may want the same port.
        """
        if self._nodes:
            role = [f"--address=127.0.0.1:{self.port}"]
        else:
            role = ["--head", f"--port={self.port}", "--include-dashboard=false"]
            role += [f"--ray-client-server-port={self.client_port}"]
        argv = [str(self.venv / "bin" / "python"), str(self.venv / "bin" / "ray"), "start", *role]
        argv += ["--block", f"--node-name={name}", "--num-cpus=1", "--disable-usage-stats"]
        argv += ["--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0"]
        with (self.place / f"log-{name}").open("wb") as log:
            self._nodes[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.env, "PATH": path or f"{self.bin(name)}:{self.env['PATH']}"},
                start_new_session=True,
            )
        self._wait_up(name)

    def _wait_up(self, name: str) -> None:
        def is_up() -> bool:
            said = (self.place / f"log-{name}").read_text(errors="replace")
            if self._nodes[name].poll() is not None:
                need.lacking(f"Ray's node {name} does not start: {said[-800:]}")
            return "Ray runtime started" in said

        wait(is_up, f"Ray's node {name} does not start")

    def kill(self, name: str) -> None:
        """A node dies: the process that Ray runs there."""
        for pid in _processes(self._nodes[name].pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0]
            if command.endswith(b"/raylet"):
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError(f"{name} has no raylet")

    def stop(self) -> None:
        everything = [pid for node in self._nodes.values() for pid in _processes(node.pid)]
        for node in self._nodes.values():
            node.terminate()
        for node in self._nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=10)
        for pid in everything:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if str(self.place).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        for node in self._nodes.values():
            node.wait(timeout=30)


def _processes(root: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                below.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += below.get(pid, [])
    return found


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """Ray, installed; nodes that are started end with the block."""
    # not pytest's own folder: the paths of Ray's sockets must be short
    place = Path(tempfile.mkdtemp(prefix="ray-"))
    nodes = RayNodes(place)
    try:
        nodes.install()
        yield nodes
    finally:
        nodes.stop()
        shutil.rmtree(place, ignore_errors=True)
