"""A small network and its training steps in plain JAX, without other packages.

Weights and data come from NumPy, so they are the same on every device and in every process.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

Weights = List[Tuple[Any, Any]]  # (matrix, offset) of each layer


def weights(sizes: Sequence[int], dtype: str = "float32", seed: int = 7) -> Weights:
    """Of the size that keeps what goes through them at size 1."""
    import jax.numpy as jnp
    import numpy as np

    source = np.random.default_rng(seed)
    return [
        (
            jnp.asarray((source.standard_normal((left, right)) * left**-0.5).astype(dtype)),
            jnp.asarray(np.zeros(right, dtype)),
        )
        for left, right in zip(sizes, sizes[1:])
    ]


def data(rows: int, width: int, outputs: int, dtype: str, seed: int = 11) -> Tuple[Any, Any]:
    """Inputs, and smooth targets that a small network can learn."""
    import jax.numpy as jnp
    import numpy as np

    source = np.random.default_rng(seed)
    inputs = source.standard_normal((rows, width))
    targets = np.tanh(inputs @ source.standard_normal((width, outputs)) / 4)
    return jnp.asarray(inputs.astype(dtype)), jnp.asarray(targets.astype(dtype))


def forward(layers: Weights, inputs: Any) -> Any:
    """Dense layers with tanh between them, in the dtype of what they are given."""
    import jax.numpy as jnp

    for matrix, offset in layers[:-1]:
        inputs = jnp.tanh(inputs @ matrix + offset)
    matrix, offset = layers[-1]
    return inputs @ matrix + offset


def loss(layers: Weights, inputs: Any, targets: Any) -> Any:
    """The mean square."""
    return ((forward(layers, inputs) - targets) ** 2).mean()


def start(layers: Weights) -> Any:
    """The optimiser's state before the first step: no momentum."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def nothing(weight: Any) -> Any:
        return jnp.asarray(np.zeros(weight.shape, weight.dtype))

    return jax.tree_util.tree_map(nothing, layers)


def stepper(
    value: Callable[..., Any] = loss,
    rate: float = 0.1,
    gather: Callable[[Any], Any] = lambda grads: grads,
) -> Callable[..., Any]:
    """SGD with momentum: (weights, state, inputs, targets) to (weights, state, loss).

    `gather` combines the gradients of several devices.
    """
    import jax

    def step(layers: Weights, state: Any, inputs: Any, targets: Any) -> Any:
        found, grads = jax.value_and_grad(value)(layers, inputs, targets)
        grads = gather(grads)
        combine = jax.tree_util.tree_map
        state = combine(lambda old, new: 0.9 * old + new, state, grads)
        layers = combine(lambda weight, change: weight - rate * change, layers, state)
        return layers, state, found

    return step


def vector(layers: Weights) -> Any:
    """Every weight in one array of float64."""
    import numpy as np

    return np.concatenate([np.asarray(w, np.float64).reshape(-1) for row in layers for w in row])


def named(layers: Weights) -> Dict[str, List[float]]:
    """Every weight by its place in the model."""
    import numpy as np

    kinds = ("matrix", "offset")
    return {
        "{} {}".format(kind, i): np.asarray(weight, np.float64).reshape(-1).tolist()
        for i, row in enumerate(layers)
        for kind, weight in zip(kinds, row)
    }
