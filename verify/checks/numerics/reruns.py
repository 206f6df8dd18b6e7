"""PyTorch training repeated: twice from one seed, and resumed from a checkpoint.

The network has what makes runs differ: sums in no fixed order (index_add), dropout on the device,
noise on the CPU, a schedule, and an optimiser with state.
"""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from typing import Any, Dict, List, Mapping, Tuple

from verify.backends.pytorch import Place, find
from verify.checks.numerics.repeats import Repeat, ResumedRun, judge_checkpoint, judge_repeats
from verify.model.check import Check, Context, Outcome
from verify.running.children import scratch

STEPS = {"quick": 4, "standard": 20, "full": 100}
_ROWS, _TOKENS, _WIDTH = 32, 16, 32


def check_determinism(context: Context) -> Outcome:
    """Train twice with the defaults, and twice with determinism requested."""
    # cuBLAS reads this when it starts: with several workspaces the order of sums may vary.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    broken, place = find(context)
    if broken:
        return broken
    steps = STEPS[context.level]
    _ask_for_determinism(asked=False)
    free = Repeat.of(_trained(place, steps), _trained(place, steps))
    _ask_for_determinism(asked=True)
    asked = Repeat.of(_trained(place, steps), _trained(place, steps))
    return judge_repeats(asked, free, place.kind, steps)


def _ask_for_determinism(*, asked: bool) -> None:
    import torch

    torch.use_deterministic_algorithms(asked)
    torch.backends.cudnn.benchmark = False  # it would choose kernels by timing
    torch.backends.cudnn.deterministic = asked


def _trained(place: Place, steps: int) -> List[Any]:
    run = _Run(place, 7)
    run.go(0, steps)
    return run.weights()


class _Run:
    """A model in training, and all that its checkpoint must contain."""

    def __init__(self, place: Place, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self._place = place
        self._model = _network().to(place.device)
        parameters = self._model.parameters()
        self._optimiser = torch.optim.Adam(parameters, lr=0.01)
        self._schedule = torch.optim.lr_scheduler.StepLR(self._optimiser, step_size=3, gamma=0.9)

    def go(self, first: int, last: int) -> None:
        """Take the steps with these numbers: a step's data depend only on its number."""
        import torch

        device = self._place.device
        for number in range(first, last):
            generator = torch.Generator().manual_seed(number)
            tokens = torch.randint(0, 64, (_ROWS, _TOKENS), generator=generator).to(device)
            images = torch.randn(_ROWS, 3, 8, 8, generator=generator)
            images = (images + 0.1 * torch.randn(images.shape)).to(device)
            target = torch.randint(0, 10, (_ROWS,), generator=generator).to(device)
            self._optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(self._forward(tokens, images), target)
            loss.backward()
            self._optimiser.step()
            self._schedule.step()

    def _forward(self, tokens: Any, images: Any) -> Any:
        """Tokens are summed by row with index_add, which on a GPU adds in the order of arrival."""
        import torch

        found = self._model["tokens"](tokens).reshape(-1, _WIDTH)
        rows = torch.arange(_ROWS, device=tokens.device).repeat_interleave(_TOKENS)
        sums = torch.zeros(_ROWS, _WIDTH, device=tokens.device).index_add(0, rows, found)
        seen = self._model["images"](images).mean((2, 3))
        return self._model["head"](torch.cat([sums, seen], 1))

    def weights(self) -> List[Any]:
        """Copies of all weights, on the CPU."""
        return [weight.detach().cpu().clone() for weight in self._model.parameters()]

    def state(self) -> Dict[str, Any]:
        """A copy of everything that a checkpoint contains, on the CPU."""
        import torch

        random = {"cpu": torch.get_rng_state()}
        if self._place.is_gpu:
            random["cuda"] = torch.cuda.get_rng_state(self._place.index)
        parts = {
            "model": self._model.state_dict(),
            "optimizer": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
            "random state": random,
        }
        return copy.deepcopy(parts)

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        import torch

        self._model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random state"]["cpu"])
        if self._place.is_gpu:
            torch.cuda.set_rng_state(state["random state"]["cuda"], self._place.index)


def _network() -> Any:
    import torch

    images = (
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, _WIDTH, 3, stride=2),
    )
    head = (
        torch.nn.Linear(2 * _WIDTH, _WIDTH),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(_WIDTH, 10),
    )
    parts = {
        "tokens": torch.nn.Embedding(64, _WIDTH),
        "images": torch.nn.Sequential(*images),
        "head": torch.nn.Sequential(*head),
    }
    return torch.nn.ModuleDict(parts)


def check_checkpoint(context: Context) -> Outcome:
    """Save during training, restore into new objects and continue: the bits must be the same."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    broken, place = find(context)
    if broken:
        return broken
    _ask_for_determinism(asked=True)
    folder = scratch()
    try:
        resumed = _resume(place, os.path.join(folder, "checkpoint.pt"), STEPS[context.level])
        return judge_checkpoint(resumed, place.kind)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resume(place: Place, path: str, steps: int) -> ResumedRun:
    """The first run ends before the second begins: they share the random numbers' state."""
    import torch

    first = _Run(place, 7)
    first.go(0, steps)
    saved, before = first.state(), first.weights()
    torch.save(saved, path)
    first.go(steps, 2 * steps)
    second = _Run(place, 8)
    loaded, how = _load(path)
    second.restore(loaded)
    back = second.state()
    lost = tuple(name for name in saved if not _equal(saved[name], back[name]))
    second.go(steps, 2 * steps)
    ends = Repeat.of(first.weights(), second.weights())
    moved = not _equal(before, first.weights())
    return ResumedRun(ends, moved, lost, os.path.getsize(path), how)


def _load(path: str) -> Tuple[Any, str]:
    """Load with weights_only, which runs no code from the file; torch 1.13's can't read a float."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True), "loaded weights only"
    except pickle.UnpicklingError as error:
        if "Unsupported operand" not in str(error):
            raise
    return torch.load(path, map_location="cpu", weights_only=False), "loaded as a pickle"


def _equal(one: Any, other: Any) -> bool:
    """Of tensors, and of what a state holds besides: numbers, lists, dictionaries."""
    import torch

    if torch.is_tensor(one):
        return bool(torch.is_tensor(other) and torch.equal(one.cpu(), other.cpu()))
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
