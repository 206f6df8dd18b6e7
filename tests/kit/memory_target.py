"""A target, a memory and layers that live in this process."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import ClassVar

from images.oci.errors import DigestMismatchError
from images.oci.model import LAYER_GZIP, Descriptor, Platform, descriptor_of, digest_of
from images.oci.sources import Image, ImageLayer, KnownLayer, Stream, Unpacked, Written
from images.wheels.remote_file import Wheel
from tests.kit.oci_images import a_tar


@dataclass
class MemoryTarget:
    """Keeps what it is given; `calls` says in which order."""

    shown: str = "memory"
    blobs: dict[str, bytes] = field(default_factory=dict)
    names: dict[str | None, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has(self, blob: Descriptor) -> bool:
        return blob.digest in self.blobs

    def write(
        self,
        open_stream: Callable[[], Stream],
        *,
        expected: Descriptor | None,
        on_bytes: Callable[[int], None],
    ) -> Written:
        stream = open_stream()
        content = b""

        def taken() -> Stream:
            unpacked = yield from stream
            ended.append(unpacked)
            return unpacked

        ended: list[Unpacked] = []
        for piece in taken():
            content += piece
            on_bytes(len(piece))
        (unpacked,) = ended
        if expected is not None and digest_of(content) != expected.digest:
            raise DigestMismatchError("These are other bytes.", fix="Make them anew.")
        with self.lock:
            self.blobs[digest_of(content)] = content
            self.calls.append(f"write {digest_of(content)[7:15]}")
        return Written(digest=digest_of(content), size=len(content), unpacked=unpacked)

    def write_bytes(self, content: bytes, media_type: str) -> Descriptor:
        self.blobs[digest_of(content)] = content
        self.calls.append(f"bytes {media_type.rpartition('.')[2]}")
        return descriptor_of(media_type, content)

    def publish(self, manifest: bytes, media_type: str, *, name: str | None) -> Descriptor:
        self.blobs[digest_of(manifest)] = manifest
        self.names[name] = digest_of(manifest)
        self.calls.append(f"publish {name}")
        return descriptor_of(media_type, manifest)


@dataclass
class DictMemory:
    """What is known of layers, for one test."""

    found: dict[str, KnownLayer] = field(default_factory=dict)

    def known(self, key: str) -> KnownLayer | None:
        return self.found.get(key)

    def remember(self, key: str, known: KnownLayer) -> None:
        self.found[key] = known


@dataclass
class Bar:
    """Counts what it is told."""

    expected: int = 0
    written: dict[str, int] = field(default_factory=dict)

    def expect(self, total_bytes: int) -> None:
        self.expected = total_bytes

    def wrote(self, title: str, count: int) -> None:
        self.written[title] = self.written.get(title, 0) + count


@dataclass(frozen=True)
class TextLayer:
    """A layer that holds one file."""

    media_type: ClassVar[str] = LAYER_GZIP
    title: str
    text: bytes = b"x"
    wheels: tuple[Wheel, ...] = ()
    opened: list[str] = field(default_factory=list, compare=False)

    @property
    def key(self) -> str:
        return hashlib.sha256(self.title.encode() + self.text).hexdigest()

    @property
    def created_by(self) -> str:
        return f"the file {self.title}"

    @property
    def about_bytes(self) -> int:
        return len(self.text)

    def stream(self, known: Unpacked | None) -> Stream:
        self.opened.append("known" if known else "unknown")
        tar = a_tar({self.title: self.text})
        packed = gzip.compress(tar, mtime=0)
        for at in range(0, len(packed), 64):
            yield packed[at : at + 64]
        return known or Unpacked(diff_id=digest_of(tar), size=len(tar))


def base_image(**config: object) -> Image:
    """A base of one layer."""
    tar = a_tar({"etc/os-release": b"ID=debian\n"})
    packed = gzip.compress(tar, mtime=0)

    def stream() -> Generator[bytes, None, None]:
        yield packed

    return Image(
        shown="debian:12",
        digest=digest_of(b"manifest"),
        image_id=digest_of(b"config"),
        platform=Platform(architecture="amd64"),
        layers=(
            ImageLayer(
                blob=descriptor_of(LAYER_GZIP, packed), diff_id=digest_of(tar), stream=stream
            ),
        ),
        config=config,
    )
