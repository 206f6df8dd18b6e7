"""XLA through TensorFlow and JAX: its functions must be correct, and really compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

from verify.checks.numerics.accuracy import number
from verify.model.check import Outcome, Status
from verify.running.symptoms import explain

# Measured on a CPU: 4e-7. XLA's tanh is a rational function, good to a few units in the last place.
TOLERANCE = 1e-5
_SYMPTOMS = (
    (
        "libdevice",
        "XLA does not find libdevice.10.bc (math functions for GPUs), which is in nvcc's package",
        "install nvidia-cuda-nvcc-cuNN, or set XLA_FLAGS=--xla_gpu_cuda_data_dir=FOLDER_OF_CUDA",
    ),
    (
        "ptxas",
        "XLA does not find ptxas, which is in nvcc's package",
        "install nvidia-cuda-nvcc-cuNN and have its bin folder in PATH",
    ),
)


@dataclass(frozen=True)
class XlaRun:
    """What a function compiled by XLA returned, and whether XLA compiled it."""

    gap: float = 0.0  # from NumPy's float64, the largest, relative to the largest number
    strict: bool = False  # nothing ran uncompiled
    kernels: Optional[int] = None  # fused computations in the optimised program
    error: Optional[str] = None


def random(size: int) -> Any:
    """A square matrix of float64, the same each time."""
    import numpy as np

    return np.random.default_rng(5).standard_normal((size, size))


def gap(result: Any, given: Any) -> float:
    """How far a result is from what NumPy computes in float64:
    sum(tanh(x) exp(-x x) + x) over each row, plus a sixteenth of x times ones.
    """
    import numpy as np

    known = (np.tanh(given) * np.exp(-(given**2)) + given).sum(1) + given.sum(1) / 16
    return float(abs(np.asarray(result, np.float64) - known).max() / abs(known).max())


def judge_compiled(compiled: XlaRun, device: str, bypassed: str, settings: str) -> Outcome:
    """Whether XLA compiled, and its numbers are right. `bypassed` says what it means if it did not
    compile; `settings` names the variables to look at.
    """
    measured = {
        "device": device,
        "gap": number(compiled.gap),
        "strict": compiled.strict,
        "kernels": compiled.kernels,
    }
    expected = {"gap": TOLERANCE, "strict": True}
    fault = _fault(compiled, bypassed, settings)
    if fault:
        return Outcome(Status.FAIL, *fault, measured, expected)
    where = "on the GPU" if device == "cuda" else "on the CPU: no GPU visible"
    kernels = "" if compiled.kernels is None else "{} fused kernels, ".format(compiled.kernels)
    message = "XLA compiles correctly: {}{}".format(kernels, where)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _fault(compiled: XlaRun, bypassed: str, settings: str) -> Optional[Tuple[str, str, str]]:
    again = "build the image again from its lock; look at {}".format(settings)
    if compiled.error is not None:
        message = "XLA does not compile: {}".format(compiled.error.partition("\n")[0][:200])
        for word, cause, fix in _SYMPTOMS:
            if word in compiled.error:
                return message, cause, fix
        known, remedy = explain(compiled.error)
        return message, known or "XLA is broken in this image", remedy or again
    if not compiled.strict:
        cause = "XLA was bypassed: {}".format(bypassed)
        return "a function ran without being compiled", cause, again
    if not compiled.gap <= TOLERANCE:
        message = "a compiled function's results are off by {:.2g}, rounding explains {:.0e}"
        cause = "XLA's code for this device is wrong"
        return message.format(compiled.gap, TOLERANCE), cause, again
    return None
