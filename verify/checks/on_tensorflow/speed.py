"""How fast TensorFlow multiplies, compared with the card's figures."""

from __future__ import annotations

from typing import Callable

from verify.backends.tensorflow import Place, allow_tf32, find, gpus
from verify.checks.speed import gemm
from verify.model.check import Check, Context, Outcome

_NAMES = {"fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}


def check_gemm(context: Context) -> Outcome:
    """Multiply large matrices in each number format, on every GPU."""
    broken, place = find(context)
    if broken:
        return broken
    places = [Place("cuda", i) for i in range(len(gpus()))] if place.is_gpu else [place]
    return gemm.check(context, places, _product)


def _product(place: Place) -> gemm.Product:
    """Random numbers: on zeros a card draws less power and is faster than with anybody's data."""
    import tensorflow as tf

    def make(dtype: str, size: int) -> Callable[[], object]:
        with place.scope():
            shape = (size, size)
            sides = [tf.cast(tf.random.normal(shape), _NAMES.get(dtype, "float32")) for _ in "ab"]

        def work() -> object:
            allow_tf32(on=dtype == "tf32")
            with place.scope():
                return tf.linalg.matmul(*sides)

        return work

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
