"""The terms of TensorFlow and JAX, and whether there is a GPU for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

from verify.backends import sight
from verify.backends.sight import Sight
from verify.device import driver, nvml
from verify.model.check import IMAGE, Context, Outcome, Status

NO_DEVICE = "no CUDA-capable device is detected"


@dataclass(frozen=True)
class Dialect:
    """A framework's name, and the command that installs a build with CUDA."""

    title: str
    cpu_build: str  # why a build computes only on the CPU
    install: str


def see(context: Context, cuda: Optional[str], usable: int, error: Optional[str] = None) -> Sight:
    """What is known of GPUs. If the framework shows none, query the driver itself for the cause."""
    asked = driver.CudaDriver(found=False)
    if cuda is not None and not usable:
        asked = driver.read(context.machine.load)
        error = asked.error or (NO_DEVICE if asked.count == 0 else error)
    return Sight(
        torch_cuda=cuda,
        usable=usable,
        error=None if usable else error,
        nodes=len(context.machine.nodes()),
        nvml=len(nvml.read(context.machine.load).gpus),
        expected=context.expect.gpu_count,
        driver=bool(asked.found and (asked.error or asked.count)),
    )


def judge_absent(seen: Sight, dialect: Dialect) -> Optional[Outcome]:
    """None if GPUs can be used; else a skip if nothing hints at one, or a failure."""
    if seen.torch_cuda is None:
        return cpu_build(dialect, seen.measured(), {"gpus": seen.expected})
    return sight.judge_absent(seen)


def cpu_build(
    dialect: Dialect, measured: Dict[str, Any], expected: Optional[Dict[str, Any]] = None
) -> Outcome:
    """The failure if the image's framework has no CUDA."""
    message = "CPU build of {}".format(dialect.title)
    fix = dialect.install
    return Outcome(Status.FAIL, message, dialect.cpu_build, fix, measured, expected or {}, IMAGE)


def judge_there(seen: Sight, dialect: Dialect) -> Optional[Outcome]:
    """The failure if there should be a GPU and none can be used, or the skip if other processes
    have taken it; None: compute on the available device.

    A CPU build computes on the CPU if nothing hints at a GPU: `libraries.framework` reports it.
    """
    absent = judge_absent(seen, dialect)
    bare = seen.torch_cuda is None and not seen.hinted()
    there = absent is not None and (absent.status is Status.FAIL or bool(seen.hinted()))
    return absent if there and not bare else None


@dataclass(frozen=True)
class FoundDevice:
    """A device that a framework computes on. `kind` is "cuda" or "cpu"."""

    kind: str
    index: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    @property
    def gpu(self) -> Optional[int]:
        """The GPU's number; None for the CPU."""
        return self.index if self.is_gpu else None

    @property
    def words(self) -> str:
        """For messages, after a comma."""
        return "on the GPU" if self.is_gpu else "on the CPU: no GPU visible"
