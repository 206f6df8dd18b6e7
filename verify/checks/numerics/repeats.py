"""Runs that must end in the same bits: twice from one seed, and across a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional, Sequence, Tuple

from verify.checks.numerics.accuracy import number
from verify.model.check import UNKNOWN, Outcome, Status, on_device

_AGAIN = "see numerics.matmul and devices.kernel; build the image again"
_CPU_FIX = "set OMP_DYNAMIC=FALSE and MKL_CBWR=COMPATIBLE; build the image again"


@dataclass(frozen=True)
class Repeat:
    """Two runs' weights compared: how many numbers differ, and by how much."""

    differing: int
    total: int
    largest: float = 0.0
    finite: bool = True

    @classmethod
    def of(cls, first: Sequence[Any], second: Sequence[Any]) -> Repeat:
        """Compare two lists of arrays, torch's on the CPU or NumPy's. NaN differs from itself."""
        differing = total = 0
        largest, finite = 0.0, len(first) == len(second)
        for one, other in zip(first, second):
            gap = float(abs(one - other).max())
            total += len(one.reshape(-1))
            differing += int((one != other).sum())
            finite = finite and gap - gap == 0  # false for NaN and for infinity
            largest = max(largest, gap)
        return cls(differing, total, largest, finite)

    @property
    def same(self) -> bool:
        """Whether there was something to compare and nothing differed."""
        return self.total > 0 and not self.differing and self.finite

    def words(self) -> str:
        """How the two differ."""
        if not self.total:
            return "no weights were compared"
        if not self.finite:
            return "NaN or infinity in the weights"
        said = "{} of {} weights differ, by up to {:.2g}"
        return said.format(self.differing, self.total, self.largest)

    def measured(self) -> Any:
        """For the report."""
        return {**asdict(self), "largest": number(self.largest)}


@dataclass(frozen=True)
class ResumedRun:
    """A run that resumed from a checkpoint, compared with an uninterrupted one."""

    repeat: Repeat
    moved: bool  # whether steps after the checkpoint changed the weights, else it proves nothing
    lost: Tuple[str, ...] = ()  # parts that were not restored as saved: "model", "optimizer", ...
    bytes: int = 0
    how: str = "saved and loaded"  # in words: "torch.load, weights only"


def judge_repeats(asked: Repeat, free: Optional[Repeat], device: str, steps: int = 0) -> Outcome:
    """Two runs from one seed, with determinism asked for; `free` are two without (information)."""
    measured = {"device": device, "steps": steps, "asked": asked.measured()}
    if free is not None:
        measured["not_asked"] = free.measured()
    expected = {"differing": 0}
    if not asked.same:
        message = "two runs from one seed differ: {}".format(asked.words())
        cause = "a nondeterministic operation ran although deterministic algorithms were requested"
        if not asked.finite:
            cause = "wrong arithmetic: the model is too small to overflow"
        fix = _CPU_FIX if device == "cpu" and asked.finite else _AGAIN
        # An operation without a fixed order may differ on any GPU by chance.
        return Outcome(Status.FAIL, message, cause, fix, measured, expected, UNKNOWN)
    said = "two runs from one seed are bit-identical{}, {}"
    message = said.format(_beside(free), on_device(device))
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _beside(free: Optional[Repeat]) -> str:
    if free is None:
        return ""
    if free.same:
        return ", also without deterministic algorithms"
    return "; without deterministic algorithms {}".format(free.words())


def judge_checkpoint(resumed: ResumedRun, device: str) -> Outcome:
    """Training that resumes from a checkpoint must end in the same bits."""
    repeat = resumed.repeat
    measured = {
        "device": device,
        "weights": repeat.measured(),
        "bytes": resumed.bytes,
        "lost": list(resumed.lost),
        "how": resumed.how,
    }
    expected = {"differing": 0, "lost": []}
    if repeat.same and resumed.moved and not resumed.lost:
        said = "bit-identical with and without a checkpoint ({}), {}"
        message = said.format(resumed.how, on_device(device))
        return Outcome(Status.PASS, message, measured=measured, expected=expected)
    message, cause = _say_lost(resumed)
    fix = "build the image again from its lock; look for packages that patch the framework"
    return Outcome(Status.FAIL, message, cause, fix, measured, expected)


def _say_lost(resumed: ResumedRun) -> Tuple[str, str]:
    if resumed.lost:
        what = " and ".join(resumed.lost)
        message = "not restored from the checkpoint: {}".format(what)
        return message, "saving or loading changed the state of the {}".format(what)
    if not resumed.moved:
        return "the resumed run did not change any weight", "the optimiser's steps have no effect"
    message = "a run resumed from a checkpoint differs: {}".format(resumed.repeat.words())
    return message, "the state was restored as saved, but the same steps gave different weights"
