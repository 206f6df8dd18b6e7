"""Runs a program in a pod on one node with kubectl: creates it, waits, prints its log, deletes it.

Run as a script, with an order as its argument (JSON: see `PodOrder`) and the program on standard
input. The program is an argument in the pod, not attached: a connection that breaks loses nothing.
Where it did not run, the reason is a line on standard error: "gpu-provision: KIND: MESSAGE".

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FAILED = 255
MARK = "gpu-provision: "
ANSWER_S = 30
_FIRST_S = 0.5
_LONGEST_S = 5.0
_PART = 30_000
"""Characters of an argument: Linux allows 128 KiB, which four bytes for each do not exceed."""
_RUN = "import sys; exec(compile(''.join(sys.argv[1:]), '-', 'exec'), {'__name__': '__main__'})"
_NO_IMAGE = frozenset({"ErrImageNeverPull", "ImageInspectError", "ImagePullBackOff"})
_NO_IMAGE_NAME = "InvalidImageName"
_NOT_STARTED = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
)
_NO_PYTHON = '"python3": executable file not found', "exec: python3: not found"
_LOST = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})


class PodOrder(NamedTuple):
    """What to do. `kubectl`: its words with context and namespace. `seconds`: for everything;
    `free_s`: how long the pod may wait for a place on the node.
    """

    kubectl: list[str]
    manifest: dict[str, Any]
    seconds: float
    free_s: float


class PodEnd(NamedTuple):
    """Why the wait for a pod ended. `kind` "ended": its container did, with this `code`."""

    kind: str
    message: str
    code: int = 0


def arguments(program: str) -> list[str]:
    """What a pod's python3 gets to run a program, whatever its length. Kubernetes would replace
    $(NAME) and $$.
    """
    parts = [program[start : start + _PART] for start in range(0, len(program), _PART)]
    return ["python3", "-I", "-c", _RUN, *(part.replace("$", "$$") for part in parts)]


def judge_pod(pod: Mapping[str, Any]) -> PodEnd | None:
    """What became of a pod, by its status; None: it waits or runs."""
    status = pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
    for state in states:
        if ended := state.get("terminated"):
            return _judge_end(ended, reason, message)
        waiting = state.get("waiting") or {}
        why, said = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if why in _NO_IMAGE or why == _NO_IMAGE_NAME:
            return PodEnd("image", f"{why}: {said}")
        if why in _NOT_STARTED:
            return _not_started(why, said)
    if status.get("phase") == "Failed":
        if reason.startswith("OutOf") or reason == "UnexpectedAdmissionError":
            return PodEnd("busy", f"{reason}: {message}")
        if reason in _LOST:
            return PodEnd("lost", f"{reason}: {message}")
        return PodEnd("failed", f"{reason or 'the pod failed'}: {message}")
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return PodEnd("lost", f"its pod is being deleted {_why_disrupted(status)}".strip())
    return None


def _judge_end(ended: Mapping[str, Any], reason: str, message: str) -> PodEnd:
    code, why = int(ended.get("exitCode") or 0), str(ended.get("reason") or "")
    if why == "OOMKilled":
        return PodEnd("memory", "its container was killed, as it exceeded its memory (OOMKilled)")
    if reason in _LOST:
        return PodEnd("lost", f"{reason}: {message}")
    if reason == "DeadlineExceeded":
        return PodEnd("time", f"its pod exceeded its time: {message}")
    if why in _NOT_STARTED or why == "ContainerCannotRun":
        return _not_started(why, str(ended.get("message") or ""))
    return PodEnd("ended", str(ended.get("message") or ""), code)


def _not_started(why: str, said: str) -> PodEnd:
    if any(sign in said for sign in _NO_PYTHON):
        return PodEnd("python", said)
    return PodEnd("failed", f"{why}: {said}")


def _why_disrupted(status: Mapping[str, Any]) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return f"({one.get('reason')}: {one.get('message')})"
    return ""


def waits_for(pod: Mapping[str, Any]) -> tuple[str, bool]:
    """What a pod waits for, and whether that is a place on its node."""
    status = pod.get("status") or {}
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "it is not scheduled"), True
    for one in status.get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting")
        if waiting:
            return f"{waiting.get('reason')}: {waiting.get('message') or ''}".rstrip(": "), False
    return str(status.get("phase") or "no status"), False


def judge_late(pod: Mapping[str, Any]) -> PodEnd:
    """Why a pod did not end in time."""
    said, crowded = waits_for(pod)
    if crowded:
        return PodEnd("busy", said)
    return PodEnd("time", f"its pod did not end in time: {said}")


def main(order: PodOrder, program: str) -> int:
    """The program's exit code, or 255 with the reason on standard error."""
    name = order.manifest["metadata"]["name"]
    deadline = time.monotonic() + order.seconds
    pod = {**order.manifest}
    pod["spec"] = {**pod["spec"], "containers": [dict(pod["spec"]["containers"][0])]}
    pod["spec"]["containers"][0]["command"] = arguments(program)
    try:
        made = _kubectl(order, ["create", "--validate=false", "-f", "-"], json.dumps(pod))
        if made.returncode:
            return _say("refused", _last_line(made.stderr))
        end = _wait(order, name, deadline)
        if end.kind != "ended":
            return _say(end.kind, end.message)
        log = _kubectl(order, ["logs", name])
        if log.returncode:
            return _say("failed", f"its log cannot be read: {_last_line(log.stderr)}")
        sys.stdout.write(log.stdout)
        sys.stderr.write(_last_line(log.stdout) + "\n" if end.code else "")
        return end.code % 256
    except subprocess.TimeoutExpired:
        return _say("time", f"Kubernetes did not answer kubectl within {ANSWER_S} s")
    finally:
        sys.stdout.flush()
        _delete(order, name)


def _wait(order: PodOrder, name: str, deadline: float) -> PodEnd:
    """Until the pod ended, or cannot run. It is asked for again and again, less and less often: a
    kubectl that watches has 46 MB, and there is one for each node.
    """
    free = time.monotonic() + order.free_s
    last: Mapping[str, Any] = {}
    pause = _FIRST_S
    while (now := time.monotonic()) < deadline:
        asked = _kubectl(order, ["get", "pod", name, "--output=json"])
        if asked.returncode == 0:
            last = json.loads(asked.stdout)
            if end := judge_pod(last):
                return end
        elif "NotFound" in asked.stderr:
            return PodEnd("lost", "its pod was deleted by someone else")
        if now >= free and waits_for(last)[1]:
            break
        until = min(now + pause, free if now < free else deadline, deadline)
        time.sleep(max(0.0, until - time.monotonic()))
        pause = min(_LONGEST_S, pause * 1.5)
    return judge_late(last)


def _delete(order: PodOrder, name: str) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        _kubectl(order, delete_words(name))  # else the pod ends by its own deadline


def delete_words(name: str) -> tuple[str, ...]:
    """How a pod is deleted, without waiting for it."""
    return ("delete", "pod", name, "--ignore-not-found", "--wait=false", "--grace-period=1")


def _kubectl(
    order: PodOrder, words: Sequence[str], data: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*order.kubectl, f"--request-timeout={ANSWER_S}s", *words],
        input=data,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ANSWER_S + 5,
        check=False,
    )


def _say(kind: str, message: str) -> int:
    sys.stderr.write(f"{MARK}{kind}: {' '.join(message.split())}\n")
    return FAILED


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


if __name__ == "__main__":
    raise SystemExit(main(PodOrder(**json.loads(sys.argv[1])), sys.stdin.read()))
