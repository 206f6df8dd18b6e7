"""JAX's precision of products, its convolutions, and their gradients."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from verify.backends.base import ConvolutionCase


def precision(dtype: str) -> Any:
    """Of products: JAX's own default may use TF32, the highest does not."""
    import jax

    kinds = jax.lax.Precision
    return kinds.DEFAULT if dtype == "tf32" else kinds.HIGHEST


def convolve(place: Any, case: ConvolutionCase, given: Sequence[Any], dtype: str) -> Sequence[Any]:
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
