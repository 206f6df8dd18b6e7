"""Finds and reads fatbins in a stream: the containers in which nvcc stores device code.

NVIDIA does not document the layout. It was derived from files that nvcc 13.5.37 made for known
targets, compared with the output of cuobjdump 13.5.37, and confirmed in wheels built with CUDA 10.2
to 13.0 (tests/data/inspect/README.md). All numbers are little-endian.

    fatbin    u32 magic BA55ED50, u16 version 1, u16 size of this header 16, u64 bytes that follow
    entry     u16 kind, u16 0x0101, u32 size of this header, u64 bytes of payload that follow,
              u32 compressed size, u32 at: extension, u16 minor and u16 major of the payload's own
              format, u32 architecture (86), u32 at and u32 length: source file's name,
              u64 flags (bit 20: sm_90a, bit 21: sm_100f), u64 0, u64 size when decompressed
    extension u32, u32 length, text with its end, padded to eight bytes

A fatbin of `nvcc --concat` packs images of several targets into one entry of kind 256. Its
extension is u32 count and u32 length of itself, then the entries' headers one after the other, each
with its offset in the payload instead of the size of the header.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MOST_FATBINS = 1_000_000
"""A file with more is damaged: TensorFlow, with the most that we saw, has some thousands."""
MAGIC = b"\x50\xed\x55\xba"
_HEADER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_ENTRY_BYTES = 64
_PAIR = struct.Struct("<II")
_VERSION, _ENTRY_VERSION = 1, 0x0101
_ALIGNMENT = 8
_MOST_HEADER_BYTES = 1 << 16
PTX, SASS = 1, 2
_LTO, _CONCATENATED = 8, 256
_REMOVED, _REMOVED_WORD = -1, "removed"
_NO_CODE = bytes(16)
"""The beginning of a payload that was overwritten with zeros (images.layers.cut). Code begins with
the magic of an ELF file or of a compressor, or with text.
"""
_ARCHITECTURES = range(10, 1000)
_ACCELERATED, _FAMILY = 1 << 20, 1 << 21


class DamagedFatbin(ValueError):  # noqa: N818  callers add the file's name and raise a Failure
    """A fatbin that is valid at its beginning and damaged later; `at` is its offset in the file."""

    def __init__(self, at: int) -> None:
        super().__init__(f"the fatbin at byte {at}")
        self.at = at


@dataclass(frozen=True, slots=True)
class FatbinEntry:
    """An entry of a fatbin: its kind (`PTX`, `SASS`, or another), its target ("sm_90a"; "" if it
    has none, or several), and where its payload is in the file, in bytes.
    """

    kind: int
    target: str
    at: int
    size: int


@dataclass(slots=True, kw_only=True)
class Census:
    """The number of fatbins, and how many of them contain each target."""

    fatbins: int = 0
    sass: Counter[str] = field(default_factory=Counter)
    ptx: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)


class FatbinScanner:
    """Finds the fatbins of one file that comes in pieces, and records what each contains.

    The compiler aligns a fatbin to eight bytes. A library also contains the magic in code that
    searches for it, so it must be followed by a whole header and a valid entry; else it is one of
    the `strays`. Then the sizes lead from entry to entry, and payloads are skipped: the memory used
    is some bytes for each fatbin, and one header.
    """

    def __init__(
        self, size: int, on_fatbin: Callable[[int, tuple[FatbinEntry, ...]], None] | None = None
    ) -> None:
        """`size` of the file in bytes; `on_fatbin` gets the offset and the entries of each fatbin
        that is found.
        """
        self.found = array("Q")
        """The offsets of the fatbins, ascending."""
        self.strays: list[int] = []
        """The first hundred offsets with the magic but without a fatbin."""
        self._size = size
        self._numbers: dict[frozenset[tuple[int, str]], int] = {}
        self._contents = array("L")
        self._window, self._start = b"", 0
        self._at = 0
        self._fatbin: tuple[int, int] | None = None
        self._held: set[tuple[int, str]] = set()
        self._on_fatbin = on_fatbin
        self._entries: list[FatbinEntry] = []

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the file. DamagedFatbin: a fatbin is inconsistent."""
        begin = self._start + len(self._window)
        end = begin + len(piece)
        if self._at >= end:
            self._window, self._start = b"", end
            return
        window, start = (self._window + piece, self._start) if self._window else (piece, begin)
        while self._walk(window, start) if self._fatbin else self._search(window, start):
            pass
        keep = min(max(self._at - start, 0), len(window))
        self._window, self._start = window[keep:], start + keep

    def finish(self) -> None:
        """Mark the end of the file."""
        if self._fatbin is not None:
            if self._at == self._fatbin[1]:
                self._close()
            else:
                self._give_up()

    def count(self, begin: int, end: int) -> Census:
        """Count the targets in the fatbins from byte `begin` to `end`."""
        first, last = bisect_left(self.found, begin), bisect_left(self.found, end)
        alike = Counter(self._contents[first:last])
        contents = list(self._numbers)
        census = Census()
        for number, fatbins in alike.items():
            if not contents[number]:  # an empty container
                continue
            census.fatbins += fatbins
            for kind, target in contents[number]:
                {SASS: census.sass, PTX: census.ptx}.get(kind, census.other)[target] += fatbins
        return census

    def _search(self, window: bytes, start: int) -> bool:
        """Go to the next fatbin; False when more of the file is needed."""
        found = window.find(MAGIC, max(self._at - start, 0))
        if found < 0:
            self._at = max(self._at, start + len(window) - len(MAGIC) + 1)
            return False
        at = start + found
        if at % _ALIGNMENT:
            self._at = at + 1
            return True
        self._at = at
        if found + _HEADER.size > len(window):
            return False
        _, version, header, payload = _HEADER.unpack_from(window, found)
        end = at + header + payload
        if version == _VERSION and header == _HEADER.size and end <= self._size:
            self._at, self._fatbin, self._held = at + header, (at, end), set()
            self._entries = []
        else:
            self._stray(at)
        return True

    def _walk(self, window: bytes, start: int) -> bool:
        """Read the next entry's header; False when more of the file is needed."""
        if self._fatbin is None:
            return False
        _, end = self._fatbin
        if self._at == end:
            return self._close()
        if end - self._at < _ENTRY_BYTES:
            return self._give_up()
        here = self._at - start
        if here + _ENTRY_BYTES > len(window):
            return False
        kind, version, header, payload, *_ = _ENTRY.unpack_from(window, here)
        sensible = (
            version == _ENTRY_VERSION
            and _ENTRY_BYTES <= header <= _MOST_HEADER_BYTES
            and self._at + header + payload <= end
        )
        if not sensible:
            return self._give_up()
        start_of_code = len(_NO_CODE) if payload >= len(_NO_CODE) else 0
        if kind in (PTX, SASS, _CONCATENATED) and here + header + start_of_code > len(window):
            return False
        try:
            targets = set(_targets(window[here : here + header]))
        except ValueError:
            return self._give_up()
        if self._on_fatbin is not None:
            target = next(iter(targets))[1] if kind in (PTX, SASS) else ""
            self._entries.append(FatbinEntry(kind, target, self._at + header, payload))
        body = here + header
        if kind in (PTX, SASS) and window[body : body + start_of_code] == _NO_CODE:
            targets = {(_REMOVED, _REMOVED_WORD)}
        self._held |= targets
        self._at += header + payload
        return True

    def _close(self) -> bool:
        """Count a fatbin that was walked to its end."""
        begin, _ = self._fatbin or (0, 0)
        self._fatbin = None
        if len(self.found) == MOST_FATBINS:
            raise DamagedFatbin(begin)
        self.found.append(begin)
        if self._on_fatbin is not None:
            self._on_fatbin(begin, tuple(self._entries))
        held = frozenset(self._held)
        self._contents.append(self._numbers.setdefault(held, len(self._numbers)))
        return True

    def _give_up(self) -> bool:
        """Treat it as a stray if its first entry is already invalid; else it is damaged."""
        begin, _ = self._fatbin or (0, 0)
        if self._held:
            raise DamagedFatbin(begin)
        self._fatbin = None
        self._stray(begin)
        return True

    def _stray(self, at: int) -> None:
        if len(self.strays) < 100:
            self.strays.append(at)
        self._at = max(self._at, at + _ALIGNMENT)


