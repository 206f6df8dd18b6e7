"""XLA through TensorFlow and JAX: its functions must be correct, and really compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Tuple

from verify.backends.each_gpu import on_each
from verify.checks.numerics.accuracy import number
from verify.model.check import Context, Outcome, Status, on_device
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
# What it means if XLA did not compile, and the variables to look at.
_BYPASSED = {
    "tensorflow": ("code that it cannot compile ran anyway", "TF_XLA_FLAGS and XLA_FLAGS"),
    "jax": ("the function ran as Python code each time", "JAX_DISABLE_JIT and XLA_FLAGS"),
}


@dataclass(frozen=True)
class XlaRun:
    """What a function compiled by XLA returned, and whether XLA compiled it."""

    gap: float = 0.0  # from NumPy's float64, the largest, relative to the largest number
    strict: bool = False  # nothing ran uncompiled
    kernels: Optional[int] = None  # fused computations in the optimised program
    error: Optional[str] = None


def check_xla(context: Context) -> Outcome:
    """Compile a function with sums, a product and transcendental parts."""
    return on_each(context, _compile)


def _compile(context: Context, place: Any) -> Outcome:
    (given,) = place.backend.draw(5, (context.pick(128, 512, 1024),) * 2)
    try:
        run = {"tensorflow": _tensorflow, "jax": _jax}[context.framework](place, given)
    except Exception as error:
        run = XlaRun(error="{}: {}".format(type(error).__name__, error))
    return judge_compiled(run, place.kind, *_BYPASSED[context.framework])


def _tensorflow(place: Any, given: Any) -> XlaRun:
    """What XLA can never compile, Python code amid the graph, must be refused."""
    import numpy as np
    import tensorflow as tf

    def work(x: Any) -> Any:
        total = tf.reduce_sum(tf.tanh(x) * tf.exp(-x * x) + x, axis=1)
        return total + tf.linalg.matvec(x, tf.ones((len(given),))) / 16

    x = place.put(given, "fp32")
    compiled = tf.function(work, jit_compile=True)
    python = tf.function(lambda x: tf.numpy_function(np.sin, [x], tf.float32), jit_compile=True)
    with place.scope():
        got = compiled(x)
        kernels = _count(lambda: compiled.experimental_get_compiler_ir(x)(stage="optimized_hlo"))
        try:
            python(x)
            strict = False
        except Exception:  # InvalidArgumentError, or UnimplementedError
            strict = True
    return XlaRun(gap(got, given), strict, kernels)


def _jax(place: Any, given: Any) -> XlaRun:
    """Its Python code runs when JAX traces the function, and not again."""
    import jax
    import jax.numpy as jnp

    traces: List[int] = []

    def work(x: Any) -> Any:
        traces.append(1)
        total = jnp.sum(jnp.tanh(x) * jnp.exp(-x * x) + x, axis=1)
        ones: Any = jnp.ones((len(given),), x.dtype)
        return total + jnp.matmul(x, ones, precision=jax.lax.Precision.HIGHEST) / 16

    x = place.put(given, "fp32")
    compiled = jax.jit(work)
    with place.scope():
        results = [compiled(x) for _ in range(2)]
        strict = len(traces) == 1
        kernels = _count(lambda: compiled.lower(x).compile().as_text())
    return XlaRun(gap(results[-1], given), strict, kernels)


def _count(program: Callable[[], Any]) -> Optional[int]:
    """How many fused computations XLA made; None where it does not show its program: that depends
    on the device and the release.
    """
    try:
        text = program()
    except Exception:
        return None
    return (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)).count(
        "fusion("
    )


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
    kernels = "" if compiled.kernels is None else "{} fused kernels, ".format(compiled.kernels)
    message = "XLA compiles correctly: {}{}".format(kernels, on_device(device))
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
