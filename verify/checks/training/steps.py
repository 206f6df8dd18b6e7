"""The same few training steps in several ways, and the judge that compares them.

All is float64: a different order of sums then changes weights by some 1e-13, while a gradient that
is lost, summed instead of averaged, or from another rank's data changes a weight by 1e-3 and more.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.backends.pytorch import Place
from verify.model.check import Outcome, Status
from verify.workloads.modules import module
from verify.workloads.networks import dense

STEPS = {"quick": 2, "standard": 5, "full": 50}
BATCH = 8  # rows of each device
SIZES = (8, 16, 4)  # inputs, hidden, outputs
# Sums here have at most 256 terms of about 1, so another order moves them by 256 * 2^-53 = 3e-14 at
# most; momentum and 50 steps make a thousandfold of it, at most.
TOLERANCE = 1e-9

Weights = Mapping[str, Sequence[float]]


def model(place: Place, layers: int = 2) -> Any:
    """The same model in every process: `layers` linear layers, at even indices, tanh between."""
    import torch

    torch.manual_seed(7)
    network = dense((SIZES[0], *[SIZES[1]] * (layers - 1), SIZES[2]))
    return module(network).to(place.device, torch.float64)


def batches(count: int, rows: int, place: Place) -> "List[Tuple[Any, Any]]":
    """The same data in every process: (inputs, targets) of each step, `rows` rows of them."""
    shapes = ((rows, SIZES[0]), (rows, SIZES[2])) * count
    drawn = [place.put(numbers, "fp64") for numbers in place.backend.draw(11, *shapes)]
    return list(zip(drawn[::2], drawn[1::2]))


def share(batch: "Tuple[Any, Any]", index: int) -> "Tuple[Any, Any]":
    """The rows of one rank."""
    rows = slice(index * BATCH, (index + 1) * BATCH)
    return batch[0][rows], batch[1][rows]


def loss_of(output: Any, target: Any) -> Any:
    """The mean over rows, so that the mean of equal parts' losses is the whole's."""
    import torch

    return torch.nn.functional.mse_loss(output, target)


def optimiser(parameters: Any) -> Any:
    """SGD with momentum, so that the effect of a single wrong step stays visible."""
    import torch

    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(
    forward: Any, data: "Sequence[Tuple[Any, Any]]", parameters: Optional[Any] = None
) -> List[float]:
    """Take a step for each batch and return the losses."""
    steps = optimiser(forward.parameters() if parameters is None else parameters)
    losses = []
    for inputs, target in data:
        steps.zero_grad()
        loss = loss_of(forward(inputs), target)
        loss.backward()
        steps.step()
        losses.append(float(loss.item()))
    return losses


def alone(place: Place, count: int, ranks: int, layers: int = 2) -> Dict[str, Any]:
    """One device's result for the data of all ranks together."""
    whole = model(place, layers)
    before = weights_of(whole)
    losses = train(whole, batches(count, BATCH * ranks, place))
    return {"before": before, "losses": losses, "weights": weights_of(whole)}


def reference(place: Any, count: int, ranks: int) -> "Tuple[Dict[str, Any], List[Tuple[Any, Any]]]":
    """One device's result for the data of all ranks together, by the framework's trainer, and the
    data.
    """
    trainer = place.backend.trainer(place, dense(SIZES), dtype="fp64")
    before = named(trainer.weights())
    data = [trainer.data(BATCH * ranks, seed=number) for number in range(count)]
    losses = [float(trainer.step(*batch)) for batch in data]
    return {"before": before, "losses": losses, "weights": named(trainer.weights())}, data


def named(weights: Sequence[Any]) -> Dict[str, List[float]]:
    """Every weight by its place in the model."""
    return {"weight {}".format(i): one.reshape(-1).tolist() for i, one in enumerate(weights)}


def weights_of(module: Any, rename: Callable[[str], str] = str) -> Dict[str, List[float]]:
    """Every weight by its name."""
    return {
        rename(name): [float(number) for number in weight.detach().cpu().flatten().tolist()]
        for name, weight in module.named_parameters()
    }


# The judge


def judge(
    what: str,
    reference: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
    words: str,
) -> Outcome:
    """Whether each run's losses and weights are those of one device.

    `runs` has {"losses", "weights"} of each rank; a rank's losses are those of its own rows.
    """
    aim = {"difference": TOLERANCE}
    apart, where = _largest([run["weights"] for run in runs], runs[0]["weights"])
    off, at = _largest([run["weights"] for run in runs], reference["weights"])
    means = [sum(step) / len(runs) for step in zip(*(run["losses"] for run in runs))]
    loss = _difference(means, reference["losses"])
    told = {**measured, "steps": len(means), "difference": _json(max(off, loss))}
    frozen = [n for n, was in reference["before"].items() if list(was) == list(_named(runs, n))]
    fault = _fault(what, (apart, where), (off, at), loss, frozen)
    if fault:
        return Outcome(Status.FAIL, *fault, told, aim)
    near = "within {:.1e}".format(max(off, loss)) if max(off, loss) else "to the last bit"
    message = "{}: {} steps as on one device, {}, {}".format(what, len(means), near, words)
    return Outcome(Status.PASS, message, measured=told, expected=aim)


def _fault(
    what: str, apart: "Tuple[float, str]", off: "Tuple[float, str]", loss: float, frozen: List[str]
) -> "Optional[Tuple[str, str, str]]":
    again = "see collectives.operations; build the image again if it passes"
    if not math.isfinite(max(apart[0], off[0], loss)):
        message = "{}: the weights or losses are not finite, or some are missing".format(what)
        return message, "data between the devices was corrupted or lost", again
    if apart[0] > TOLERANCE:
        message = "{}: the ranks' weights differ by {:.1e} in {}".format(what, *apart)
        return message, "gradients were not averaged over the ranks, or not on all of them", again
    if off[0] > TOLERANCE and frozen:
        message = "{}: {} never changed".format(what, ", ".join(frozen))
        return message, "this part of the model received no gradient", again
    if off[0] > TOLERANCE:
        message = "{}: after the steps {} is off by {:.1e}".format(what, off[1], off[0])
        cause = "the parts agree with each other: their gradients were combined wrongly"
        return message, cause, again
    if loss > TOLERANCE:
        message = "{}: the losses differ from one device's by {:.1e}".format(what, loss)
        return message, "the forward pass mixed up or lost rows of the data", again
    return None


def _named(runs: Sequence[Mapping[str, Any]], name: str) -> Sequence[float]:
    found: Sequence[float] = runs[0]["weights"].get(name, ())
    return found


def _largest(several: Sequence[Weights], known: Weights) -> Tuple[float, str]:
    """The largest difference, and in which weight; infinite where one is missing."""
    found = [
        (_difference(weights.get(name, ()), numbers), name)
        for weights in several
        for name, numbers in known.items()
    ]
    return max(found, default=(math.inf, "every weight"))


def _difference(got: Sequence[float], known: Sequence[float]) -> float:
    if len(got) != len(known) or not known:
        return math.inf
    found = [abs(a - b) for a, b in zip(got, known)]
    return max(found) if all(math.isfinite(d) for d in found) else math.inf


def _json(value: float) -> Optional[float]:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
