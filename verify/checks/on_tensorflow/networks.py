"""A small Keras network whose weights and data come from NumPy: the same on every device."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

SIZE, CLASSES = 12, 4  # images of 12 x 12, one channel


def images(count: int, seed: int = 11) -> Tuple[Any, Any]:
    """Images, and targets that a small network can learn: the means of their quarters."""
    import numpy as np

    found = np.random.default_rng(seed).standard_normal((count, SIZE, SIZE, 1))
    half = SIZE // 2
    parts = [found[:, i : i + half, j : j + half, 0] for i in (0, half) for j in (0, half)]
    return found, np.stack([part.mean((1, 2)) for part in parts], 1)


def network(dtype: Any = "float32", width: int = 8, seed: int = 7) -> Any:
    """A convolution and two dense layers in a dtype, or under a Keras dtype policy."""
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(width, 3, 2, activation="tanh", dtype=dtype),
            layers.Flatten(dtype=dtype),
            layers.Dense(4 * width, activation="tanh", dtype=dtype),
            layers.Dense(CLASSES, dtype=dtype),
        ]
    )
    model.build((None, SIZE, SIZE, 1))
    start(model, seed)
    return model


def start(model: Any, seed: int = 7) -> None:
    """Give a model random weights of the size that keeps what goes through them at size 1."""
    import numpy as np

    source = np.random.default_rng(seed)

    def first(shape: Tuple[int, ...]) -> Any:
        if len(shape) == 1:  # offsets
            return np.zeros(shape)
        return source.standard_normal(shape) * np.prod(shape[:-1]) ** -0.5

    model.set_weights([first(tuple(weight.shape)) for weight in model.weights])


def stepper(model: Any, optimiser: Any) -> Callable[[Any, Any], Any]:
    """A compiled training step: takes inputs and targets, gives the loss."""
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
        weights = model.trainable_variables
        optimiser.apply_gradients(list(zip(tape.gradient(loss, weights), weights)))
        return loss

    made: Callable[[Any, Any], Any] = step
    return made


def batches(dtype: str, steps: int, rows: int) -> List[Tuple[Any, Any]]:
    """The inputs and targets of each step, on the device of the scope."""
    import tensorflow as tf

    found, targets = images(steps * rows)
    cuts = [slice(i * rows, (i + 1) * rows) for i in range(steps)]
    return [(tf.constant(found[c], dtype), tf.constant(targets[c], dtype)) for c in cuts]


def variables(optimiser: Any) -> List[Any]:
    """An optimiser's state: a property in Keras 3, a method in Keras 2."""
    found = optimiser.variables
    return list(found() if callable(found) else found)


def prepare(optimiser: Any, model: Any) -> None:
    """Have the optimiser make its state, so that it can be restored into."""
    make = getattr(optimiser, "build", None) or optimiser._create_all_weights  # noqa: SLF001
    make(model.trainable_variables)


def numbers(weights: Sequence[Any]) -> List[Any]:
    """As float64 arrays of NumPy, whatever they are."""
    import numpy as np

    return [np.asarray(_array(weight), dtype=np.float64) for weight in weights]


def _array(weight: Any) -> Any:
    return weight.numpy() if hasattr(weight, "numpy") else weight


def named(model: Any) -> Dict[str, List[float]]:
    """Every weight by its place in the model."""
    rows = enumerate(numbers(model.trainable_variables))
    return {"weight {}".format(i): row.reshape(-1).tolist() for i, row in rows}
