"""Faults of training: optimisers, gradients, the scaler and autocast."""

from __future__ import annotations

from typing import Any, Callable

from tests.mutations import rows
from tests.mutations.numerics import as_tf32, gpus


def freeze_the_optimiser() -> None:
    """Steps that change nothing."""
    import torch

    torch.optim.Adam.step = lambda *_: None
    torch.optim.SGD.step = lambda *_: None


def spoil_the_loss(name: str, spoil: Callable[[Any], Any]) -> None:
    """Put another loss in the place of torch's own."""
    import torch

    true = getattr(torch.nn.functional, name)
    setattr(torch.nn.functional, name, lambda *given: spoil(true(*given)))


def make_the_loss_nan() -> None:
    """A loss that is not a number."""
    spoil_the_loss("mse_loss", lambda loss: loss * float("nan"))


def shift_the_loss() -> None:
    """fp32 losses are off by a thousandth, and their gradients are not."""
    import torch

    spoil_the_loss(
        "mse_loss",
        lambda loss: loss + 1e-3 * loss.detach() if loss.dtype is torch.float32 else loss,
    )


def a_gpu() -> None:
    """A GPU whose steps run on the CPU."""
    from verify.backends import pytorch

    vars(pytorch.BACKEND)["every"] = lambda _: (None, gpus(1, (8, 0)))


def scale_gradients() -> None:
    """fp32 gradients are off by a thousandth."""
    import torch

    true = torch.optim.SGD.step

    def step(self: Any) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.dtype is torch.float32:
                    weight.grad.mul_(1.001)
        return true(self)

    torch.optim.SGD.step = step


def round_layers() -> None:
    """fp32 layers compute with the few bits of TF32."""
    import torch

    def rounded(true: Callable[..., Any]) -> Callable[..., Any]:
        def layer(given: Any, weight: Any, *more: Any) -> Any:
            rough = given.dtype is torch.float32
            pair = (as_tf32(given), as_tf32(weight)) if rough else (given, weight)
            return true(*pair, *more)

        return layer

    torch.nn.functional.linear = rounded(torch.nn.functional.linear)
    torch.nn.functional.conv2d = rounded(torch.nn.functional.conv2d)


def end_in_infinity() -> None:
    """A weight becomes infinite."""
    import torch

    true = torch.optim.SGD.step

    def step(self: Any) -> Any:
        for group in self.param_groups:
            weight = group["params"][0]
            if weight.dtype is torch.float32:
                weight.data.view(-1)[0] = float("inf")
        return true(self)

    torch.optim.SGD.step = step


def never_unscale() -> None:
    """The scaler looks for overflows, and leaves the gradients as large as they are."""
    _unscale_with(lambda found, _: found, keep=True)


def miss_overflows() -> None:
    """The scaler takes infinite gradients for finite ones."""
    _unscale_with(lambda found, _: {device: flag * 0 for device, flag in found.items()})


def always_overflow() -> None:
    """The scaler takes every gradient for infinite."""
    _unscale_with(lambda found, _: {device: flag * 0 + 1 for device, flag in found.items()})


def lose_most_of_each_gradient() -> None:
    """The scaler divides by ten times its scale."""

    def spoil(found: Any, optimiser: Any) -> Any:
        for group in optimiser.param_groups:
            for weight in group["params"]:
                weight.grad.mul_(0.1)
        return found

    _unscale_with(spoil)


def _unscale_with(spoil: Callable[[Any, Any], Any], *, keep: bool = False) -> None:
    from torch.amp.grad_scaler import GradScaler

    true = GradScaler._unscale_grads_

    def unscale(self: Any, optimiser: Any, inverse: Any, *more: Any) -> Any:
        return spoil(true(self, optimiser, inverse * 0 + 1 if keep else inverse, *more), optimiser)

    GradScaler._unscale_grads_ = unscale


def start_small() -> None:
    """The scaler skips no step, since it starts with no scale at all."""
    from verify.backends import pytorch_training

    true = pytorch_training.make_scaler
    change = lambda kind, **more: true(kind, **{**more, "first_scale": 1.0})  # noqa: E731
    vars(pytorch_training)["make_scaler"] = change


def compute_in_fp32() -> None:
    """Autocast does nothing."""
    import torch

    torch.autocast.__enter__ = lambda self: self
    torch.autocast.__exit__ = lambda *_: None


PYTORCH = (
    *rows(
        "training.loss",
        (
            "the optimiser's steps have no effect",
            freeze_the_optimiser,
            "gradients or the optimiser",
        ),
        ("the loss is NaN", make_the_loss_nan, "loss is nan"),
    ),
    *rows(
        "training.same",
        ("gradients are off by a thousandth in fp32", scale_gradients, "weights end"),
        ("the optimiser's steps have no effect", freeze_the_optimiser, "did not change any weight"),
        ("a weight becomes infinite", end_in_infinity, "NaN or infinity"),
        ("losses are off by a thousandth in fp32", shift_the_loss, "losses are"),
    ),
    *rows("training.same", ("TF32 is used on a GPU", round_layers, "TF32 was used"), sound=a_gpu),
    *rows(
        "training.amp",
        ("autocast does nothing", compute_in_fp32, "the layers computed in fp32"),
        ("the scaler never unscales", never_unscale, "not unscaled"),
        ("the scaler misses overflows", miss_overflows, "NaN or infinite"),
        ("the scaler does not settle", always_overflow, "still skipped"),
        ("the scaler makes gradients small", lose_most_of_each_gradient, "fp16: the loss"),
        ("no overflow is provoked", start_small, "skipped no step"),
        ("the loss is NaN", make_the_loss_nan, "NaN or infinite"),
        ("the optimiser's steps have no effect", freeze_the_optimiser, "not down"),
    ),
)
ROWS = {"pytorch": PYTORCH}
