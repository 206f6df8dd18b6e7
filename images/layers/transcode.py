"""Makes a layer of wheels without inflating them: their own deflate streams, in gzip's clothes.

A wheel's member is a raw deflate stream of which the zip knows checksum and size: what a gzip
member consists of. A gzip file may hold many members. So the layer is, file for file, a small
member with the tar header (and the zeros behind the file before), and one with the wheel's bytes.
Nothing but those headers is compressed here.

The layer's digest as a plain tar is another matter: to learn it, everything is inflated once, and
with the same pass each file is held to its checksum and to RECORD. Where it is known already the
wheel's own sha256, which `fetch` has compared, must do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images.layers import gzip, record, tar, unneeded
from images.layers.install import InstalledFile, InstallLocation, canonicalized, file_name, plan
from images.layers.unneeded import Spared
from images.layers.wheel_file import MemberCheck, WheelFile
from images.oci.sources import LayerSource, Stream, Unpacked
from images.wheels.directory import DEFLATED, Member
from images.wheels.locked import Wheel

FORMAT = 1
"""Raised whenever the same wheels give other bytes than before: it is a part of each key."""

# What stands before a path in a wheel that is installed elsewhere than its name says.
_DATA = re.compile(r"^[^/]+\.data/((purelib|platlib)/)?")
_SMALL_BYTES = 200  # of ours: what is less goes between its header and the next one


def wheel_layer(
    wheels: Sequence[Wheel],
    *,
    site: str,
    prefix: str,
    interpreter: str,
    exclude_unneeded: bool,
    fetch: Callable[[Wheel], Path],
    direct: frozenset[str] = frozenset(),
) -> LayerSource:
    """Describe the layer of one wheel, or of several.

    `fetch` gives a wheel's file, of which the sha256 was compared. It is called when the layer is
    written, and not before. `direct` holds the names of the packages that the lock takes from a
    file or an address of their own, and not from an index.
    """
    return WheelLayer(
        wheels=tuple(sorted(wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.sha256))),
        place=InstallLocation(site=site, prefix=prefix, interpreter=interpreter),
        exclude_unneeded=exclude_unneeded,
        fetch=fetch,
        direct=direct & {wheel.name for wheel in wheels},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelLayer:
    """A layer that is made of wheels."""

    wheels: tuple[Wheel, ...]
    place: InstallLocation
    exclude_unneeded: bool
    fetch: Callable[[Wheel], Path] = field(repr=False)
    direct: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """What it is made of: the wheels by their digests, the place, and this module."""
        made_of = {
            "format": FORMAT,
            "wheels": [wheel.sha256 for wheel in self.wheels],
            "direct": sorted(wheel.url for wheel in self.wheels if wheel.name in self.direct),
            "site": self.place.site,
            "prefix": self.place.prefix,
            "interpreter": self.place.interpreter,
            "exclude_unneeded": self.exclude_unneeded,
        }
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    @property
    def title(self) -> str:
        first, *others = (f"{wheel.name} {wheel.version}" for wheel in self.wheels)
        return f"{first} and {len(others)} more" if len(others) > 1 else ", ".join((first, *others))

    @property
    def created_by(self) -> str:
        what = ", ".join(f"{wheel.name}=={wheel.version}" for wheel in self.wheels)
        less = ", without what is not needed to run" if self.exclude_unneeded else ""
        return f"gpu-provision: install {what} in /{self.place.prefix}{less}"

    @property
    def about_bytes(self) -> int:
        """As much as the wheels; headers of the one weigh as much as those of the other."""
        return sum(wheel.size or 0 for wheel in self.wheels)

    def stream(self, known: Unpacked | None) -> Stream:
        """Write the layer; see the module's text for what `known` spares."""
        with contextlib.ExitStack() as opened:
            files: dict[str, InstalledFile] = {}
            for locked in self.wheels:
                wheel = WheelFile(self.fetch(locked), shown=file_name(locked))
                opened.callback(wheel.close)
                decided = plan(
                    locked,
                    wheel,
                    self.place,
                    exclude_unneeded=self.exclude_unneeded,
                    direct=locked.name in self.direct,
                )
                files |= decided  # like pip: what is installed later replaces what was there
            _refuse_blocked(files)
            return (yield from _layer(files, known))


def spared_in(wheels: Iterable[Wheel], fetch: Callable[[Wheel], Path]) -> Spared:
    """Say what `exclude_unneeded` leaves out of wheels that are here; no member is read."""
    total = Spared()
    for locked in wheels:
        with WheelFile(fetch(locked), shown=file_name(locked)) as wheel:
            total += unneeded.spared(canonicalized(locked.name), wheel.members.values())
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTwice:
    """Files that two packages install with different content: the image has those of `last`."""

    first: str
    last: str
    paths: tuple[str, ...]


