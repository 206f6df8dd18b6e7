"""How fast JAX multiplies, compared with the card's figures."""

from __future__ import annotations

from typing import Any, Callable

from verify.backends.base import NAMES
from verify.backends.jax import Place, every
from verify.checks.speed import gemm
from verify.model.check import Check, Context, Outcome


def check_gemm(context: Context) -> Outcome:
    """Multiply large matrices in each number format, on every GPU."""
    broken, places = every(context)
    if broken:
        return broken
    return gemm.check(context, places, _product)


def _product(place: Place) -> gemm.Product:
    """Random numbers: on zeros a card draws less power and is faster than with anybody's data."""
    import jax
    import jax.numpy as jnp

    def make(dtype: str, size: int) -> Callable[[], object]:
        precision = jax.lax.Precision.DEFAULT if dtype == "tf32" else jax.lax.Precision.HIGHEST
        kind = NAMES.get(dtype, "float32")
        multiply: Any = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
        with place.scope():
            keys = jax.random.split(jax.random.PRNGKey(1))
            shape = (size, size)
            sides = [jax.random.normal(key, shape, "float32").astype(kind) for key in keys]
        return lambda: multiply(*sides)

    return make


CHECKS = (
    Check(
        "speed.gemm",
        "Matrix products as fast as on GPUs of this model",
        check_gemm,
        "standard",
        180,
        gauge=True,
    ),
)
