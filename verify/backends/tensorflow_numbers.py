"""TensorFlow's convolutions, and their gradients."""

from __future__ import annotations

from typing import Any, Sequence

from verify.backends.base import ConvolutionCase


def convolve(place: Any, case: ConvolutionCase, given: Sequence[Any], dtype: str) -> Sequence[Any]:
    """As `Place.convolve`."""
    import tensorflow as tf

    image, weight, back = (place.put(numbers, dtype) for numbers in given)
    edge = [case.padding, case.padding]
    with place.scope(), tf.GradientTape() as tape:
        tape.watch([image, weight])
        padded = tf.pad(image, [[0, 0], edge, edge, [0, 0]])  # oneDNN's gradients need "VALID"
        result = tf.nn.conv2d(padded, weight, case.stride, "VALID")
    with place.scope():
        found = (result, *tape.gradient(result, [image, weight], output_gradients=back))
    return [place.get(one) for one in found]
