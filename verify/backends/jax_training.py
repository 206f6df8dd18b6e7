"""JAX's trainer: layers and optimisers in plain JAX, without other packages."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, List, Optional, Tuple

from verify.backends.base import NAMES
from verify.backends.trainer import DECAY, MOMENTUM, NOISE, Trainer
from verify.workloads.networks import Layers, Network

Weights = List[Any]  # of each layer a tuple of arrays, or of such lists


def weights_of(network: Network, dtype: str, seed: int = 7) -> Weights:
    """Random numbers that keep what goes through them at size 1; they come from NumPy."""
    import numpy as np

    return _start(network.layers, network.given, NAMES[dtype], np.random.default_rng(seed))[0]


def _start(
    layers: Layers, shape: Tuple[int, ...], dtype: str, source: Any
) -> Tuple[Weights, Tuple[int, ...]]:
    import jax.numpy as jnp
    import numpy as np

    def random(*sizes: int) -> Any:
        drawn = source.standard_normal(sizes) * np.prod(sizes[:-1]) ** -0.5
        return jnp.asarray(drawn.astype(dtype))

    found: Weights = []
    for kind, *sizes in layers:
        made: Tuple[Any, ...] = ()
        if kind == "conv":
            filters, window, stride = sizes
            made = (random(window, window, shape[-1], filters),)
            shape = (*((side - 1) // stride + 1 for side in shape[:2]), filters)
        elif kind == "norm":
            ones = np.ones(shape[-1], dtype)
            made = (jnp.asarray(ones), jnp.asarray(0 * ones))
        elif kind == "dense":
            made = (random(shape[-1], sizes[0]), jnp.asarray(np.zeros(sizes[0], dtype)))
            shape = (sizes[0],)
        elif kind == "maximum":
            shape = (*((side - 1) // sizes[1] + 1 for side in shape[:2]), shape[-1])
        elif kind == "mean":
            shape = shape[-1:]
        elif kind == "flatten":
            shape = (shape[0] * shape[1] * shape[2],)
        elif kind == "beside":
            path, after = _start(sizes[0], shape, dtype, source)
            made = (path, _start(sizes[1], shape, dtype, source)[0])
            shape = after
        found.append(made)
    return found, shape


def forward(layers: Layers, weights: Weights, x: Any) -> Any:
    """What the layers make of the inputs, in the dtype of the weights."""
    import jax
    import jax.numpy as jnp

    for (kind, *sizes), own in zip(layers, weights):
        if kind == "conv":
            edge, stride = sizes[1] // 2, sizes[2]
            kinds = ("NHWC", "HWIO", "NHWC")
            pads = ((edge, edge), (edge, edge))
            convolve: Any = jax.lax.conv_general_dilated
            x = convolve(x, own[0], (stride, stride), pads, dimension_numbers=kinds)
        elif kind == "norm":
            mean, spread = x.mean((0, 1, 2)), x.var((0, 1, 2))
            x = (x - mean) * jax.lax.rsqrt(spread + 1e-5) * own[0] + own[1]
        elif kind == "dense":
            x = x @ own[0] + own[1]
        elif kind == "maximum":
            edge = sizes[0] // 2
            around = ((0, 0), (edge, edge), (edge, edge), (0, 0))
            window, stride = (1, sizes[0], sizes[0], 1), (1, sizes[1], sizes[1], 1)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, stride, around)
        elif kind == "mean":
            x = x.mean((1, 2))
        elif kind == "flatten":
            x = x.reshape(x.shape[0], -1)
        elif kind == "beside":
            x = forward(sizes[0], own[0], x) + forward(sizes[1], own[1], x)
        else:
            x = jnp.tanh(x) if kind == "tanh" else jnp.maximum(x, 0)
    return x


def loss_of(network: Network, mixed: Optional[str] = None) -> Callable[..., Any]:
    """The mean of squares, of weights, inputs and targets; the layers compute in `mixed`."""

    def loss(weights: Weights, inputs: Any, targets: Any) -> Any:
        if mixed:
            weights, inputs = cast(weights, mixed), cast(inputs, mixed)
        found = forward(network.layers, weights, inputs).astype(targets.dtype)
        return ((found - targets) ** 2).mean()

    return loss


def cast(tree: Any, dtype: str) -> Any:
    """All arrays in another dtype."""
    import jax

    return jax.tree_util.tree_map(lambda values: values.astype(NAMES[dtype]), tree)


def stepper(
    loss: Callable[..., Any],
    *,
    optimiser: str = "sgd",
    rate: float = 0.1,
    decays: bool = False,
    gather: Callable[[Any], Any] = lambda grads: grads,
) -> Callable[..., Any]:
    """(weights, state, inputs, targets) to (weights, state, loss); the state is that of `at_rest`.

    `gather` combines the gradients of several devices.
    """
    import jax

    combine = jax.tree_util.tree_map

    def step(weights: Weights, state: Any, inputs: Any, targets: Any) -> Any:
        found, grads = jax.value_and_grad(loss)(weights, inputs, targets)
        grads = gather(grads)
        count, first, second = state
        now = rate * DECAY ** (count // 3) if decays else rate
        if optimiser == "adam":
            first = combine(lambda old, new: 0.9 * old + 0.1 * new, first, grads)
            second = combine(lambda old, new: 0.999 * old + 0.001 * new * new, second, grads)
            one, two = 1 - 0.9 ** (count + 1), 1 - 0.999 ** (count + 1)

            def change(weight: Any, mean: Any, square: Any) -> Any:
                moved = now * (mean / one) / ((square / two) ** 0.5 + 1e-7)
                return (weight - moved).astype(weight.dtype)

            weights = combine(change, weights, first, second)
        else:
            first = combine(lambda old, new: MOMENTUM * old + new, first, grads)
            weights = combine(lambda w, change: (w - now * change).astype(w.dtype), weights, first)
        return weights, (count + 1, first, second), found

    return step


def at_rest(weights: Weights) -> Any:
    """The optimiser's state before the first step: the steps taken, and two means of gradients."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def nothing(weight: Any) -> Any:
        return jnp.asarray(np.zeros(weight.shape, weight.dtype))

    means = (jax.tree_util.tree_map(nothing, weights) for _ in range(2))
    return (jnp.asarray(np.float32(0)), *means)


