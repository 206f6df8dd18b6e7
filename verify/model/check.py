"""The values of the suite, and the rule that turns results into a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, TypeVar, cast

from verify.device.baseline import Baseline
from verify.device.machine import Machine
from verify.model.expectations import Expectations, Scope
from verify.model.report import CheckRow

LEVELS = ("quick", "standard", "full")
EXIT_CODES = {"fit": 0, "unfit": 1, "no-verdict": 7}
NODE, IMAGE, CONFIGURATION, UNKNOWN = FAULTS = ("node", "image", "configuration", "unknown")
"""What can be at fault when a check fails; the configuration is how the image was started."""
ON_CPU = "on the CPU: no GPU visible"

T = TypeVar("T")


class UsageError(Exception):
    """The command line, or a file that it names, is invalid."""


class Status(Enum):
    """The status of a check. A skip has a reason; an error means that the check itself broke."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


@dataclass(frozen=True)
class Outcome:
    """A check's answer: what it found, the cause, and the fix. `at_fault`: one of FAULTS, if its
    judge can tell (see `verify.running.faults`).
    """

    status: Status
    message: str
    cause: Optional[str] = None
    fix: Optional[str] = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    at_fault: Optional[str] = None

    def as_dict(self) -> Dict[str, Any]:
        """The outcome as in the report."""
        return {
            "status": self.status.value,
            "message": self.message,
            "cause": self.cause,
            "fix": self.fix,
            "measured": dict(self.measured),
            "expected": dict(self.expected),
            **({"at_fault": self.at_fault} if self.at_fault else {}),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Outcome:
        """The inverse of `as_dict`."""
        return cls(**dict(row, status=Status(row["status"])))


@dataclass(frozen=True)
class Context:
    """A check's input: what the image should be, and how thorough the check should be."""

    expect: Expectations = field(default_factory=Expectations)
    level: str = "standard"
    framework: str = "pytorch"
    emulator: Optional[str] = None  # of this processor: times are then meaningless
    machine: Machine = field(default_factory=Machine)
    gpus: int = 0  # of this machine, from NVML
    shared: Optional[str] = None  # who used a GPU before the run, in words
    before: Optional[Baseline] = None  # what the machine read before the run
    burn_min: Optional[float] = None  # how long all GPUs are loaded together, if that was asked for

    def pick(self, quick: T, standard: T, full: T) -> T:
        """The value for this level."""
        return {"quick": quick, "standard": standard, "full": full}[self.level]


@dataclass(frozen=True)
class Check:
    """One test. `run` is called in its own child process."""

    id: str
    title: str
    run: Callable[[Context], Outcome]
    level: str = "quick"  # the first level that runs it
    limit_s: float = 60.0
    framework: bool = True  # runs in a process that has imported the framework
    gpu: bool = False  # if it has not run on a GPU, there is no verdict
    gauge: bool = False  # measures the machine (times, memory), not correctness
    shares: bool = False  # may run in one process with others that share, so that CUDA starts once
    on_request: bool = False  # belongs to a level only if the expectations name packages
    replays: bool = False  # reads only its context's machine, which may be a recording
    burns: bool = False  # takes the context's `burn_min` more
    closes: bool = False  # runs after all others, since it judges what they did


def is_outside(check: Check, scope: Optional[Scope]) -> bool:
    """Whether a check would say nothing of an image on a machine that is not the image's. What is
    cheap is run in any case; of the rest only the libraries and packages are the image's own.
    """
    if scope is None:
        return False
    if scope.checks == "image":
        return check.level != "quick" and not check.id.startswith("libraries.")
    return check.gauge and not check.id.startswith("memory.")


@dataclass(frozen=True)
class Result:
    """A check and its outcome."""

    check: Check
    outcome: Outcome
    seconds: float
    lost: bool = False  # its process timed out or died of a signal

    def proven(self) -> bool:
        """Whether the check proved its point: a pass on the CPU proves nothing about a GPU."""
        on_cpu = self.outcome.measured.get("device") == "cpu"
        return self.outcome.status is Status.PASS and not on_cpu

    def as_dict(self) -> CheckRow:
        """The result as in the report."""
        row = {"id": self.check.id, "title": self.check.title, "seconds": round(self.seconds, 3)}
        return cast(CheckRow, {**row, **self.outcome.as_dict()})


def verdict(results: Sequence[Result]) -> str:
    """Fit, unfit or no-verdict.

    An error counts as a failure: a check that broke has proven nothing, and a framework that cannot
    be imported is the image's fault. A GPU check that did not run on a GPU leaves no verdict.
    """
    if any(result.outcome.status in (Status.FAIL, Status.ERROR) for result in results):
        return "unfit"
    gpu_unproven = any(result.check.gpu and not result.proven() for result in results)
    if gpu_unproven or not any(result.proven() for result in results):
        return "no-verdict"
    return "fit"


def on_device(kind: str) -> str:
    """Where a check computed, for messages after a comma."""
    return "on the GPU" if kind == "cuda" else ON_CPU


def gpus(count: int) -> str:
    """A number of GPUs in words."""
    return "{} GPU{}".format(count, "" if count == 1 else "s")


def demand(result: Result, required: Sequence[str]) -> Result:
    """Turn the skip of a required check into a failure."""
    if result.outcome.status is not Status.SKIP or result.check.id not in required:
        return result
    outcome = replace(
        result.outcome,
        status=Status.FAIL,
        message="required, but it did not run: " + result.outcome.message,
        cause=result.outcome.cause or result.outcome.message,
        at_fault=UNKNOWN,
    )
    return replace(result, outcome=outcome)


def names(checks: Sequence[Check]) -> Dict[str, Tuple[str, ...]]:
    """Every name that --only and --require understand, with the ids it stands for."""
    known: Dict[str, Tuple[str, ...]] = {check.id: (check.id,) for check in checks}
    for check in checks:
        family = check.id.split(".")[0]
        known[family] = (*known.get(family, ()), check.id)
    # Checks that any machine with a GPU can run; those for two GPUs are selected by other names.
    known["gpu"] = tuple(c.id for c in checks if c.gpu and c.id in known.get("devices", ()))
    # TensorFlow and JAX have no check of NCCL alone: their collectives use it between GPUs.
    own = tuple(name for name in known if name.endswith(".nccl"))
    known["nccl"] = own or tuple(name for name in known if name == "collectives.operations")
    return {name: found for name, found in known.items() if found}
