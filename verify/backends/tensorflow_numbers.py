"""TensorFlow's convolutions and attention, with their gradients."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Optional, Sequence, Tuple

from verify.backends.base import NAMES, ConvolutionCase


def convolve(
    place: Any,
    case: ConvolutionCase,
    given: Sequence[Any],
    dtype: str,
    layout: str,  # noqa: ARG001
) -> Sequence[Any]:
    """As `Place.convolve`."""
    import tensorflow as tf

    place.backend.allow_tf32(on=dtype == "tf32")
    edge = [case.padding, case.padding]

    def forward(image: Any, weight: Any) -> Any:
        padded = tf.pad(image, [[0, 0], edge, edge, [0, 0]])  # oneDNN's gradients need "VALID"
        return tf.nn.conv2d(padded, weight, case.stride, "VALID")

    return there_and_back(place, forward, [place.put(numbers, dtype) for numbers in given])


def no_attention() -> Optional[str]:
    """Why Keras's layer does not take a mask for each call, if so: TensorFlow 2.10's does."""
    import tensorflow as tf

    call = inspect.signature(tf.keras.layers.Attention.call)
    if "use_causal_mask" in call.parameters:
        return None
    return "TensorFlow {} has no causal mask for attention".format(tf.__version__)


def attend(
    place: Any, given: Sequence[Any], dtype: str, way: str, *, causal: bool
) -> Tuple[str, Sequence[Any]]:
    """As `Place.attend`, by Keras's layer, which takes one head at a time and does not scale."""
    import tensorflow as tf

    shape, scale = given[0].shape, given[0].shape[-1] ** -0.5
    here = [place.put(numbers.reshape(-1, *shape[2:]), dtype) for numbers in given]
    layer = tf.keras.layers.Attention(dtype=NAMES[dtype])
    mask = {"use_causal_mask": True} if causal else {}

    def forward(query: Any, key: Any, value: Any) -> Any:
        return layer([query * tf.cast(scale, query.dtype), value, key], **mask)

    return way, [one.reshape(shape) for one in there_and_back(place, forward, here)]


def there_and_back(place: Any, forward: Callable[..., Any], given: Sequence[Any]) -> Sequence[Any]:
    """The result and the gradients, as arrays of the host; the last array is the result's own."""
    import tensorflow as tf

    *inputs, back = given
    with place.scope(), tf.GradientTape() as tape:
        tape.watch(inputs)
        result = forward(*inputs)
    with place.scope():
        found = (result, *tape.gradient(result, inputs, output_gradients=back))
    return [place.get(one) for one in found]


def checksum(place: Any, values: Any) -> Any:
    """The sum of an array's bits, as integers: equal for equal bits. It is exact in float64, and
    int64 has few kernels on a GPU.
    """
    import tensorflow as tf

    with place.scope():
        return tf.reduce_sum(tf.cast(tf.bitcast(values, tf.int16), tf.float64))