@functools.lru_cache(maxsize=None)
def _compiled(
    network: Network,
    mixed: Optional[str],
    optimiser: str,
    rate: float,
    decays: bool,  # noqa: FBT001
) -> Callable[..., Any]:
    """The step, which XLA compiles once for all trainers that take the same."""
    import jax

    step = stepper(loss_of(network, mixed), optimiser=optimiser, rate=rate, decays=decays)
    compiled: Callable[..., Any] = jax.jit(step)
    return compiled


class JaxTrainer(Trainer):
    """A compiled step on weights and a state that are handed on."""

    def build(self) -> None:
        """The weights, the optimiser's state and the key of the noise."""
        import jax

        with self.place.scope():
            self._weights = weights_of(self.network, self.dtype, self.seed)
            self._state = at_rest(self._weights)
            self._key = jax.random.PRNGKey(self.seed)
            self._step = _compiled(self.network, self.mixed, self.kind, self.rate, self.decays)

    def noisy(self, inputs: Any) -> Any:
        """The noise is the device's."""
        import jax

        with self.place.scope():
            self._key, key = jax.random.split(self._key)
            return inputs + (NOISE * jax.random.normal(key, inputs.shape)).astype(inputs.dtype)

    def step(self, inputs: Any, targets: Any) -> Any:
        """The arrays that a step gets are its own afterwards."""
        if self.computed_in == "nothing":
            self.computed_in = self._layers_dtype(inputs)
        with self.place.scope(), self._precision():
            self._weights, self._state, loss = self._step(
                self._weights, self._state, inputs, targets
            )
        return loss

    def _precision(self) -> Any:
        import jax

        exact = jax.default_matmul_precision("float32")
        return exact if self.exact else contextlib.nullcontext()

    def _layers_dtype(self, inputs: Any) -> str:
        """The dtype that the layers give."""
        from verify.backends.base import SHORT

        weights = self._weights
        if self.mixed:
            weights, inputs = cast(weights, self.mixed), cast(inputs, self.mixed)
        with self.place.scope():
            name = str(forward(self.network.layers, weights, inputs[:1]).dtype)
        return SHORT.get(name, name)

    def weights(self) -> List[Any]:
        """In the order of the layers."""
        return self._flat(self._weights)

    def _flat(self, tree: Any) -> List[Any]:
        import jax
        import numpy as np

        return [np.array(one, np.float64) for one in jax.tree_util.tree_leaves(tree)]

    def peak_bytes(self, data: Tuple[Any, Any]) -> Optional[int]:
        """XLA plans a program's memory ahead; older ones do not tell."""
        if not self.place.is_gpu:
            return None
        try:
            with self.place.scope():
                given = (self._weights, self._state, *data)
                step: Any = self._step
                plan = step.lower(*given).compile().memory_analysis()
            return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)
        except Exception:
            return None

    def state(self) -> Dict[str, Any]:
        """As NumPy's arrays."""
        import numpy as np

        return {
            "model": self._flat(self._weights),
            "optimizer": self._flat(self._state),
            "random state": [np.array(self._key)],
        }

    def save(self, path: str) -> None:
        """By numpy.savez: JAX has no format of its own."""
        import numpy as np

        parts = {"{} {}".format(name, i): one for name, i, one in self._parts()}
        with open(path, "wb") as file:
            np.savez(file, **parts)

    def _parts(self) -> List[Tuple[str, int, Any]]:
        import jax
        import numpy as np

        trees = {"model": self._weights, "optimizer": self._state, "random state": self._key}
        return [
            (name, i, np.asarray(one))
            for name, tree in trees.items()
            for i, one in enumerate(jax.tree_util.tree_leaves(tree))
        ]

    def load(self, path: str) -> str:
        """Back into arrays of the device."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        def back(name: str, tree: Any) -> Any:
            leaves, shape = jax.tree_util.tree_flatten(tree)
            read = [jnp.asarray(saved["{} {}".format(name, i)]) for i in range(len(leaves))]
            return jax.tree_util.tree_unflatten(shape, read)

        with np.load(path) as saved, self.place.scope():
            self._weights = back("model", self._weights)
            self._state = back("optimizer", self._state)
            self._key = back("random state", self._key)
        return "numpy.savez"
