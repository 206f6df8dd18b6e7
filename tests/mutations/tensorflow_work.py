"""Faults of what TensorFlow computes: arithmetic, training, data, several devices."""

from __future__ import annotations

from typing import Any, Callable, Tuple

from tests.mutations import Row, rows
from tests.mutations.patching import always, raising, replace
from tests.mutations.tensorflow_ import a_gpu_that_is_the_cpu, fail_on_the_gpu

# Arithmetic


def spoil_products(how: Callable[[Any], Any]) -> Callable[[], None]:
    """Products that `how` changes."""

    def seed() -> None:
        import tensorflow as tf

        replace(tf.linalg, "matmul", lambda real: lambda *sides: how(real(*sides)))

    return seed


def lose_a_tile(product: Any) -> Any:
    """One tile of 16 x 16 is not written."""
    import tensorflow as tf

    shape = tf.shape(product)
    rows = tf.cast(tf.range(shape[0]) >= 16, product.dtype)[:, None]
    columns = tf.cast(tf.range(shape[1]) >= 16, product.dtype)[None, :]
    return product * (1 - (1 - rows) * (1 - columns))


def infinite(product: Any) -> Any:
    """One element overflows."""
    return product / (
        1
        - (product == product[0, 0]).numpy().astype("float32").astype(product.dtype.as_numpy_dtype)
    )


def round_like_tf32(*, always: bool = True) -> None:
    """fp32's factors lose 13 bits, as with TF32: of all products, or where it is allowed."""
    import tensorflow as tf

    def short(side: Any) -> Any:
        allowed = always or tf.config.experimental.tensor_float_32_execution_enabled()
        if side.dtype != tf.float32 or not allowed:
            return side
        return tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(side, tf.int32), -8192), tf.float32)

    replace(tf.linalg, "matmul", lambda real: lambda *sides: real(*map(short, sides)))


def a_gpu_with_tf32() -> None:
    """One GPU that rounds the factors of fp32 products where TF32 is allowed."""
    a_gpu_that_is_the_cpu()
    round_like_tf32(always=False)


def set_tf32(*, on: bool) -> Callable[[], None]:
    """The switch for TF32 does nothing, and stays where it is."""

    def seed() -> None:
        from verify.backends import tensorflow

        replace(tensorflow, "allow_tf32", lambda real: lambda **_: real(on=on))

    return seed


def weaken_the_gradient(index: int) -> Callable[[], None]:
    """A convolution whose gradient by image (0) or weight (1) is 5 % small."""

    def seed() -> None:
        import tensorflow as tf

        replace(tf.nn, "conv2d", lambda real: lambda *given: real(*weakened(given, index)))

    return seed


def weakened(given: Any, index: int) -> Any:
    """The same tensors, with a gradient by one of them that is 5 % small."""
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def weaken(side: Any) -> Any:
        return tf.identity(side), lambda dy: dy * tf.cast(0.95, dy.dtype)

    return [weaken(one) if i == index else one for i, one in enumerate(given)]


def change_attention(how: Callable[[Any], Any], **instead: Any) -> Callable[[], None]:
    """Keras's layer gets other tensors (query, value, key), or other options."""

    def seed() -> None:
        import tensorflow as tf

        def make(real: Any) -> Any:
            return lambda layer, given, **more: real(layer, how(given), **{**more, **instead})

        replace(tf.keras.layers.Attention, "__call__", make)

    return seed


def drop_pixels() -> None:
    """A convolution that leaves one result out."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        def convolve(*args: Any) -> Any:
            result = real(*args)
            rows = tf.cast(tf.range(tf.shape(result)[1]) > 0, result.dtype)
            return result * rows[None, :, None, None]

        return convolve

    replace(tf.nn, "conv2d", make)


def forget_the_seed() -> None:
    """Randomness that no seed fixes."""
    import numpy as np
    import tensorflow as tf

    def normal(_self: Any, shape: Any) -> Any:
        return np.random.default_rng().standard_normal(shape).astype("float32")

    replace(tf.random.Generator, "normal", lambda _: normal)


def keep_out_of_checkpoints(name: str) -> Callable[[], None]:
    """A part of the state that is not saved."""

    def seed() -> None:
        import tensorflow as tf

        def make(real: Any) -> Any:
            return lambda **parts: real(**{k: v for k, v in parts.items() if k != name})

        replace(tf.train, "Checkpoint", make)

    return seed


def damage_the_file() -> None:
    """A saved model comes back with other weights."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        def load(path: str) -> Any:
            model = real(path)
            model.set_weights([weight * 1.001 for weight in model.get_weights()])
            return model

        return load

    replace(tf.keras.models, "load_model", make)


