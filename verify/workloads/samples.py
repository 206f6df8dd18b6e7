"""Datasets with known samples. Plain classes, since a spawned worker imports this file."""

from __future__ import annotations

import random
import zlib
from typing import Any, List, Tuple

STORED = 256  # the stored image is 3 x 256 x 256 bytes, like a photograph for ResNet
CROPPED = 224
SOURCES = 8  # different images; a sample crops and flips one of them, by its index
SAMPLE_BYTES = 4 * 3 * CROPPED * CROPPED


class Images:
    """The work of an image folder without files: inflate (as PNG does), crop, flip, normalise.

    Sample i is (float32 image of 3 x 224 x 224, i).
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._stored = [zlib.compress(_pixels(i), 1) for i in range(SOURCES)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tuple[Any, int]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return _prepare(zlib.decompress(self._stored[index % SOURCES]), index), index

    def answers(self) -> "SampleAnswers":
        """What the samples must be, computed faster: each source is inflated once."""
        return SampleAnswers([zlib.decompress(stored) for stored in self._stored])


class SampleAnswers:
    """The right image for each index."""

    def __init__(self, pixels: List[bytes]) -> None:
        self._pixels = pixels

    def image(self, index: int) -> Any:
        """The image of sample `index`."""
        return _prepare(self._pixels[index % SOURCES], index)


class Batches:
    """Whole batches of one value: batch i is 32 images filled with i."""

    SHAPE = (32, 3, CROPPED, CROPPED)
    BYTES = 32 * SAMPLE_BYTES

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full(self.SHAPE, float(index))


class Sums:
    """Sums that the worker computes on a device: sample i is i + (i + 1) + ... of 1000 numbers."""

    COUNT = 1000

    def __init__(self, count: int, kind: str, index: int) -> None:
        self._count, self._device = count, (kind, index)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        import torch

        kind, number = self._device
        device = torch.device(kind, number) if kind == "cuda" else torch.device(kind)
        return int(torch.arange(index, index + self.COUNT, device=device).sum().item())

    @classmethod
    def answer(cls, index: int) -> int:
        """The known sum, from Gauss's formula."""
        return cls.COUNT * index + cls.COUNT * (cls.COUNT - 1) // 2


def _pixels(source: int) -> bytes:
    """Noise of 32 levels: it compresses to 5/8, and inflating it is work, as with a photo."""
    count = 3 * STORED * STORED
    noise = random.Random(source).getrandbits(8 * count).to_bytes(count, "little")  # noqa: S311
    return noise.translate(bytes(level // 8 * 8 for level in range(256)))


def _prepare(pixels: bytes, index: int) -> Any:
    """Crop, flip and normalise, depending on the sample's index."""
    import torch

    stored = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
    left, top = index * 7 % 32, index * 11 % 32
    image = stored.view(3, STORED, STORED)[:, top : top + CROPPED, left : left + CROPPED]
    image = image.flip(2) if index % 2 else image
    return image.to(torch.float32).sub_(127.5).div_(73.0)
