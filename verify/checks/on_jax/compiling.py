"""Runs jax.jit for the check of XLA."""

from __future__ import annotations

from typing import Any, List, Optional

from verify.backends.jax import Place, find
from verify.checks.numerics import xla
from verify.model.check import Check, Context, Outcome

_BYPASSED = "the function ran as Python code each time"
_SETTINGS = "JAX_DISABLE_JIT and XLA_FLAGS"


def check_compile(context: Context) -> Outcome:
    """Compile a function with sums, a product and transcendental parts, and call it twice."""
    broken, place = find(context)
    if broken:
        return broken
    run = _compile(place, context.pick(128, 512, 1024))
    return xla.judge_compiled(run, place.kind, _BYPASSED, _SETTINGS)


def _compile(place: Place, size: int) -> xla.XlaRun:
    import jax
    import jax.numpy as jnp

    given = xla.random(size)
    traces: List[int] = []

    def work(x: Any) -> Any:
        traces.append(size)  # Python code runs when JAX traces the function, and not again
        total = jnp.sum(jnp.tanh(x) * jnp.exp(-x * x) + x, axis=1)
        ones: Any = jnp.ones((size,), x.dtype)
        return total + jnp.matmul(x, ones, precision=jax.lax.Precision.HIGHEST) / 16

    try:
        compiled = jax.jit(work)
        with place.scope():
            x = jnp.asarray(given, "float32")
            results = [compiled(x) for _ in range(2)]
            strict = len(traces) == 1
            kernels = _kernels(compiled, x)
    except Exception as error:
        return xla.XlaRun(error="{}: {}".format(type(error).__name__, error))
    return xla.XlaRun(xla.gap(results[-1], given), strict, kernels)


def _kernels(compiled: Any, x: Any) -> Optional[int]:
    """How many fused computations XLA made of it; None where it does not show its program."""
    try:
        return str(compiled.lower(x).compile().as_text()).count("fusion(")
    except Exception:  # not in every release
        return None


CHECKS = (
    Check("numerics.compile", "XLA compiles correctly", check_compile, "standard", 180, gpu=True),
)
