"""Workers of a process that has already computed: forked, spawned, and from a fork server.

A CUDA context does not survive a fork, and neither does a pool of OpenMP threads. torch raises an
error for the first and gives workers one thread for the second; both are put to the test here.
"""

from __future__ import annotations

import gc
import re
from dataclasses import asdict, dataclass
from multiprocessing import util
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.pytorch import Place, find
from verify.model.check import ON_CPU, Context, Outcome, Status
from verify.running.children import Child, Ending
from verify.running.symptoms import explain
from verify.workloads.samples import Sums

SAMPLES = 8
WORKERS = {"cpu": 2, "cuda": 1}  # each on a GPU takes half a gigabyte for a context
FORK_S, SPAWN_S = 30.0, 90.0  # a spawned worker imports torch again and starts CUDA
LOOK_S = 90.0
_RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")


@dataclass(frozen=True)
class ForkedChild:
    """The results of workers of one kind. `device` is where they computed."""

    method: str
    device: str
    right: int = 0
    error: Optional[str] = None
    hung: bool = False
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """For messages."""
        where = "on the GPU" if self.device == "cuda" else "on the CPU"
        return "workers started with {} that compute {}".format(self.method, where)

    @property
    def is_trap(self) -> bool:
        """Whether it is CUDA in a forked worker, which must fail with an error."""
        return self.method == "fork" and self.device == "cuda"


def check_fork(context: Context) -> Outcome:
    """Compute here, then start workers. Each kind runs in a child, since a hang is a result."""
    looked = Child(lambda: _look(context)).wait(LOOK_S)
    if not looked.returned:
        raise RuntimeError("looking for a GPU: " + looked.how())
    if looked.value["broken"]:
        return Outcome.from_dict(looked.value["broken"])
    place = Place(**looked.value["place"])
    kinds = kinds_of(place, exclusive=looked.value["exclusive"])
    if not place.is_gpu:  # in parallel: most of the time is importing torch
        children = [Child(_work(method, device, place)) for method, device in kinds]
        ended = [child.wait(_limit_s(kind[0])) for child, kind in zip(children, kinds)]
    else:  # one by one: each starts CUDA, which takes memory
        ended = [Child(_work(*kind, place)).wait(_limit_s(kind[0])) for kind in kinds]
    found = [read(*kind, ending) for kind, ending in zip(kinds, ended)]
    return judge_started(found, place.kind)


def kinds_of(place: Place, *, exclusive: bool) -> "List[Tuple[str, str]]":
    """The ways of starting workers, and where each computes.

    A GPU in an exclusive compute mode admits this process and no worker, as its owner configured.
    """
    there = "cpu" if exclusive else place.kind
    kinds = [("fork", "cpu"), ("spawn", there), ("forkserver", there)]
    return [*kinds, ("fork", "cuda")] if there == "cuda" else kinds


def _limit_s(method: str) -> float:
    return FORK_S if method == "fork" else SPAWN_S


def _look(context: Context) -> Dict[str, Any]:
    modes = [gpu.compute_mode or "" for gpu in context.machine.state().gpus]
    broken, place = find(context)
    return {
        "broken": broken and broken.as_dict(),
        "place": asdict(place),
        "exclusive": any("exclusive" in mode for mode in modes),
    }


def _work(method: str, device: str, place: Place) -> Any:
    return lambda: _start(method, device, place)


def _start(method: str, device: str, place: Place) -> List[int]:
    """Compute in this process, so that it has a context and threads; then load with workers."""
    import torch
    from torch.utils.data import DataLoader

    numbers = torch.ones(512, 512, device=place.device)
    (numbers @ numbers).sum().item()
    torch.ones(1 << 20).sum().item()
    loader = DataLoader(
        Sums(SAMPLES, device, place.index),
        batch_size=None,
        num_workers=WORKERS[device],
        multiprocessing_context=method,
    )
    try:
        return [int(value) for value in loader]
    finally:
        _remove_semaphores()


def _remove_semaphores() -> None:
    """Remove named semaphores from /dev/shm: this child ends without Python's normal exit."""
    gc.collect()
    util._run_finalizers(0)  # type: ignore[attr-defined]  # noqa: SLF001  # as at an exit


def read(method: str, device: str, ending: Ending) -> ForkedChild:
    """A child's ending as a reading."""
    if not ending.returned:
        error = in_short(ending.how())
        return ForkedChild(method, device, 0, error, ending.timed_out, ending.seconds)
    pairs: Sequence[Tuple[int, Any]] = list(enumerate(ending.value))
    right = sum(value == Sums.answer(i) for i, value in pairs)
    return ForkedChild(method, device, right, seconds=ending.seconds)


def in_short(error: str) -> str:
    """An error in one line; if it has a worker's traceback, the worker's error."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)] if "Traceback" in error else []
    return raised[-1] if raised else " ".join(lines)


def judge_started(found: Sequence[ForkedChild], device: str) -> Outcome:
    """Whether each kind of worker computes correctly; CUDA after a fork must raise and not hang."""
    measured = {"device": device, "workers": [asdict(one) for one in found]}
    expected = {"right": SAMPLES}
    for one in found:
        trouble = _trouble(one)
        if trouble:
            message = "{}: {}".format(one.words, trouble)
            cause, fix = _explain(one)
            return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    methods = ", ".join(dict.fromkeys(one.method for one in found))
    message = "workers compute correctly with " + methods
    trap = next((one for one in found if one.is_trap), None)
    if trap is not None and trap.error:
        message += "; CUDA in a forked worker raises an error, as expected: use spawn for that"
    elif trap is not None:
        message += "; CUDA works even in forked workers here"
    elif device == "cuda":
        message += "; on the CPU: the GPU's compute mode allows one process"
    else:
        message += ", " + ON_CPU
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _trouble(one: ForkedChild) -> Optional[str]:
    if one.hung:
        return one.error or "a hang"
    if one.error:
        return None if one.is_trap else one.error
    if one.right != SAMPLES:
        return "{} of {} results are correct".format(one.right, SAMPLES)
    return None


def _explain(one: ForkedChild) -> Tuple[str, str]:
    cause, fix = explain(one.error or "")
    if one.hung and one.method == "fork":
        cause = "hang: the worker waits for a lock or a thread that was not forked with it"
        fix = "use multiprocessing_context='spawn' or 'forkserver' for DataLoader's workers"
    elif one.hung:
        cause = "hang: the worker did not start; its import of torch or of the script hangs"
        fix = "run time python -c 'import torch' in this container"
    elif one.error and one.method != "fork" and not cause:
        cause = "the worker cannot import what it needs, or the script's main module is not guarded"
        fix = "see that python -c 'import torch' works, and guard it: if __name__ == '__main__':"
    elif not one.error:
        cause, fix = "the worker computed wrong results", "see devices.kernel"
    return cause or "the worker crashed", fix or "build the image again from its lock"
