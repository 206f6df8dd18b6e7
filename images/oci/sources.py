"""What a layer and a target are to each other.

A layer is not a file: it is bytes that can be made as often as wanted, always the same. So nothing
is kept twice, memory stays flat, and an upload that broke off goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from images.oci.model import LAYER_GZIP, Descriptor, Platform
from images.wheels.locked import Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """A layer as a plain tar: its digest (the diffID, "sha256:...") and its size in bytes."""

    diff_id: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLayer:
    """All that has to be known of a layer to build from it without having it."""

    digest: str
    size: int
    unpacked: Unpacked
    media_type: str = LAYER_GZIP


Stream = Generator[bytes, None, Unpacked]
"""Gives a layer's compressed bytes in pieces of at most a megabyte or so; what it returns at its
end is known only then (`found = yield from ...`). Closing it early is allowed at any time."""


class LayerSource(Protocol):
    """A layer that can be written."""

    @property
    def key(self) -> str:
        """What it is made of, as a hex digest: equal keys give equal bytes, for ever."""

    @property
    def title(self) -> str:
        """For people: "torch 2.0.1"."""

    @property
    def created_by(self) -> str:
        """For the image's history."""

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """What must have been fetched before it can be written; empty for files of our own."""

    @property
    def about_bytes(self) -> int:
        """How large it will be, roughly, for who waits: exact sizes are known only afterwards."""

    def stream(self, known: Unpacked | None) -> Stream:
        """Write it. What is `known` need not be found out again, which spares inflating it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a target has taken: the descriptor's digest and size, and what the stream returned."""

    digest: str
    size: int
    unpacked: Unpacked


class Target(Protocol):
    """Where an image goes. Blobs may be written by several threads at once; what is named by a
    digest is whole. Nothing is visible under the image's own name before `publish`.
    """

    @property
    def shown(self) -> str:
        """For people: where the image will be."""

    def has(self, blob: Descriptor) -> bool:
        """Whether this very blob need not be written."""

    def write(
        self,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> Written:
        """Take a layer. `open_stream` may be called again, to go on after a broken connection.

        With `expected` other bytes than those are refused (DigestMismatchError). `on_bytes` hears
        how many more bytes have arrived.
        """

    def write_bytes(self, content: bytes, media_type: str) -> Descriptor:
        """Take a small blob: a configuration."""

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        """Take a manifest or an index whose parts are all here. `name`: under that name (a tag,
        or what the target calls its image); None: by its digest alone, as a part of an index.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayer:
    """A layer of an image that is there; `stream` gives the bytes that `blob` describes, and fails
    (DigestMismatchError) where they are others.

    `mount_from`: the repository ("team/base") of the registry `registry` that holds it.
    """

    blob: Descriptor
    diff_id: str
    stream: Callable[[], Generator[bytes, None, None]]
    registry: str | None = None
    mount_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that is there, wherever it lies: to build on, to run, to look into.

    `shown` is how people call it; `digest` is that of its manifest (of an archive without one, of
    its configuration); `image_id` is that of its configuration; `config` is the configuration.
    """

    shown: str
    digest: str
    image_id: str
    platform: Platform
    layers: tuple[ImageLayer, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
