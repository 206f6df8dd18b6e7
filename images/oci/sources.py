"""The interfaces between layers, images and targets.

A layer is not a file: it is a stream that can be generated any number of times, always with the
same bytes. So nothing is stored twice, memory stays flat, and a broken upload can resume.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol

from images.oci.model import LAYER_GZIP, Descriptor, Platform
from images.system.hashed_file import HashedFile
from images.wheels.remote_file import Wheel

if TYPE_CHECKING:
    import tarfile
    from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """A layer as a plain tar: its digest (the diffID, "sha256:...") and its size in bytes.

    `annotations` are those of its compressed form, for its descriptor: where a table of contents
    is (`TABLE_ANNOTATIONS`).
    """

    diff_id: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLayer:
    """The facts about a layer that a build needs if it does not have the layer's bytes."""

    digest: str
    size: int
    unpacked: Unpacked
    media_type: str = LAYER_GZIP


Stream = Generator[bytes, None, Unpacked]
"""Yields a layer's compressed bytes in pieces of at most about a megabyte, and returns facts known
only at the end (`found = yield from ...`). It may be closed early at any time."""

Member: TypeAlias = "tuple[tarfile.TarInfo, IO[bytes] | None]"
"""A member of a layer's tar, and the content of a regular file, to be read before the next one."""


class LayerSource(Protocol):
    """A layer that can be written."""

    @property
    def key(self) -> str:
        """A hex digest of its inputs: equal keys always mean equal bytes."""

    @property
    def media_type(self) -> str:
        """How its bytes are compressed: `LAYER_GZIP` or `LAYER_ZSTD`."""

    @property
    def title(self) -> str:
        """For messages: "torch 2.0.1"."""

    @property
    def created_by(self) -> str:
        """For the image's history."""

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """The wheels that it needs before it can be written; empty for custom files."""

    @property
    def about_bytes(self) -> int:
        """Its approximate size, for progress: the exact size is known only afterwards."""

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it. With `known` it need not be inflated to compute the diffID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a target has written: the blob's digest and size, and what the stream returned."""

    digest: str
    size: int
    unpacked: Unpacked


class Target(Protocol):
    """Where an image is written. Several threads may write blobs at once; a blob named by its
    digest is complete. Nothing is visible under the image's name before `publish`.
    """

    @property
    def shown(self) -> str:
        """For messages: where the image will be."""

    def has(self, blob: Descriptor) -> bool:
        """Whether the target has this blob already."""

    def write(
        self,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> Written:
        """Write a layer. `open_stream` may be called again, to resume after a broken connection.

        DigestMismatchError: the bytes do not match `expected`. `on_bytes` is called with how many
        more bytes have arrived.
        """

    def write_bytes(self, content: bytes, media_type: str) -> Descriptor:
        """Write a small blob: a configuration."""

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        """Write a manifest or an index whose parts are all here. `name`: under that name (a tag, or
        the image's name in the target); None: only by its digest, as a part of an index.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayer:
    """A layer of an existing image; `stream` yields the bytes that `blob` describes, and raises
    DigestMismatchError if they do not match.

    `mount_from`: the repository ("team/base") of the registry `registry` that has it. `members`
    yields what its tar holds without making the tar, so that a content that is not read costs
    nothing; None: it can only be streamed.
    """

    blob: Descriptor
    diff_id: str
    stream: Callable[[], Generator[bytes, None, None]]
    registry: str | None = None
    mount_from: str | None = None
    members: Callable[[], Generator[Member, None, None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An existing image, wherever it is: to build on, run or inspect.

    `shown` is its name in messages; `digest` is its manifest's (its configuration's in an archive
    without manifests); `image_id` is its configuration's digest; `config` is the configuration.
    `squashfs` is the file that has its files instead of layers, or beside them; both digests are
    then the file's, and `claims` the digests of the image that the file says it is, which proves
    nothing.
    """

    shown: str
    digest: str
    image_id: str
    platform: Platform
    layers: tuple[ImageLayer, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    squashfs: HashedFile | None = None
    claims: tuple[str, ...] = ()

    @property
    def is_lazy(self) -> bool:
        """Whether a node may start it by the tables of contents of its layers."""
        return any(layer.blob.has_table for layer in self.layers)
