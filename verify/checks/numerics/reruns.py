"""Training repeated: twice from one seed, and resumed from a checkpoint.

The network has what makes runs differ: a batch's statistics, noise, a rate that falls, an optimiser
with state, and where the framework can be asked to order them, sums in no fixed order.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, List, Mapping, Optional

from verify.backends.base import of
from verify.backends.each_gpu import on_each
from verify.backends.trainer import Trainer
from verify.checks.numerics.repeats import Repeat, ResumedRun, judge_checkpoint, judge_repeats
from verify.model.check import Check, Context, Outcome, Status
from verify.running.children import Child, scratch
from verify.workloads.networks import varied

STEPS = {"quick": 4, "standard": 20, "full": 100}
FREE_LIMIT_S = 60.0
_ROWS = 32


def check_determinism(context: Context) -> Outcome:
    """Train twice with the defaults, in a child since some settings are read once, when the device
    starts; then twice on each GPU with determinism requested.
    """
    ending = Child(lambda: _free(context)).wait(FREE_LIMIT_S)
    said = ending.value
    free = Repeat(**dict(said, largest=float(said["largest"]))) if said else None
    reason = of(context).ask_for_determinism()
    if reason:
        return Outcome(Status.SKIP, reason)

    def repeat(own: Context, place: Any) -> Outcome:
        steps = STEPS[own.level]
        beside = None if place.index else free
        return judge_repeats(_twice(place, steps), beside, place.kind, steps)

    return on_each(context, repeat)


def _free(context: Context) -> Optional[Dict[str, Any]]:
    """Of the first GPU: it only says what the request is worth."""
    broken, place = of(context).find(context)
    return None if broken else dict(_twice(place, STEPS[context.level]).measured())


def _twice(place: Any, steps: int) -> Repeat:
    return Repeat.of(*(_trained(place, steps) for _ in range(2)))


def _trained(place: Any, steps: int) -> List[Any]:
    trainer = _trainer(place, 7)
    _go(trainer, 0, steps)
    return trainer.weights()


def _trainer(place: Any, seed: int) -> Trainer:
    network = varied(unordered=place.backend.unordered)
    found: Trainer = place.backend.trainer(place, network, optimiser="adam", decays=True, seed=seed)
    return found


def _go(trainer: Trainer, first: int, last: int) -> None:
    """Take the steps with these numbers: a step's data depend only on its number."""
    for number in range(first, last):
        inputs, targets = trainer.data(_ROWS, seed=number)
        trainer.step(trainer.noisy(inputs), targets)


def check_checkpoint(context: Context) -> Outcome:
    """Save during training, restore into new objects and continue: the bits must be the same."""
    backend = of(context)
    backend.ask_for_determinism()
    broken, place = backend.find(context)
    if broken:
        return broken
    folder = scratch()
    try:
        return judge_checkpoint(_resume(place, folder, STEPS[context.level]), place.kind)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resume(place: Any, folder: str, steps: int) -> ResumedRun:
    """The first run ends before the second begins: they may share the random numbers' state."""
    first = _trainer(place, 7)
    _go(first, 0, steps)
    saved, before = first.state(), first.weights()
    path = os.path.join(folder, "checkpoint")
    first.save(path)
    misread = first.misread(folder)
    _go(first, steps, 2 * steps)
    second = _trainer(place, 8)
    how = second.load(path)
    back = second.state()
    lost = tuple(name for name in saved if not _equal(saved[name], back[name]))
    _go(second, steps, 2 * steps)
    ends = Repeat.of(first.weights(), second.weights())
    moved = not _equal(before, first.weights())
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    return ResumedRun(ends, moved, (*lost, *misread), size, how)


def _equal(one: Any, other: Any) -> bool:
    """Of arrays, and of what a state holds besides: numbers, lists, dictionaries."""
    shape: Optional[Any] = getattr(one, "shape", None)
    if shape is not None:
        return shape == getattr(other, "shape", None) and bool((one == other).all())
    if isinstance(one, Mapping):
        return bool(one.keys() == other.keys()) and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


CHECKS = (
    Check("numerics.determinism", "Training is reproducible", check_determinism, "standard", 180),
    Check(
        "numerics.checkpoint",
        "A checkpoint restores the whole state",
        check_checkpoint,
        "standard",
        180,
    ),
)
