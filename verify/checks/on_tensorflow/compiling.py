"""XLA: a compiled function gives the same numbers, and really is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Tuple

from verify.checks.accuracy import number
from verify.checks.on_tensorflow.place import Place, find
from verify.model.check import Check, Context, Outcome, Status
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
    """What a function compiled by XLA gave, and whether it was XLA that gave it."""

    gap: float = 0.0  # from NumPy's float64, the largest by the size of the numbers
    strict: bool = False  # what XLA cannot compile was refused: so nothing fell back
    kernels: Optional[int] = None  # fused computations in the optimised program
    error: Optional[str] = None


def check_compile(context: Context) -> Outcome:
    """Compile a function with sums, a product and transcendental parts."""
    broken, place = find(context)
    return broken or judge_compiled(_compile(place, context.pick(128, 512, 1024)), place.kind)


def _compile(place: Place, size: int) -> XlaRun:
    import numpy as np
    import tensorflow as tf

    given = np.random.default_rng(5).standard_normal((size, size))

    def work(x: Any) -> Any:
        total = tf.reduce_sum(tf.tanh(x) * tf.exp(-x * x) + x, axis=1)
        return total + tf.linalg.matvec(x, tf.ones((size,))) / 16

    try:
        compiled = tf.function(work, jit_compile=True)
        with place.scope():
            x = tf.constant(given, tf.float32)
            got = compiled(x).numpy()
            kernels = _kernels(compiled, x)
            strict = _refuses(lambda: tf.function(_not_for_xla, jit_compile=True)(x))
    except Exception as error:
        return XlaRun(error="{}: {}".format(type(error).__name__, error))
    known = (np.tanh(given) * np.exp(-(given**2)) + given).sum(1) + given.sum(1) / 16
    gap = float(abs(got - known).max() / abs(known).max())
    return XlaRun(gap, strict, kernels)


def _kernels(compiled: Any, x: Any) -> Optional[int]:
    """How many fused computations XLA made of it; None where it does not show its program."""
    try:
        program = compiled.experimental_get_compiler_ir(x)(stage="optimized_hlo")
    except Exception:  # not on every device, nor in every release
        return None
    text = program.decode("utf-8", "replace") if isinstance(program, bytes) else str(program)
    return text.count("fusion(")


def _not_for_xla(x: Any) -> Any:
    """Python code amid the graph: the one thing that XLA can never compile."""
    import numpy as np
    import tensorflow as tf

    return tf.numpy_function(np.sin, [x], tf.float32)


def _refuses(work: Callable[[], object]) -> bool:
    try:
        work()
    except Exception:  # InvalidArgumentError, or UnimplementedError
        return True
    return False


def judge_compiled(compiled: XlaRun, device: str) -> Outcome:
    """Whether XLA compiled, and its numbers are right."""
    measured = {
        "device": device,
        "gap": number(compiled.gap),
        "strict": compiled.strict,
        "kernels": compiled.kernels,
    }
    expected = {"gap": TOLERANCE, "strict": True}
    fault = _fault(compiled)
    if fault:
        return Outcome(Status.FAIL, *fault, measured, expected)
    where = "on the GPU" if device == "cuda" else "on the CPU: no GPU visible"
    kernels = "" if compiled.kernels is None else "{} fused kernels, ".format(compiled.kernels)
    message = "XLA compiles correctly: {}{}".format(kernels, where)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _fault(compiled: XlaRun) -> Optional[Tuple[str, str, str]]:
    again = "build the image again from its lock; look at TF_XLA_FLAGS and XLA_FLAGS"
    if compiled.error is not None:
        message = "XLA does not compile: {}".format(compiled.error.partition("\n")[0][:200])
        for word, cause, fix in _SYMPTOMS:
            if word in compiled.error:
                return message, cause, fix
        known, remedy = explain(compiled.error)
        return message, known or "XLA is broken in this image", remedy or again
    if not compiled.strict:
        message = "a function ran without being compiled"
        return message, "XLA was bypassed: code that it cannot compile ran anyway", again
    if not compiled.gap <= TOLERANCE:
        message = "a compiled function's results are off by {:.2g}, rounding explains {:.0e}"
        cause = "XLA's code for this device is wrong"
        return message.format(compiled.gap, TOLERANCE), cause, again
    return None


CHECKS = (
    Check("numerics.compile", "XLA compiles correctly", check_compile, "standard", 180, gpu=True),
)
