"""Faults of training."""

from __future__ import annotations

from tests.mutations import Row


def freeze_the_optimiser() -> None:
    """Steps that change nothing."""
    import torch

    torch.optim.Adam.step = lambda *_: None


ROWS = {
    "pytorch": (
        Row(
            "training.loss",
            "the optimiser's steps change nothing",
            freeze_the_optimiser,
            "gradients or the optimiser",
            on_cpu=True,
        ),
    )
}
