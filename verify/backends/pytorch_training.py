"""PyTorch's trainer: torch's modules, optimisers, autocast and gradient scaler."""

from __future__ import annotations

import contextlib
import copy
import pickle
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from verify.backends.base import NAMES, SHORT
from verify.backends.trainer import DECAY, MOMENTUM, NOISE, Trainer
from verify.workloads.modules import module


class TorchTrainer(Trainer):
    """A training step as PyTorch's own guides write it, also for mixed precision."""

    def build(self) -> None:
        """The module, its optimiser, the scaler and the schedule."""
        import torch

        if self.exact:
            self.place.backend.allow_tf32(on=False)
        torch.manual_seed(self.seed)
        self._model = module(self.network).to(self.place.device, getattr(torch, NAMES[self.dtype]))
        weights = self._model.parameters()
        if self.kind == "adam":
            self._optimiser: Any = torch.optim.Adam(weights, lr=self.rate)
        else:
            self._optimiser = torch.optim.SGD(weights, lr=self.rate, momentum=MOMENTUM)
        self._scaler = make_scaler(
            self.place.kind, enabled=self.mixed == "fp16", first_scale=self.first_scale
        )
        steps = torch.optim.lr_scheduler.StepLR
        self._schedule = steps(self._optimiser, 3, DECAY) if self.decays else None

    def noisy(self, inputs: Any) -> Any:
        """The noise is the CPU's."""
        import torch

        return inputs + NOISE * torch.randn(inputs.shape).to(self.place.device)

    def data(self, rows: int, seed: int = 11, **more: Any) -> Tuple[Any, Any]:
        """Images are channels first, as the modules need them."""
        inputs, targets = super().data(rows, seed, **more)
        return inputs.permute(0, 3, 1, 2) if inputs.dim() == 4 else inputs, targets

    def step(self, inputs: Any, targets: Any) -> Any:
        """Forward, backward, and the optimiser's step."""
        import torch

        self._optimiser.zero_grad(set_to_none=True)
        with self._autocast():
            result = self._model(inputs)
        self.computed_in = _short(result.dtype)
        loss = torch.nn.functional.mse_loss(result.to(targets.dtype), targets)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimiser)
        self._scaler.update()
        if self._schedule is not None:
            self._schedule.step()
        return loss.detach()

    def _autocast(self) -> Any:
        """autocast refuses float32 as its dtype even if it is not enabled."""
        import torch

        if self.mixed in (None, "fp32"):
            return contextlib.nullcontext()
        return torch.autocast(self.place.kind, dtype=getattr(torch, NAMES[self.mixed]))

    def weights(self) -> List[Any]:
        """Of the parameters, without a batch's statistics."""
        return [weight.detach().cpu().double().clone() for weight in self._model.parameters()]

    def scale(self) -> float:
        """The gradient scaler's."""
        return float(self._scaler.get_scale())

    def state(self) -> Dict[str, Any]:
        """As torch has it, on the CPU."""
        import torch

        random = {"cpu": torch.get_rng_state()}
        if self.place.is_gpu:
            random["cuda"] = torch.cuda.get_rng_state(self.place.index)
        parts = {
            "model": self._model.state_dict(),
            "optimizer": self._optimiser.state_dict(),
            "random state": random,
        }
        if self._schedule is not None:
            parts["schedule"] = self._schedule.state_dict()
        return copy.deepcopy(parts)

    def save(self, path: str) -> None:
        """By torch.save."""
        import torch

        torch.save(self.state(), path)

    def load(self, path: str) -> str:
        """By torch.load."""
        import torch

        state, how = _load(path)
        self._model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimizer"])
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random state"]["cpu"])
        if self.place.is_gpu:
            torch.cuda.set_rng_state(state["random state"]["cuda"], self.place.index)
        return how


def _short(dtype: Any) -> str:
    name = str(dtype).replace("torch.", "")
    return SHORT.get(name, name)


def make_scaler(kind: str, *, enabled: bool, first_scale: float) -> Any:
    """torch.amp.GradScaler since 2.3; before, only CUDA's."""
    import torch

    general: Optional[Callable[..., Any]] = getattr(torch.amp, "GradScaler", None)
    if general is not None:
        return general(kind, init_scale=first_scale, enabled=enabled)
    return torch.cuda.amp.GradScaler(init_scale=first_scale, enabled=enabled and kind == "cuda")


def _load(path: str) -> Tuple[Mapping[str, Any], str]:
    """Load with weights_only, which runs no code from the file; torch 1.13's can't read a float."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True), "loaded weights only"
    except pickle.UnpicklingError as error:
        if "Unsupported operand" not in str(error):
            raise
    return torch.load(path, map_location="cpu", weights_only=False), "loaded as a pickle"
