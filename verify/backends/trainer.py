"""A network in training: what a framework's own trainer offers to checks."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from verify.workloads.networks import Network

RATES = {"sgd": 0.1, "adam": 0.01}
MOMENTUM = 0.9
DECAY = 0.9  # of the rate, each third step, where it is asked for
NOISE = 0.1
FIRST_SCALE = 2.0**22  # measured: a small model's gradients overflow fp16 down to 2**19


class Trainer:
    """A network on a device with its optimiser. The loss is the mean of squares.

    `mixed`: the dtype of the layers, with weights and loss in fp32, by the framework's own means.
    `exact`: without TF32. `decays`: the rate falls. Two with the same seed do the same.
    """

    def __init__(
        self,
        place: Any,
        network: Network,
        *,
        dtype: str = "fp32",
        mixed: Optional[str] = None,
        optimiser: str = "sgd",
        rate: Optional[float] = None,
        exact: bool = False,
        decays: bool = False,
        scale: float = FIRST_SCALE,
        seed: int = 7,
    ) -> None:
        self.place, self.network, self.dtype, self.mixed = place, network, dtype, mixed
        self.kind, self.rate = optimiser, RATES[optimiser] if rate is None else rate
        self.exact, self.decays, self.first_scale, self.seed = exact, decays, scale, seed
        self.computed_in = "nothing"  # the dtype of the layers' results, after a step
        self.build()

    def build(self) -> None:
        """Make the network and the optimiser."""
        raise NotImplementedError

    def data(
        self, rows: int, seed: int = 11, *, learnable: bool = True, distinct: int = 1 << 20
    ) -> Tuple[Any, Any]:
        """Inputs on the device, and targets: linear in them, so that they are learnt, or random.

        Beyond `distinct` rows they are repeated.
        """
        wanted, rows = rows, min(rows, distinct)
        size = 1
        for side in self.network.given:
            size *= side
        shapes = ((rows, size), (size if learnable else rows, self.network.outputs))
        inputs, targets = self.place.backend.draw(seed, *shapes)
        if learnable:
            targets = inputs @ targets * size**-0.5
        inputs = inputs.reshape(rows, *self.network.given)
        if wanted > rows:
            again = [row % rows for row in range(wanted)]
            inputs, targets = inputs[again], targets[again]
        return self.place.put(inputs, self.dtype), self.place.put(targets, self.dtype)

    def noisy(self, inputs: Any) -> Any:
        """The inputs with noise from the random state, which a checkpoint holds too."""
        raise NotImplementedError

    def step(self, inputs: Any, targets: Any) -> Any:
        """Take a step and return the loss before it, which may still be on the device."""
        raise NotImplementedError

    def steps(self, count: int, data: Tuple[Any, Any]) -> List[float]:
        """The losses of so many steps on the same data."""
        return [float(self.step(*data)) for _ in range(count)]

    def weights(self) -> List[Any]:
        """Copies of all weights, of the host."""
        raise NotImplementedError

    def scale(self) -> float:
        """The loss scale now; 1.0 without one."""
        return 1.0

    def peak_bytes(self, data: Tuple[Any, Any]) -> Optional[int]:
        """The most memory that a step holds; None where it is not known."""
        found: Optional[int] = self.place.peak_bytes(lambda: self.step(*data))
        return found

    def state(self) -> Dict[str, Any]:
        """A copy of all that a checkpoint contains, by part, of the host."""
        raise NotImplementedError

    def save(self, path: str) -> None:
        """Write a checkpoint by the framework's own means."""
        raise NotImplementedError

    def load(self, path: str) -> str:
        """The inverse of `save`; returns how it was done, in words."""
        raise NotImplementedError

    def misread(self, folder: str) -> Tuple[str, ...]:  # noqa: ARG002
        """Further formats of the framework that do not keep the weights."""
        return ()
