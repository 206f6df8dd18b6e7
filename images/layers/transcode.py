"""Makes a layer of wheels without recompressing: re-wraps their deflate streams as gzip members.

A wheel's member is a raw deflate stream, and the zip has its checksum and size: a gzip member
consists of the same. A gzip file may have many members. So for each file the layer has a small
member with the tar header (and the padding of the file before), and one with the wheel's bytes.
Only those headers are compressed here.

To compute the layer's digest as a plain tar, everything is inflated once, and the same pass checks
each file against its checksum. If that digest is known already, the wheel's sha256, which `fetch`
has compared, is enough.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, cast

from images.layers import gzip, tar, unneeded
from images.layers.install import (
    InstalledFile,
    InstallLocation,
    MadeContent,
    canonicalized,
    file_name,
    plan,
)
from images.layers.unneeded import Spared
from images.layers.wheel_file import MemberCheck, WheelFile
from images.oci.inflate import PiecesFile
from images.oci.model import LAYER_GZIP
from images.oci.sources import LayerSource, Stream, Unpacked
from images.oci.sources import Member as TarMember
from images.wheels.directory import DEFLATED, Member
from images.wheels.remote_file import Wheel

FORMAT = 1
"""Part of each key: raise it when the bytes for the same wheels change."""

MADE_BYTES = 2 << 20
"""What is compressed at once, as one gzip member, of a content that is made here."""

# The prefix of files in a wheel that are not installed under their name.
_DATA = re.compile(r"^[^/]+\.data/((purelib|platlib)/)?")
_DIRECTORY_MODE = 0o755
_SMALL_BYTES = 200  # smaller generated contents are packed together with the headers around them


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
    """The layer of one wheel, or of several.

    `fetch` returns a wheel's file, whose sha256 was compared. It is called only when the layer is
    written. `direct` has the names of the packages that the lock takes from a file or URL, not from
    an index.
    """
    return WheelLayer(
        # the order in a lock must not change the layer's digest
        wheels=tuple(sorted(wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.sha256))),
        place=InstallLocation(site=site, prefix=prefix, interpreter=interpreter),
        exclude_unneeded=exclude_unneeded,
        fetch=fetch,
        direct=direct & {wheel.name for wheel in wheels},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelLayer:
    """A layer of installed wheels."""

    media_type: ClassVar[str] = LAYER_GZIP
    wheels: tuple[Wheel, ...]
    place: InstallLocation
    exclude_unneeded: bool
    fetch: Callable[[Wheel], Path] = field(repr=False)
    direct: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """A digest of its inputs: the wheels' digests, the location, and this module's format."""
        made_of = {
            "format": FORMAT,
            "wheels": [wheel.sha256 for wheel in self.wheels],
            # PEP 610: direct_url.json has the address
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
        """The size of the wheels: tar headers are about as large as zip headers."""
        return sum(wheel.size or 0 for wheel in self.wheels)

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate the layer; the module's docstring describes what `known` saves."""
        with contextlib.ExitStack() as opened:
            return (yield from layer_stream(self.files(opened), known))

    def members(self) -> Generator[TarMember, None, None]:
        """Yield the members of its tar; only those contents that are read are inflated."""
        with contextlib.ExitStack() as opened:
            yield from layer_members(self.files(opened))

    def files(self, opened: contextlib.ExitStack) -> dict[str, InstalledFile]:
        """All its files by their paths, which can be read while `opened` is."""
        files: dict[str, InstalledFile] = {}
        for locked in self.wheels:
            # like pip: a later wheel replaces files of an earlier one
            files |= self.installed(locked, opened)
        _refuse_blocked(files)
        return files

    def installed(self, locked: Wheel, opened: contextlib.ExitStack) -> dict[str, InstalledFile]:
        """The files of one of its wheels by their paths, which can be read while `opened` is."""
        wheel = WheelFile(self.fetch(locked), shown=file_name(locked))
        opened.callback(wheel.close)
        return plan(
            locked,
            wheel,
            self.place,
            exclude_unneeded=self.exclude_unneeded,
            direct=locked.name in self.direct,
        )


def spared_in(wheels: Iterable[Wheel], fetch: Callable[[Wheel], Path]) -> Spared:
    """Count what `exclude_unneeded` omits from local wheels; reads no member."""
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
    """Find such files in local wheels, given in the order of their layers; reads no member."""
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
    """Refuse a file in a directory that is itself a file."""
    directories = {path[: path.rfind("/")]: path for path in files}
    for directory, path in directories.items():
        for parent in (*tar.parents(directory), directory):
            if parent in files:
                why = f"would install /{path} in /{parent}, which is a file"
                raise files[path].wheel.refused(why)


