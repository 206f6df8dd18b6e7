"""Networks to measure with, defined here because an image with torch need not have torchvision.

Each function returns a `Model` on the CPU, in training mode, in float32. Its batches are random and
need no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Tuple

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
    """Ten layers with weights (9 convolutions and 1 linear) for 3 x 32 x 32 images, 10 classes."""
    import torch

    nn = torch.nn
    layers = []
    channels = 3
    for width in (32, 64, 128):
        for i in range(3):
            stride = 2 if i == 0 and width > 32 else 1
            layers += [*_convolution(channels, width, 3, stride), nn.ReLU(inplace=True)]
            channels = width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return Model(nn.Sequential(*layers, *head), _images(32, 10), _cross_entropy)


def large_net() -> Model:
    """ResNet-50 for 3 x 224 x 224 images and 1000 classes: 50 layers, 25 557 032 weights.

    He et al., "Deep Residual Learning for Image Recognition" (2015), table 1, with the stride in
    the 3 x 3 convolution as torchvision and NVIDIA's examples have it ("v1.5").
    """
    import torch

    nn = torch.nn
    stem = (*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks = []
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            blocks.append(_bottleneck(channels, width, stride if i == 0 else 1))
            channels = 4 * width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))
    return Model(nn.Sequential(*stem, *blocks, *head), _images(224, CLASSES), _cross_entropy)


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


def _convolution(channels: int, width: int, window: int, stride: int) -> "Tuple[Any, Any]":
    import torch

    conv = torch.nn.Conv2d(channels, width, window, stride=stride, padding=window // 2, bias=False)
    return conv, torch.nn.BatchNorm2d(width)


def _bottleneck(channels: int, width: int, stride: int) -> Any:
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut, which is the identity if possible."""
    import torch

    nn = torch.nn

    class Bottleneck(torch.nn.Module):  # type: ignore[misc]  # it is Any without torch
        def __init__(self) -> None:
            super().__init__()
            self.path = nn.Sequential(
                *_convolution(channels, width, 1, 1),
                nn.ReLU(inplace=True),
                *_convolution(width, width, 3, stride),
                nn.ReLU(inplace=True),
                *_convolution(width, 4 * width, 1, 1),
            )
            same = stride == 1 and channels == 4 * width
            fitted = nn.Sequential(*_convolution(channels, 4 * width, 1, stride))
            self.shortcut = nn.Identity() if same else fitted

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.path(x) + self.shortcut(x))

    return Bottleneck()


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
