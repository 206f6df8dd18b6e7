"""Networks to measure with, defined here because an image with torch need not have torchvision.

Each function returns a `Model` on the CPU, in training mode, in float32. Its batches are random and
need no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Tuple

from verify.workloads import networks
from verify.workloads.modules import module

CLASSES = 1000


@dataclass(frozen=True)
class Model:
    """A module with what is needed to train it.

    `make_batch(n, device)` returns (inputs, target) for n samples on that device; `loss(module,
    batch)` runs the module forward and returns the scalar to call backward on.
    """

    module: Any  # torch.nn.Module
    make_batch: Callable[[int, Any], Tuple[Any, Any]]
    loss: Callable[[Any, Tuple[Any, Any]], Any]


def small_net() -> Model:
    """`networks.small`, for classes."""
    return Model(module(networks.small()), _images(32, 10), _cross_entropy)


def large_net() -> Model:
    """`networks.large`: ResNet-50."""
    return Model(module(networks.large()), _images(224, CLASSES), _cross_entropy)


def transformer_block(width: int = 1024, heads: int = 16, length: int = 512) -> Model:
    """One encoder block with the norm first: attention over `length` tokens, and a 4-fold MLP.

    A sample is one sequence of `length` x `width` floats; the target has the same shape.
    """
    import torch

    block = torch.nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )

    def make_batch(n: int, device: Any) -> Tuple[Any, Any]:
        shape = (n, length, width)
        return torch.randn(shape, device=device), torch.randn(shape, device=device)

    return Model(block, make_batch, _mean_squares)


NAMED: Dict[str, Callable[[], Model]] = {
    "small": small_net,
    "resnet50": large_net,
    "transformer": transformer_block,
}


def _images(size: int, classes: int) -> Callable[[int, Any], Tuple[Any, Any]]:
    def make_batch(n: int, device: Any) -> Tuple[Any, Any]:
        import torch

        images = torch.randn(n, 3, size, size, device=device)
        return images, torch.randint(classes, (n,), device=device)

    return make_batch


def _cross_entropy(module: Any, batch: Tuple[Any, Any]) -> Any:
    import torch

    inputs, target = batch
    return torch.nn.functional.cross_entropy(module(inputs), target)


def _mean_squares(module: Any, batch: Tuple[Any, Any]) -> Any:
    import torch

    inputs, target = batch
    return torch.nn.functional.mse_loss(module(inputs), target)
