"""Runs tf.function(jit_compile=True) for the check of XLA."""

from __future__ import annotations

from typing import Any, Callable, Optional

from verify.backends.tensorflow import Place, find
from verify.checks.numerics import xla
from verify.model.check import Check, Context, Outcome

_BYPASSED = "code that it cannot compile ran anyway"
_SETTINGS = "TF_XLA_FLAGS and XLA_FLAGS"


def check_compile(context: Context) -> Outcome:
    """Compile a function with sums, a product and transcendental parts."""
    broken, place = find(context)
    if broken:
        return broken
    run = _compile(place, context.pick(128, 512, 1024))
    return xla.judge_compiled(run, place.kind, _BYPASSED, _SETTINGS)


def _compile(place: Place, size: int) -> xla.XlaRun:
    import tensorflow as tf

    given = xla.random(size)

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
        return xla.XlaRun(error="{}: {}".format(type(error).__name__, error))
    return xla.XlaRun(xla.gap(got, given), strict, kernels)


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


CHECKS = (
    Check("numerics.compile", "XLA compiles correctly", check_compile, "standard", 180, gpu=True),
)
