"""Layers of wheels whose libraries keep only the GPU code that some GPUs load.

A library keeps its size, its headers and the place of every byte: what no GPU loads is overwritten
with zeros, which compress to almost nothing. So nothing that points into the file can break.

A library is read three times: to find what to remove, to compute its digest for RECORD, and to
write it. Nothing is kept but the places that become zeros, so memory stays flat. A library in
which nothing is removed is copied as `transcode` does.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import posixpath
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from images.inspect.library import LINKED, Fatbin, read_fatbins
from images.inspect.model import Capability
from images.inspect.selection import Range, normalized, removable
from images.layers import record
from images.layers.install import InstalledFile
from images.layers.own import key_of
from images.layers.transcode import MADE_BYTES, WheelLayer, layer_members, layer_stream
from images.layers.wheel_file import WheelFile
from images.oci.model import LAYER_GZIP
from images.oci.sources import Member as TarMember
from images.oci.sources import Stream, Unpacked
from images.wheels.directory import Member
from images.wheels.errors import WheelUnreadableError
from images.wheels.remote_file import Wheel

FORMAT = 1
"""Part of each key: raise it when other code is removed, or when the bytes change otherwise."""

_LEVEL = 6
"""libdeflate's compression level. Its output depends only on its version (see pyproject.toml)."""
_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCut:
    """What is removed from one library: `before` and `after` are the bytes of its GPU code,
    `ranges` the bytes that become zeros, `sha256` the new digest (hex; None: nothing is removed).
    `kept_why` says why its code was not understood; "" if it was.
    """

    package: str
    path: str
    before: int
    after: int
    ranges: tuple[Range, ...] = field(default=(), repr=False)
    sha256: str | None = None
    kept_why: str = ""


@dataclass(frozen=True, slots=True)
class _CutContent:
    """The content of a library without the code that is removed; see `transcode.MadeContent`."""

    wheel: WheelFile
    member: Member
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        return self.member.size

    def contents(self) -> Iterator[bytes]:
        return without(self.wheel.contents(self.member), self.ranges)

    def pack(self, block: bytes) -> bytes:
        import deflate

        return bytes(deflate.gzip_compress(block, _LEVEL))


