"""Decides which wheels share a layer, and the order of the layers.

A layer can be reused if nothing in it changed, and an engine that has the layers below need not
unpack them again. So large and stable wheels are below, small and changing ones above: CUDA's
libraries, the framework, the rest, and what the user asked for by name; in each, large ones first.
Small wheels share layers, because an image has a limited number, but an added wheel never moves
others: the digests of names decide the groups, and a layer that grows too large is split in two.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from images.layers.install import canonicalized
from images.layers.transcode import wheel_layer
from images.oci.sources import LayerSource
from images.wheels.remote_file import Wheel

MOST_LAYERS = 80
"""The limit for wheels. Engines accept 127 layers in all, and a base has some."""

_CUDA = re.compile(r"nvidia-.+|cuda-.+|(pytorch-)?triton(-.+)?|jax-cuda.+")
_SMALL_BYTES = 200_000
"""A smaller wheel shares a layer, which has at most twice this size."""
_UNKNOWN_BYTES = 1 << 26  # assumed if the index does not give the size: it may be large
_MOST_BITS = 64  # names with the same first bits are not separated

Group = tuple[Wheel, ...]


def wheel_sources(
    wheels: Sequence[Wheel],
    *,
    python: str,
    framework: Collection[str],
    own: Collection[str],
    exclude_unneeded: bool,
    fetch: Callable[[Wheel], Path],
    direct: Collection[str] = (),
    prefix: str = "opt/venv",
) -> tuple[LayerSource, ...]:
    """The layers of all wheels, lowest first.

    `python`: "3.11"; `framework`, `own` and `direct`: names of the packages of the framework, of
    those that the user asked for, and of those that the lock takes from a file or URL.
    """
    places = {
        "site": f"{prefix}/lib/python{python}/site-packages",
        "prefix": prefix,
        "interpreter": f"/{prefix}/bin/python",
    }
    return tuple(
        wheel_layer(
            group,
            exclude_unneeded=exclude_unneeded,
            fetch=fetch,
            direct=frozenset(wheel.name for wheel in group if wheel.name in direct),
            **places,
        )
        for group in arrange(wheels, framework=framework, own=own)
    )


def arrange(
    wheels: Iterable[Wheel], *, framework: Collection[str] = (), own: Collection[str] = ()
) -> tuple[Group, ...]:
    """Put wheels into groups, one for each layer, lowest first."""
    parts: tuple[list[Wheel], ...] = ([], [], [], [])
    frameworks, owned = set(map(canonicalized, framework)), set(map(canonicalized, own))
    for wheel in wheels:
        name = canonicalized(wheel.name)
        if name in frameworks:
            parts[1].append(wheel)
        elif name in owned:
            parts[3].append(wheel)
        else:
            parts[0 if _CUDA.fullmatch(name) else 2].append(wheel)
    small = _SMALL_BYTES
    while True:
        groups = [group for part in parts for group in _grouped(part, small)]
        if len(groups) <= MOST_LAYERS:
            return tuple(groups)
        small *= 2


def _grouped(wheels: Iterable[Wheel], small: int) -> Iterator[Group]:
    """Yield large wheels alone, largest first, and then small ones in groups."""
    ordered = sorted(wheels, key=lambda wheel: (-_size(wheel), wheel.name, wheel.sha256))
    yield from ((wheel,) for wheel in ordered if _size(wheel) >= small)
    few = [wheel for wheel in ordered if _size(wheel) < small]
    if few:
        yield from _split(few, 2 * small, bit=0)


def _split(wheels: Sequence[Wheel], most: int, bit: int) -> Iterator[Group]:
    """Split a group by the bits of names' digests until each is small enough.

    So an added wheel changes only one group.
    """
    if sum(map(_size, wheels)) <= most or len(wheels) == 1 or bit == _MOST_BITS:
        yield tuple(sorted(wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.sha256)))
        return
    for side in (0, 1):
        half = [wheel for wheel in wheels if _bit(wheel.name, bit) == side]
        if half:
            yield from _split(half, most, bit + 1)


def _bit(name: str, bit: int) -> int:
    digest = hashlib.sha256(canonicalized(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> bit & 1


def _size(wheel: Wheel) -> int:
    return _UNKNOWN_BYTES if wheel.size is None else max(0, wheel.size)
