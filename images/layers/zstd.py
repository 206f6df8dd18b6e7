"""Layers compressed by zstd instead of gzip: smaller, and faster to unpack; slower to make.

Wheels are deflated, so a layer of gzip is made without compressing anything; one of zstd has to be
inflated and compressed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import ClassVar

from images.layers.own import key_of
from images.oci.inflate import inflate, zstd_library
from images.oci.model import LAYER_ZSTD
from images.oci.sources import LayerSource, Member, Stream, Unpacked
from images.wheels.remote_file import Wheel

LEVEL = 3
"""zstd's default."""
_UNKNOWN = Unpacked(diff_id="", size=0)  # a layer is inflated here anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class ZstdLayer:
    """Another layer, compressed by zstd."""

    media_type: ClassVar[str] = LAYER_ZSTD
    source: LayerSource
    level: int = LEVEL

    @property
    def key(self) -> str:
        """The bytes depend on the version of the library, too."""
        return key_of("zstd", zstd_library().zstd_version, self.level, self.source.key)

    @property
    def title(self) -> str:
        return self.source.title

    @property
    def created_by(self) -> str:
        return self.source.created_by

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        return self.source.wheels

    @property
    def about_bytes(self) -> int:
        return self.source.about_bytes

    @property
    def members(self) -> Callable[[], Generator[Member, None, None]] | None:
        """Those of the other layer: what they hold is the same."""
        return getattr(self.source, "members", None)

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it; `known` saves nothing."""
        del known
        zstd = zstd_library()
        kinds = zstd.CompressionParameter
        options = {kinds.compression_level: self.level, kinds.checksum_flag: 1}
        packer = zstd.ZstdCompressor(options=options)
        digest, size = hashlib.sha256(), 0
        for piece in inflate(self._packed(), self.title):  # checks each file against its checksum
            digest.update(piece)
            size += len(piece)
            if packed := packer.compress(piece):
                yield packed
        yield packer.flush()
        return Unpacked(diff_id=f"sha256:{digest.hexdigest()}", size=size)

    def _packed(self) -> Generator[bytes, None, None]:
        yield from self.source.stream(_UNKNOWN)