@dataclass(frozen=True, kw_only=True)
class CutLayer:
    """Another layer of wheels, with code for `gpus` alone, which are compute capabilities."""

    media_type: ClassVar[str] = LAYER_GZIP
    source: WheelLayer
    gpus: tuple[Capability, ...]
    _found: dict[tuple[str, str], LibraryCut] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> str:
        """The bytes depend on the version of libdeflate, too."""
        codec = importlib.metadata.version("deflate")
        gpus = tuple(sorted(set(self.gpus)))
        return key_of("cut", FORMAT, codec, _LEVEL, MADE_BYTES, gpus, self.source.key)

    @property
    def title(self) -> str:
        return self.source.title

    @property
    def created_by(self) -> str:
        names = ", ".join(map(target, sorted(set(self.gpus))))
        return f"{self.source.created_by}, with GPU code for {names} alone"

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        return self.source.wheels

    @property
    def about_bytes(self) -> int:
        return self.source.about_bytes

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it, as `WheelLayer` does."""
        with contextlib.ExitStack() as opened:
            return (yield from layer_stream(self._files(opened), known))

    def members(self) -> Generator[TarMember, None, None]:
        """Yield the members of its tar."""
        with contextlib.ExitStack() as opened:
            yield from layer_members(self._files(opened))

    def cuts(self) -> tuple[LibraryCut, ...]:
        """The libraries with GPU code. Reads them, unless the layer was generated before."""
        with contextlib.ExitStack() as opened:
            self._files(opened)
        return tuple(cut for cut in self._found.values() if cut.before or cut.kept_why)

    def _files(self, opened: contextlib.ExitStack) -> dict[str, InstalledFile]:
        files = self.source.files(opened)
        changed: dict[str, LibraryCut] = {}
        for path, file in files.items():
            member = _library_in(file)
            if member is None:
                continue
            cut = self._cut(file, member)
            if cut.ranges:
                changed[path] = cut
                made = _CutContent(file.wheel, member, cut.ranges)
                files[path] = replace(file, parts=(made,))
        for path in [path for path in files if path.endswith(".dist-info/RECORD")]:
            files[path] = _with_new_digests(files[path], changed)
        return files

    def _cut(self, file: InstalledFile, member: Member) -> LibraryCut:
        key = (file.wheel.shown, member.name)
        if key not in self._found:
            self._found[key] = cut_library(file.wheel, member, self.gpus)
        return self._found[key]


def target(gpu: Capability) -> str:
    """The name of a compute capability: "sm_86"."""
    return f"sm_{gpu[0]}{gpu[1]}"


def cut_library(wheel: WheelFile, member: Member, gpus: Sequence[Capability]) -> LibraryCut:
    """Find what can be removed from a library of a wheel. A library whose code is not understood is
    kept as it is, and the result says why.
    """
    package = wheel.shown.partition("-")[0]
    whole = LibraryCut(package=package, path=member.name, before=0, after=0)
    if not member.size or not wheel.starts_with(member, _ELF):
        return whole
    try:
        fatbins = read_fatbins(member.name, member.size, wheel.contents(member))
    except WheelUnreadableError as error:
        return replace(whole, kept_why=error.message)
    if fatbins is None:
        return replace(whole, kept_why="it has no section table")
    before = sum(entry.size for fatbin in fatbins for entry in fatbin.entries)
    ranges = ranges_to_remove(fatbins, gpus)
    if not ranges:
        return replace(whole, before=before, after=before)
    digest = hashlib.sha256()
    for piece in without(wheel.contents(member), ranges):
        digest.update(piece)
    return replace(
        whole,
        before=before,
        after=before - sum(size for _, size in ranges),
        ranges=tuple(ranges),
        sha256=digest.hexdigest(),
    )


def ranges_to_remove(fatbins: Iterable[Fatbin], gpus: Sequence[Capability]) -> list[Range]:
    """The bytes of a library that become zeros.

    From a fatbin of linked code the driver selects when the library is loaded. Relocatable code is
    for a linker, and fatbins outside of both sections are data, which the library handles itself:
    of these only what does not run on any of the GPUs is removed.
    """
    return normalized(
        piece
        for fatbin in fatbins
        for piece in removable(fatbin.entries, gpus, by_driver=fatbin.section == LINKED)
    )


def without(pieces: Iterable[bytes], ranges: Sequence[Range]) -> Iterator[bytes]:
    """Overwrite sorted, separate ranges of a file that comes in pieces with zeros."""
    waiting = iter(ranges)
    at, following = 0, next(waiting, None)
    for piece in pieces:
        end = at + len(piece)
        if following is None or following[0] >= end:
            yield piece
            at = end
            continue
        changed = bytearray(piece)
        while following is not None and following[0] < end:
            first, last = max(following[0], at), min(sum(following), end)
            # zeros, so that every offset in the library stays; they compress to almost nothing
            changed[first - at : last - at] = bytes(last - first)
            if sum(following) > end:
                break
            following = next(waiting, None)
        yield bytes(changed)
        at = end


def _library_in(file: InstalledFile) -> Member | None:
    """The member of the wheel that is this file, if it is a library; else None."""
    if len(file.parts) == 1 and _LIBRARY.search(file.path):
        (part,) = file.parts
        return part if isinstance(part, Member) else None
    return None


def _with_new_digests(file: InstalledFile, changed: Mapping[str, LibraryCut]) -> InstalledFile:
    """A RECORD with the digests of the changed files, whose sizes are those of before."""
    site = posixpath.dirname(posixpath.dirname(file.path))
    digests = {posixpath.relpath(path, site): cut.sha256 for path, cut in changed.items()}
    content = b"".join(
        part if isinstance(part, bytes) else b"".join(file.wheel.contents(part))
        for part in file.parts
        if isinstance(part, (bytes, Member))
    )
    rows = record.read_rows(content)
    mine = digests.keys() & rows.keys()
    if not mine:
        return file
    for path in mine:
        encoded = base64.urlsafe_b64encode(bytes.fromhex(digests[path] or "")).rstrip(b"=")
        rows[path] = replace(rows[path], digest=f"sha256={encoded.decode('ascii')}")
    return replace(file, parts=(record.write_rows(rows.values()),))
