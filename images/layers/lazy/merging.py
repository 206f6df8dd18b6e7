"""Makes one sequence of files of several layers: those that a container would see.

A later layer replaces the files of an earlier one. The layers are our own: they hide nothing
(no whiteouts), and have no devices. A hard link is in the layer of its file.
"""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from images.oci.inflate import PIECE_BYTES, inflate
from images.oci.sources import LayerSource, Member
from images.oci.tarstream import members

_HELD_BYTES = 32 << 20  # of a layer that only streams; more go to a file


class MergedLayers(contextlib.AbstractContextManager["MergedLayers"]):
    """The files of all layers. Their contents can be read several times, and a layer that can only
    be streamed is made once.
    """

    def __init__(self, sources: Sequence[LayerSource]) -> None:
        self._held = contextlib.ExitStack()
        self._found: dict[str, _Place] = {}
        try:
            self._members = [self._open(source) for source in sources]
            for number in range(len(sources)):
                for at, (member, _) in enumerate(self._read(number)):
                    _add(self._found, _Place(member=member, layer=number, at=at))
        except BaseException:
            self._held.close()
            raise

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def sizes(self) -> dict[str, int]:
        """The regular files, and how many bytes each has."""
        return {path: one.member.size for path, one in self._found.items() if one.member.isreg()}

    def without_content(self) -> list[tarfile.TarInfo]:
        """Directories and symbolic links, each directory before what it holds."""
        return self._sorted(lambda member: member.isdir() or member.issym())

    def hard_links(self) -> list[tarfile.TarInfo]:
        """Further names of files."""
        return self._sorted(tarfile.TarInfo.islnk)

    def _sorted(self, wanted: Callable[[tarfile.TarInfo], bool]) -> list[tarfile.TarInfo]:
        found = [path for path, one in self._found.items() if wanted(one.member)]
        return [self._found[path].member for path in sorted(found, key=lambda one: one.split("/"))]

    def files(self, wanted: Callable[[str], bool]) -> Generator[Member, None, None]:
        """Yield the chosen regular files in the order of the layers; a content that is not read
        costs nothing.
        """
        for number in range(len(self._members)):
            for at, (member, content) in enumerate(self._read(number)):
                place = self._found.get(member.name)
                if place is None or (place.layer, place.at) != (number, at):
                    continue
                if content is not None and wanted(member.name):
                    yield member, content

    def _read(self, number: int) -> Iterator[Member]:
        with contextlib.closing(self._members[number]()) as found:
            yield from found

    def _open(self, source: LayerSource) -> Callable[[], Generator[Member, None, None]]:
        """How its members are read."""
        direct: Callable[[], Generator[Member, None, None]] | None = getattr(
            source, "members", None
        )
        if direct is not None:
            return direct
        file = tempfile.SpooledTemporaryFile(_HELD_BYTES)  # noqa: SIM115  closed with the tree
        packed = self._held.enter_context(file)
        with contextlib.closing(source.stream(None)) as pieces:
            for piece in pieces:
                packed.write(piece)

        def again() -> Generator[Member, None, None]:
            packed.seek(0)
            return members(inflate(_pieces(packed), source.title), source.title)

        return again


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    member: tarfile.TarInfo
    layer: int
    at: int = field(default=0)


def _pieces(file: IO[bytes]) -> Generator[bytes, None, None]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _add(found: dict[str, _Place], place: _Place) -> None:
    member = place.member
    known = member.isreg() or member.isdir() or member.issym() or member.islnk()
    if not known or member.pax_headers.keys() - {"path", "linkpath", "size"}:
        raise ValueError(f"{member.name} is of a kind that our own layers do not have")
    there = found.get(member.name)
    if there is not None and there.member.isdir() and not member.isdir():
        below = f"{member.name}/"
        for path in [path for path in found if path.startswith(below)]:
            del found[path]
    found[member.name] = place