def freeze_the_optimiser() -> None:
    """Steps that change nothing."""
    import tensorflow as tf

    for kind in (tf.keras.optimizers.Adam, tf.keras.optimizers.SGD):
        replace(kind, "apply_gradients", always(None))


def pass_xla_over() -> None:
    """Functions run as plain Python, whatever was asked for."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)  # noqa: FBT003


def lose_libdevice() -> None:
    """XLA does not find the GPU's mathematical functions."""
    import tensorflow as tf

    error = RuntimeError("libdevice not found at ./libdevice.10.bc")
    replace(tf, "function", raising(error))


def bend_tanh() -> None:
    """A transcendental function that is a little off."""
    import tensorflow as tf

    replace(tf, "tanh", lambda real: lambda x: real(x) * 1.0005)


# Training


def scale_the_gradients() -> None:
    """A step in fp32 that is 1 % too long: float64 does it right."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        def apply(self: Any, pairs: Any) -> Any:
            scaled = [(g * 1.01 if g.dtype == tf.float32 else g, w) for g, w in pairs]
            return real(self, scaled)

        return apply

    replace(tf.keras.optimizers.SGD, "apply_gradients", make)


def learn_at_rate_zero() -> None:
    """An optimiser whose steps have no length."""
    import tensorflow as tf

    replace(tf.keras.optimizers, "Adam", lambda real: lambda _rate: real(0.0))


def keep_batches() -> None:
    """Each step's batch, several times over, in a list that nobody empties."""
    import tensorflow as tf

    kept = []

    def keeping(step: Any) -> Any:
        def run(*given: Any) -> Any:
            kept.append([one.numpy().copy() for one in given for _ in range(8)])
            return step(*given)

        return run

    def with_keeping(real: Any) -> Any:
        """Keras compiles parts of its own, with options: those are left alone."""
        return lambda step=None, **more: real(step, **more) if more else keeping(real(step))

    replace(tf, "function", with_keeping)


def ignore_the_policy() -> None:
    """A policy that changes nothing."""
    import tensorflow as tf

    replace(tf.keras.mixed_precision, "set_global_policy", always(None))


def leave_the_scaler_out() -> None:
    """No loss scaling, though fp16 needs it."""
    import tensorflow as tf

    replace(
        tf.keras.mixed_precision,
        "LossScaleOptimizer",
        lambda _: lambda inner, **_more: inner,
    )


def evaluate_something_else() -> None:
    """An evaluation that is not of the model's predictions."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        return lambda self, *args, **more: 1.1 * real(self, *args, **more)

    replace(tf.keras.Model, "evaluate", make)


def lose_batches() -> None:
    """A pipeline whose last batches never come."""
    import tensorflow as tf

    replace(tf.data.Dataset, "prefetch", lambda _: lambda data, _n: data.take(7))


# Data


def change_the_pipeline(how: Callable[[Any], Any]) -> Callable[[], None]:
    """Samples that `how` drops, repeats or mixes up."""

    def seed() -> None:
        import tensorflow as tf

        replace(tf.data.Dataset, "range", lambda real: lambda count: how(real(count)))

    return seed


def damage_pictures() -> None:
    """A decoder that is wrong within the pipeline."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        def decode(data: Any, **more: Any) -> Any:
            picture = real(data, **more)
            return picture if tf.executing_eagerly() else tf.clip_by_value(picture, 0, 250)

        return decode

    replace(tf.io, "decode_jpeg", make)


def fail_to_decode() -> None:
    """Files that are no pictures."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        def decode(data: Any, **more: Any) -> Any:
            return real(data if tf.executing_eagerly() else tf.constant(b"no picture"), **more)

        return decode

    replace(tf.io, "decode_jpeg", make)


# Several devices


def keep_gradients_apart() -> None:
    """Gradients that are not added up over the replicas."""
    import tensorflow as tf

    replace(tf.distribute.ReplicaContext, "all_reduce", lambda _: lambda _self, _op, value: value)


def mirror_on_one() -> None:
    """A strategy that spreads over nothing."""
    import tensorflow as tf

    real = tf.distribute.MirroredStrategy
    tf.distribute.MirroredStrategy = lambda devices: real(devices[:1])


def sum_instead_of_average() -> None:
    """Gradients twice as long as one device's."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        def reduce(self: Any, op: Any, value: Any) -> Any:
            times = 2 if self.num_replicas_in_sync > 1 else 1
            return tf.nest.map_structure(lambda part: times * part, real(self, op, value))

        return reduce

    replace(tf.distribute.ReplicaContext, "all_reduce", make)


