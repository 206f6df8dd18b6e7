"""Training: forward, backward and an optimiser's steps make a small model better."""

from __future__ import annotations

import math
from typing import Any, List, Sequence, Union

from verify.checks.place import find
from verify.core import Check, Context, Outcome, Status

STEPS = {"quick": 50, "standard": 200, "full": 2000}
AGAIN = "look at what devices.kernel and devices.convolution say; build the image again"
FACTOR = 10.0  # measured on a CPU: 200 steps give a factor of about 330


def check_loss(context: Context) -> Outcome:
    """Train on the first GPU, or on the CPU where nothing hints at a GPU."""
    broken, place = find(context)
    return broken or judge_loss(_train(place.kind, STEPS[context.level]), place.kind)


def _train(device: str, steps: int) -> List[float]:
    import torch

    torch.manual_seed(7)
    inputs = torch.randn(256, 8)
    target = (inputs @ torch.randn(8, 1)).tanh().to(device)
    inputs = inputs.to(device)
    layers = torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    model = torch.nn.Sequential(*layers).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.item()))
    return losses


def judge_loss(losses: Sequence[float], device: str) -> Outcome:
    """Finite all along, and smaller by the factor in the end."""
    measured = {"device": device, "steps": len(losses)}
    expected = {"factor": FACTOR}
    if not losses:
        return Outcome(Status.FAIL, "no step was made", "no losses", AGAIN, measured, expected)
    first, last = losses[0], losses[-1]
    measured.update(first=_number(first), last=_number(last))
    strange = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if strange is not None:
        message = "the loss is {} at step {}".format(losses[strange], strange)
        cause = "arithmetic went wrong: a model this small does not overflow"
        fix = "look at what devices.kernel says; take the GPU out of use if it fails too"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    if last * FACTOR > first:
        message = "the loss went from {:.3g} to {:.3g}, not down {:.0f}-fold".format(
            first, last, FACTOR
        )
        cause = "gradients or the optimiser's steps are wrong"
        return Outcome(Status.FAIL, message, cause, AGAIN, measured, expected)
    where = "on the GPU" if device == "cuda" else "on the CPU: no GPU visible"
    said = "loss from {:.3g} to {:.3g} in {} steps, {}"
    message = said.format(first, last, len(losses), where)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _number(value: float) -> Union[float, str]:
    """JSON has no NaN and no infinity."""
    kept: Any = value if math.isfinite(value) else repr(value)
    return kept  # type: ignore[no-any-return]


CHECKS = (Check("training.loss", "A model's loss falls", check_loss, "standard", 120, gpu=True),)