def written_twice(
    wheels: Iterable[Wheel], fetch: Callable[[Wheel], Path]
) -> tuple[WrittenTwice, ...]:
    """Find them in wheels that are here, given in the order of their layers; no member is read."""
    written: dict[str, tuple[str, int, int]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for locked in wheels:
        with WheelFile(fetch(locked), shown=file_name(locked)) as wheel:
            for member in wheel.members.values():
                path = _DATA.sub("", member.name)
                name, *content = written.get(path, (locked.name, member.crc, member.size))
                if content != [member.crc, member.size]:
                    found.setdefault((name, locked.name), []).append(path)
                written[path] = (locked.name, member.crc, member.size)
    return tuple(
        WrittenTwice(first=first, last=last, paths=tuple(sorted(paths)))
        for (first, last), paths in found.items()
    )


def _refuse_blocked(files: Mapping[str, InstalledFile]) -> None:
    """Refuse a file that is a directory of another one."""
    directories = {path[: path.rfind("/")]: path for path in files}
    for directory, path in directories.items():
        for parent in (*tar.parents(directory), directory):
            if parent in files:
                why = f"would install /{path} in /{parent}, which is a file"
                raise files[path].wheel.refused(why)


def _layer(files: Mapping[str, InstalledFile], known: Unpacked | None) -> Stream:
    writer = _Writer(is_learning=known is None)
    directories: set[str] = set()
    for path in sorted(files, key=lambda path: path.replace("/", "\0")):  # see tar.sort_key
        file = files[path]
        directory = path[: path.rfind("/")]
        if directory not in directories:
            for parent in tar.parents(path):
                if parent not in directories:
                    directories.add(parent)
                    writer.add(tar.header(parent, kind="dir", mode=0o755))
        size = file.size
        writer.add(tar.header(path, kind="file", mode=file.mode, size=size))
        for part in file.parts:
            if isinstance(part, Member):
                yield from writer.copy(file.wheel, part, file.digest)
            else:
                writer.add(part, search=True)
        writer.add(tar.padding(size))
        if writer.held >= tar.PIECE_BYTES:
            yield writer.take()
    writer.add(tar.END)
    writer.flush()
    yield writer.take()
    return known or writer.unpacked()


class _Writer:
    """A layer while it is written: its pieces, and on request its digest as a plain tar."""

    def __init__(self, *, is_learning: bool) -> None:
        self.held = 0
        self._ready: list[bytes] = []
        self._ours: list[bytes] = []  # of the tar, not packed yet
        self._digest = hashlib.sha256() if is_learning else None
        self._size = 0

    def add(self, content: bytes, *, search: bool = False) -> None:
        """Add bytes of ours to the tar."""
        if search and len(content) > _SMALL_BYTES:
            self.flush()
            self._pack(content, search=True)
        elif content:
            self._ours.append(content)

    def flush(self) -> None:
        """Pack what was added."""
        if self._ours:
            content = b"".join(self._ours)
            self._ours.clear()
            self._pack(content, search=False)

    def take(self) -> bytes:
        """Take what is ready to be sent."""
        piece = b"".join(self._ready)
        self._ready.clear()
        self.held = 0
        return piece

    def copy(self, wheel: WheelFile, member: Member, digest: str) -> Iterator[bytes]:
        """Add a file of a wheel; gives pieces where it is a large one."""
        if not member.size and not member.compressed:
            return
        self.flush()
        check = None
        if self._digest is not None:
            check = _Learning(wheel, member, digest, self._digest)
            self._size += member.size
        self._put(gzip.HEAD)
        pieces = wheel.packed(member)
        left = member.compressed
        for piece in pieces:
            left -= len(piece)
            if check:
                check.take(piece)
            if member.method == DEFLATED:
                self._put(piece)
            else:
                for block in gzip.store(piece, last=not left):
                    self._put(block)
            if self.held >= tar.PIECE_BYTES:
                yield self.take()
        if check:
            check.finish()
        self._put(gzip.trailer(member.crc, member.size))

    def unpacked(self) -> Unpacked:
        """Say what was learned."""
        assert self._digest is not None
        return Unpacked(diff_id=f"sha256:{self._digest.hexdigest()}", size=self._size)

    def _pack(self, content: bytes, *, search: bool) -> None:
        if self._digest is not None:
            self._digest.update(content)
            self._size += len(content)
        self._put(gzip.pack(content, search=search))

    def _put(self, piece: bytes) -> None:
        self._ready.append(piece)
        self.held += len(piece)


class _Learning:
    """Inflates a file that is copied, for the layer's digest and to hold it to its promises."""

    def __init__(self, wheel: WheelFile, member: Member, promised: str, digest: Any) -> None:  # noqa: ANN401
        self._wheel, self._member, self._promised = wheel, member, promised
        self._check = MemberCheck(wheel, member)
        self._layer = digest
        self._own = record.hasher(promised)

    def take(self, packed: bytes) -> None:
        self._hear(self._check.take(packed))

    def finish(self) -> None:
        self._hear(self._check.finish())
        if self._own is not None:
            found = record.digest_text(self._own.digest(), self._own.name)
            if found != self._promised.rstrip("="):
                name = self._member.name
                raise self._wheel.refused(f"holds a {name} that is not the one of its RECORD")

    def _hear(self, pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            self._layer.update(piece)
            if self._own is not None:
                self._own.update(piece)