_ARITHMETIC: Tuple[Row, ...] = (
    *rows(
        "numerics.matmul",
        ("a tile is not written", spoil_products(lose_a_tile), "rounding explains"),
        ("an element overflows", spoil_products(infinite), "NaN or infinity"),
        ("TF32 where fp32 was asked for", round_like_tf32, "rounding explains"),
        ("no kernel runs", fail_on_the_gpu, "no kernel image"),
    ),
    *rows(
        "numerics.matmul",
        ("TF32 is asked for and not used", set_tf32(on=False), "requested but not used"),
        ("TF32 is used though it is turned off", set_tf32(on=True), "which was turned off"),
        sound=a_gpu_with_tf32,
    ),
    *rows(
        "numerics.attention",
        ("the causal mask is ignored", change_attention(list, use_causal_mask=False), "causal"),
        ("the gradient by key is small", change_attention(lambda given: weakened(given, 2)),
         "gradient by key"),
    ),
    *rows(
        "numerics.convolution",
        ("the gradient by weight is small", weaken_the_gradient(1), "gradient by weight"),
        ("the gradient by image is small", weaken_the_gradient(0), "gradient by image"),
        ("a row of results is missing", drop_pixels, "fp32 3x3"),
    ),
    *rows(
        "numerics.determinism",
        ("noise that no seed fixes", forget_the_seed, "from one seed differ"),
    ),
    *rows(
        "numerics.checkpoint",
        ("the optimiser's state is not saved", keep_out_of_checkpoints("optimizer"),
         "not restored from the checkpoint: optimizer"),
        ("the random generator is not saved", keep_out_of_checkpoints("noise"), "random generator"),
        ("a Keras file changes weights", damage_the_file, "Keras file"),
        ("the optimiser's steps have no effect", freeze_the_optimiser, "did not change any weight"),
    ),
    *rows(
        "numerics.compile",
        ("XLA is passed over", pass_xla_over, "without being compiled"),
        ("libdevice is missing", lose_libdevice, "xla_gpu_cuda_data_dir"),
        ("a compiled function is off", bend_tanh, "results are off by"),
    ),
)  # fmt: skip
_TRAINING: Tuple[Row, ...] = (
    *rows(
        "training.loss",
        (
            "the optimiser's steps have no effect",
            freeze_the_optimiser,
            "gradients or the optimiser",
        ),
    ),
    *rows(
        "training.same",
        ("steps in fp32 are too long", scale_the_gradients, "end"),
        ("the optimiser's steps have no effect", freeze_the_optimiser, "did not change any weight"),
    ),
    *rows("memory.leak", ("each step keeps its batch", keep_batches, "each step")),
    *rows(
        "training.amp",
        ("the policy does nothing", ignore_the_policy, "layers computed in fp32"),
        ("there is no loss scaler", leave_the_scaler_out, "skipped no step"),
        ("the optimiser's steps have no effect", freeze_the_optimiser, "10-fold"),
    ),
    *rows(
        "training.keras",
        ("evaluate is off", evaluate_something_else, "evaluate says"),
        ("batches are lost", lose_batches, "steps, the data has"),
        ("the optimiser's steps have no length", learn_at_rate_zero, "gradients or the optimiser"),
    ),
)
_MORE: Tuple[Row, ...] = (
    *rows(
        "loading.pipeline",
        ("a sample is dropped", change_the_pipeline(lambda data: data.skip(1)),
         "1 of 384 samples are missing"),
        ("a sample comes twice", change_the_pipeline(lambda data: data.concatenate(data.take(1))),
         "were repeated"),
        ("the order is not kept", change_the_pipeline(lambda data: data.shuffle(16, seed=1)),
         "a different order"),
        ("pictures are damaged", damage_pictures, "wrong pixels"),
        ("pictures cannot be decoded", fail_to_decode, "1 parallel calls"),
    ),
    *rows(
        "parallel.mirrored",
        ("gradients stay apart", keep_gradients_apart, "ranks' weights differ"),
        ("all replicas on one device", mirror_on_one, "made 1 replicas"),
        ("gradients are twice as long", sum_instead_of_average, "combined wrongly"),
    ),
)  # fmt: skip
ROWS = {"tensorflow": (*_ARITHMETIC, *_TRAINING, *_MORE)}
