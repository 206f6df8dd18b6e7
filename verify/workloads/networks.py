"""Networks as data, which each framework builds from its own layers.

A layer is a name and its sizes: ("conv", filters, window, stride) with half a window of padding and
no offset, ("norm",) over the batch, ("relu",), ("tanh",), ("dropout", share), ("scatter", outputs)
which adds features up in no fixed order, ("maximum", window, stride), ("mean",) over all pixels,
("flatten",), ("dense", outputs), ("beside", layers, layers of the shortcut).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

Layers = Tuple[Tuple[Any, ...], ...]


@dataclass(frozen=True)
class Network:
    """What a sample's shape is, channels last, and the layers that it goes through."""

    given: Tuple[int, ...]
    layers: Layers
    outputs: int


def dense(widths: Sequence[int]) -> Network:
    """Dense layers, tanh between them."""
    layers = [layer for width in widths[1:] for layer in (("dense", width), ("tanh",))]
    return Network((widths[0],), tuple(layers[:-1]), widths[-1])


def smooth() -> Network:
    """Convolutions and dense layers without kinks: no ReLU, no maximum."""
    layers: Layers = (
        ("conv", 16, 3, 1),
        ("tanh",),
        ("conv", 16, 3, 2),
        ("tanh",),
        ("flatten",),
        ("dense", 64),
        ("tanh",),
        ("dense", 10),
    )
    return Network((16, 16, 3), layers, 10)


def varied(*, unordered: bool) -> Network:
    """What makes runs differ: statistics of a batch; if `unordered` also dropout on the device and
    sums in no fixed order.
    """
    images: Layers = (("conv", 16, 3, 1), ("norm",), ("relu",), ("conv", 32, 3, 2), ("mean",))
    head: Layers = (("dense", 64), ("relu",))
    extra: Layers = (("scatter", 32), ("dropout", 0.3)) if unordered else ()
    return Network((8, 8, 3), (*images, *head, *extra, ("dense", 10)), 10)


def small() -> Network:
    """Ten layers with weights (9 convolutions and 1 dense) for 32 x 32 images, 10 classes."""
    layers: List[Tuple[Any, ...]] = []
    for width in (32, 64, 128):
        for i in range(3):
            stride = 2 if i == 0 and width > 32 else 1
            layers += [("conv", width, 3, stride), ("norm",), ("relu",)]
    return Network((32, 32, 3), (*layers, ("mean",), ("dense", 10)), 10)


def large() -> Network:
    """ResNet-50 for 224 x 224 images and 1000 classes: 50 layers, 25 557 032 weights.

    He et al., "Deep Residual Learning for Image Recognition" (2015), table 1, with the stride in
    the 3 x 3 convolution as torchvision and NVIDIA's examples have it ("v1.5").
    """
    layers: List[Tuple[Any, ...]] = [("conv", 64, 7, 2), ("norm",), ("relu",), ("maximum", 3, 2)]
    channels = 64
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            stride = first if i == 0 else 1
            path = (
                *(("conv", width, 1, 1), ("norm",), ("relu",)),
                *(("conv", width, 3, stride), ("norm",), ("relu",)),
                *(("conv", 4 * width, 1, 1), ("norm",)),
            )
            same = stride == 1 and channels == 4 * width
            shortcut: Layers = () if same else (("conv", 4 * width, 1, stride), ("norm",))
            layers += [("beside", path, shortcut), ("relu",)]
            channels = 4 * width
    return Network((224, 224, 3), (*layers, ("mean",), ("dense", 1000)), 1000)