def _targets(header: bytes) -> Iterator[tuple[int, str]]:
    """Yield the targets of one entry as (kind, "sm_86"). ValueError: it is invalid."""
    kind, _, _, _, _, extension, _, _, architecture, _, _, flags = _ENTRY.unpack_from(header)
    if kind == _CONCATENATED:
        for part in _parts(header, extension):
            yield from _targets(part)
    elif kind in (PTX, SASS):
        if architecture not in _ARCHITECTURES:
            raise ValueError(architecture)
        suffix = "a" if flags & _ACCELERATED else "f" if flags & _FAMILY else ""
        yield kind, f"{'compute' if kind == PTX else 'sm'}_{architecture}{suffix}"
    else:
        yield kind, "LTO-IR" if kind == _LTO else f"kind {kind}"


def _parts(header: bytes, extension: int) -> Iterator[bytes]:
    """Yield the headers inside the header of a concatenated entry."""
    if not _ENTRY_BYTES <= extension <= len(header) - _PAIR.size:
        raise ValueError(extension)
    count, _ = _PAIR.unpack_from(header, extension)
    at = extension + _PAIR.size
    for _ in range(count):
        if at + _ENTRY_BYTES > len(header):
            raise ValueError(at)
        fields = _ENTRY.unpack_from(header, at)
        if fields[0] == _CONCATENATED or fields[1] != _ENTRY_VERSION:
            raise ValueError(fields[0])
        yield header[at : at + _ENTRY_BYTES]
        at += _part_bytes(header[at:], extension=fields[5], name=fields[9], length=fields[10])


def _part_bytes(header: bytes, *, extension: int, name: int, length: int) -> int:
    """The length of a header inside a header; texts end with a zero and are padded to eight."""
    if extension:
        if not _ENTRY_BYTES <= extension <= len(header) - _PAIR.size:
            raise ValueError(extension)
        return extension + _PAIR.size + _filled(_PAIR.unpack_from(header, extension)[1] + 1)
    return name + _filled(length + 1) if name >= _ENTRY_BYTES else _ENTRY_BYTES


def _filled(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