def _in_order(
    files: Mapping[str, InstalledFile],
) -> Iterator[tuple[str, InstalledFile | None]]:
    """Yield the paths in the order of the tar, each with its file; None for a directory."""
    directories: set[str] = set()
    for path in sorted(files, key=lambda path: path.replace("/", "\0")):  # see tar.sort_key
        directory = path[: path.rfind("/")]
        if directory not in directories:
            for parent in tar.parents(path):
                if parent not in directories:
                    directories.add(parent)
                    yield parent, None
        yield path, files[path]


def _content(file: InstalledFile) -> Iterator[bytes]:
    for part in file.parts:
        if isinstance(part, Member):
            yield from file.wheel.contents(part)
        elif isinstance(part, bytes):
            yield part
        else:
            yield from part.contents()


def layer_members(files: Mapping[str, InstalledFile]) -> Generator[TarMember, None, None]:
    """Yield the members of a layer's tar; only those contents that are read are inflated."""
    for path, file in _in_order(files):
        member = tarfile.TarInfo(path)
        member.mtime = tar.MTIME
        if file is None:
            member.type, member.mode = tarfile.DIRTYPE, _DIRECTORY_MODE
            yield member, None
        else:
            member.mode, member.size = file.mode, file.size
            yield member, cast("IO[bytes]", PiecesFile(_content(file)))


def layer_stream(files: Mapping[str, InstalledFile], known: Unpacked | None) -> Stream:
    """Generate the layer of these files; `known` saves computing its digest."""
    writer = _Writer(is_learning=known is None)
    for path, file in _in_order(files):
        if file is None:
            writer.add(tar.header(path, kind="dir", mode=_DIRECTORY_MODE))
            continue
        size = file.size
        writer.add(tar.header(path, kind="file", mode=file.mode, size=size))
        for part in file.parts:
            if isinstance(part, Member):
                yield from writer.copy(file.wheel, part)
            elif isinstance(part, bytes):
                writer.add(part, search=True)
            else:
                yield from writer.make(part)
        writer.add(tar.padding(size))
        if writer.held >= tar.PIECE_BYTES:
            yield writer.take()
    writer.add(tar.END)
    writer.flush()
    yield writer.take()
    return known or writer.unpacked()


class _Writer:
    """A layer while it is written: its pieces, and on request the plain tar's digest."""

    def __init__(self, *, is_learning: bool) -> None:
        self.held = 0
        self._ready: list[bytes] = []
        self._ours: list[bytes] = []  # parts of the tar, not packed yet
        self._digest = hashlib.sha256() if is_learning else None
        self._size = 0

    def add(self, content: bytes, *, search: bool = False) -> None:
        """Add generated bytes to the tar."""
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
        """Take the bytes that are ready to be sent."""
        piece = b"".join(self._ready)
        self._ready.clear()
        self.held = 0
        return piece

    def copy(self, wheel: WheelFile, member: Member) -> Iterator[bytes]:
        """Add a file of a wheel; yields pieces if it is large."""
        if not member.size and not member.compressed:
            return
        self.flush()
        check = None
        if self._digest is not None:
            check = _Learning(wheel, member, self._digest)
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

    def make(self, made: MadeContent) -> Iterator[bytes]:
        """Add what is made of a wheel's content; yields pieces."""
        self.flush()
        held = bytearray()
        for piece in made.contents():
            if self._digest is not None:
                self._digest.update(piece)
                self._size += len(piece)
            held += piece
            while len(held) >= MADE_BYTES:  # blocks, whatever the sizes of the pieces
                self._put(made.pack(bytes(held[:MADE_BYTES])))
                del held[:MADE_BYTES]
                yield self.take()
        if held:
            self._put(made.pack(bytes(held)))

    def unpacked(self) -> Unpacked:
        """The digest and size of the plain tar."""
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
    """Inflates a copied file, for the layer's digest and to check it against the zip's checksum."""

    def __init__(self, wheel: WheelFile, member: Member, digest: Any) -> None:  # noqa: ANN401
        self._check = MemberCheck(wheel, member)
        self._layer = digest

    def take(self, packed: bytes) -> None:
        for piece in self._check.take(packed):
            self._layer.update(piece)

    def finish(self) -> None:
        for piece in self._check.finish():
            self._layer.update(piece)
