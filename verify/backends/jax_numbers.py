"""JAX's precision of products; its convolutions and attention, with their gradients."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any, Callable, Optional, Sequence, Tuple

from verify.backends.base import ConvolutionCase
from verify.running.symptoms import kind


def precision(dtype: str) -> Any:
    """Of products: with the default a GPU uses TF32 where it has it (jax.lax.Precision)."""
    import jax

    kinds = jax.lax.Precision
    return kinds.DEFAULT if dtype == "tf32" else kinds.HIGHEST


def convolve(
    place: Any,
    case: ConvolutionCase,
    given: Sequence[Any],
    dtype: str,
    layout: str,  # noqa: ARG001
) -> Sequence[Any]:
    """As `Place.convolve`."""
    import jax

    edge = (case.padding, case.padding)

    def forward(image: Any, weight: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image,
            weight,
            (case.stride, case.stride),
            (edge, edge),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=case.groups,
            precision=precision(dtype),
        )

    return there_and_back(place, forward, [place.put(numbers, dtype) for numbers in given])


def there_and_back(place: Any, forward: Callable[..., Any], given: Sequence[Any]) -> Sequence[Any]:
    """The result and the gradients, as arrays of the host; the last array is the result's own."""
    import jax

    def both(back: Any, *inputs: Any) -> Any:
        result, pull = jax.vjp(forward, *inputs)
        return (result, *pull(back))

    with place.scope():
        return [place.get(one) for one in jax.jit(both)(given[-1], *given[:-1])]


def no_attention() -> Optional[str]:
    """Why this release has no attention of its own, if so: it came with JAX 0.4.31."""
    import jax

    if hasattr(jax.nn, "dot_product_attention"):
        return None
    return "JAX {} has no dot_product_attention".format(jax.__version__)


def attend(
    place: Any, given: Sequence[Any], dtype: str, way: str, *, causal: bool
) -> Optional[Tuple[str, Sequence[Any]]]:
    """As `Place.attend`; JAX's heads come after the length, and fp32 is exact, without TF32."""
    import jax

    if way == "cudnn" and (dtype == "fp32" or not place.has("bf16")):
        return None

    def forward(*inputs: Any) -> Any:
        return jax.nn.dot_product_attention(*inputs, is_causal=causal, implementation=way or None)

    here = [place.put(numbers.swapaxes(1, 2), dtype) for numbers in given]
    try:
        with jax.default_matmul_precision("float32") if dtype == "fp32" else nullcontext():
            found = there_and_back(place, forward, here)
    except Exception as error:
        if way and (isinstance(error, NotImplementedError) or kind(str(error)) == "kernel"):
            return None
        raise
    return way, [one.swapaxes(1, 2) for one in found]


def checksum(place: Any, values: Any) -> Any:
    """The sum of an array's bits, as integers: equal for equal bits."""
    with place.scope():
        return compiled_sum()(values)


@functools.lru_cache(maxsize=None)
def compiled_sum() -> Any:
    """Compiled once."""
    import jax

    def total(values: Any) -> Any:
        kind = "int16" if values.dtype.itemsize == 2 else "int32"
        bits = jax.lax.bitcast_convert_type(values, kind).astype("int32").ravel()
        weights = jax.numpy.arange(bits.size, dtype="int32") | 1  # the sum wraps around at 32 bits
        return (bits * weights).sum()

    return jax.jit(total)


@functools.lru_cache(maxsize=None)
def compiled_product(dtype: str) -> Any:
    """Compiled once for each dtype and shape."""
    import jax
    import jax.numpy as jnp

    more = {"preferred_element_type": "int32"} if dtype == "int8" else {}
    return jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision(dtype), **more))
