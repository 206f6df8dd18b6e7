"""TensorFlow's trainer: Keras layers in a compiled step; for mixed precision in a compiled model.

Weights and data come from NumPy: they are the same on every device.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import NAMES, SHORT
from verify.backends.trainer import DECAY, MOMENTUM, NOISE, Trainer
from verify.workloads.networks import Layers, Network


def model_of(network: Network, dtype: Optional[str] = "float32", seed: int = 7) -> Any:
    """The network as a Keras model in a dtype; None: under the global policy, and the last layer in
    fp32 as Keras advises.
    """
    import tensorflow as tf

    given = tf.keras.Input(network.given, dtype=dtype or "float32")
    *layers, last = network.layers
    found = _apply(tuple(layers), given, dtype)
    model = tf.keras.Model(given, _apply((last,), found, dtype or "float32"))
    start(model, seed)
    return model


def _apply(layers: Layers, x: Any, dtype: Optional[str]) -> Any:
    import tensorflow as tf

    keras = tf.keras.layers
    for kind, *sizes in layers:
        if kind == "conv":
            filters, window, stride = sizes
            x = keras.ZeroPadding2D(window // 2, dtype=dtype)(x)
            x = keras.Conv2D(filters, window, stride, use_bias=False, dtype=dtype)(x)
        elif kind == "maximum":
            window, stride = sizes
            x = keras.ZeroPadding2D(window // 2, dtype=dtype)(x)  # after ReLU no pixel is below 0
            x = keras.MaxPooling2D(window, stride, dtype=dtype)(x)
        elif kind == "beside":
            x = keras.Add(dtype=dtype)([_apply(one, x, dtype) for one in sizes])
        else:
            made = {
                "norm": keras.BatchNormalization,
                "mean": keras.GlobalAveragePooling2D,
                "flatten": keras.Flatten,
                "dense": lambda size, dtype: keras.Dense(size, dtype=dtype),
                "relu": lambda dtype: keras.Activation("relu", dtype=dtype),
                "tanh": lambda dtype: keras.Activation("tanh", dtype=dtype),
            }
            x = made[kind](*sizes, dtype=dtype)(x)
    return x


def start(model: Any, seed: int) -> None:
    """Give each matrix and window random numbers that keep what goes through them at size 1."""
    import numpy as np

    source = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        shape = tuple(weight.shape)
        if len(shape) > 1:
            weight.assign(source.standard_normal(shape) * np.prod(shape[:-1]) ** -0.5)


def optimiser_of(kind: str, rate: float, *, decays: bool = False) -> Any:
    """Keras's."""
    import tensorflow as tf

    found: Any = rate
    if decays:
        found = tf.keras.optimizers.schedules.ExponentialDecay(rate, 3, DECAY, staircase=True)
    if kind == "adam":
        return tf.keras.optimizers.Adam(found)
    return tf.keras.optimizers.SGD(found, momentum=MOMENTUM)


def prepare(optimiser: Any, model: Any) -> None:
    """Have the optimiser make its state, so that it can be restored into."""
    make = getattr(optimiser, "build", None) or optimiser._create_all_weights  # noqa: SLF001
    make(model.trainable_variables)


def numbers(weights: Sequence[Any]) -> List[Any]:
    """As float64 arrays of NumPy, whatever they are."""
    import numpy as np

    arrays = (one.numpy() if hasattr(one, "numpy") else one for one in weights)
    return [np.array(one, dtype=np.float64) for one in arrays]


class KerasTrainer(Trainer):
    """A custom loop; with `mixed` a compiled Keras model under the global policy."""

    def build(self) -> None:
        """The model, its optimiser, and a source of noise."""
        import tensorflow as tf

        if self.exact:
            self.place.backend.allow_tf32(on=False)
        policies = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
        if self.mixed:
            tf.keras.mixed_precision.set_global_policy(policies[self.mixed])
        with self.place.scope():
            dtype = None if self.mixed else NAMES[self.dtype]
            self.model = model_of(self.network, dtype, self.seed)
            self.noise = tf.random.Generator.from_seed(self.seed)
            self.optimiser = optimiser_of(self.kind, self.rate, decays=self.decays)
            if self.mixed == "fp16":
                scaled = tf.keras.mixed_precision.LossScaleOptimizer
                self.optimiser = scaled(self.optimiser, initial_scale=self.first_scale)
            if self.mixed:
                self.model.compile(optimizer=self.optimiser, loss="mse")
            else:
                prepare(self.optimiser, self.model)
                self._step = stepper(self.model, self.optimiser)

    def noisy(self, inputs: Any) -> Any:
        """The noise is the device's."""
        with self.place.scope():
            return inputs + NOISE * self.noise.normal(inputs.shape)

    def step(self, inputs: Any, targets: Any) -> Any:
        """Keras's loss is the mean of the losses since the last reset."""
        with self.place.scope():
            if not self.mixed:
                return self._step(inputs, targets)
            found = self.model.train_on_batch(inputs, targets)
            self.model.reset_metrics()
            self.computed_in = self._layers_dtype(inputs)
        return float(found[0] if isinstance(found, (list, tuple)) else found)

    def _layers_dtype(self, inputs: Any) -> str:
        """The dtype that a layer under the policy really gives."""
        import tensorflow as tf

        if self.computed_in != "nothing":
            return self.computed_in
        name = str(tf.as_dtype(self.model.layers[1](inputs[:1]).dtype).name)
        return SHORT.get(name, name)

    def weights(self) -> List[Any]:
        """Those that are trained."""
        return numbers(self.model.trainable_variables)

    def scale(self) -> float:
        """In Keras 3, in Keras 2, and of an optimiser that is not built yet."""
        names = ("dynamic_scale", "loss_scale", "initial_scale")
        found = (getattr(self.model.optimizer, name, None) for name in names)
        return next((float(scale) for scale in found if scale is not None), 1.0)

    def state(self) -> Dict[str, Any]:
        """All of it, as arrays. An optimiser's is a property in Keras 3, a method in Keras 2."""
        optimiser = self.optimiser.variables
        return {
            "model": numbers(self.model.get_weights()),
            "optimizer": numbers(optimiser() if callable(optimiser) else optimiser),
            "random generator": [self.noise.state.numpy()],
        }

    def _checkpoint(self) -> Any:
        import tensorflow as tf

        return tf.train.Checkpoint(model=self.model, optimizer=self.optimiser, noise=self.noise)

    def save(self, path: str) -> None:
        """By tf.train.Checkpoint."""
        self._checkpoint().write(path)

    def load(self, path: str) -> str:
        """By tf.train.Checkpoint."""
        self._checkpoint().read(path)
        return "tf.train.Checkpoint and a Keras file"

    def misread(self, folder: str) -> Tuple[str, ...]:
        """A model's own file; Keras before 2.12 has no such format."""
        import numpy as np
        import tensorflow as tf

        path = os.path.join(folder, "model.keras")
        try:
            self.model.save(path)
        except (NotImplementedError, ValueError):
            return ()
        kept = numbers(tf.keras.models.load_model(path).get_weights())
        same = all(map(np.array_equal, kept, numbers(self.model.get_weights())))
        return () if same else ("Keras file",)


def stepper(model: Any, optimiser: Any) -> Any:
    """A compiled training step: takes inputs and targets, gives the loss."""
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
        weights = model.trainable_variables
        optimiser.apply_gradients(list(zip(tape.gradient(loss, weights), weights)))
        return loss

    return step
