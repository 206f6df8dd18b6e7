"""Reads and writes the loader's cache, /etc/ld.so.cache: the path of each library, by name.

`ldconfig` makes it by reading every library of a running system. Here nothing is run: we take the
base's cache and insert the new libraries in the order that the loader's binary search needs. We
write only glibc's current format, which every loader since 2.2 reads, drop the older format that
some caches begin with, and keep glibc-hwcaps subdirectories.

https://sourceware.org/git/?p=glibc.git;a=blob;f=sysdeps/generic/dl-cache.h
"""

from __future__ import annotations

import functools
import posixpath
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from images.system.errors import LoaderCacheError

MOST_BYTES = 16 << 20
"""The largest cache that is read; a system with ten thousand libraries has about a megabyte."""

_LONGEST_PATH = 4096  # PATH_MAX, with the zero byte

FLAGS: Mapping[str, int] = {"x86_64": 0x0303, "aarch64": 0x0A03}
"""The flags for the libraries of an architecture (ELF, libc 6, the ABI)."""

_OLD_MAGIC = b"ld.so-1.7.0\0"
_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_ENTRY_BYTES = 12
_HEAD = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_LITTLE_ENDIAN, _ENDIAN_MASK = 2, 3
_EXTENSION = struct.Struct("<II")
_SECTION = struct.Struct("<IIII")
_EXTENSION_MAGIC = 0xEAA42174
_HWCAPS_TAG = 1
_NAMED_HWCAP = 1 << 62  # the low half is then the index of a subdirectory's name
_ISA_LEVELS = 0x3FF << 32
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One library: `name` is what programs load, `path` where it is.

    `subdirectory` is the glibc-hwcaps one that the machine must support ("x86-64-v3"), with its
    instruction level in `hwcap`; without one, `hwcap` has the older capability bits.
    """

    name: str
    path: str
    flags: int
    osversion: int = 0
    hwcap: int = 0
    subdirectory: str = ""


def read_cache(data: bytes) -> tuple[CacheEntry, ...] | None:
    """Read a cache; None if it is damaged or in a format that current loaders do not know.

    They ignore such a cache, too, so replacing it loses nothing.
    """
    if len(data) > MOST_BYTES:
        return None
    begin = _new_form_begins(data)
    try:
        return _parse(data[begin:]) if begin is not None else None
    except (struct.error, ValueError, IndexError):
        return None


def _new_form_begins(data: bytes) -> int | None:
    if data.startswith(_MAGIC):
        return 0
    if not data.startswith(_OLD_MAGIC) or len(data) < 16:
        return None
    count = int.from_bytes(data[12:16], "little")
    begin = -(-(16 + count * _OLD_ENTRY_BYTES) // 8) * 8
    return begin if data[begin : begin + len(_MAGIC)] == _MAGIC else None


def _parse(data: bytes) -> tuple[CacheEntry, ...]:
    _, count, text_bytes, order, extension_at = _HEAD.unpack_from(data)
    if order & _ENDIAN_MASK not in {0, _LITTLE_ENDIAN}:
        raise ValueError("for machines of the other byte order")
    if _HEAD.size + count * _ENTRY.size + text_bytes > len(data):
        raise ValueError("cut off")
    names = _subdirectories(data, extension_at)
    entries = []
    for number in range(count):
        fields = _ENTRY.unpack_from(data, _HEAD.size + number * _ENTRY.size)
        flags, name_at, path_at, osversion, hwcap = fields
        named = hwcap & ~(_ISA_LEVELS | _WORD) == _NAMED_HWCAP
        entries.append(
            CacheEntry(
                name=_text(data, name_at),
                path=_text(data, path_at),
                flags=flags,
                osversion=osversion,
                hwcap=hwcap & _ISA_LEVELS if named else hwcap,
                subdirectory=names[hwcap & _WORD] if named else "",
            )
        )
    return tuple(entries)


def _subdirectories(data: bytes, at: int) -> tuple[str, ...]:
    """Read the names of the glibc-hwcaps subdirectories that the entries refer to by number."""
    if not at:
        return ()
    magic, sections = _EXTENSION.unpack_from(data, at)
    if magic != _EXTENSION_MAGIC:
        raise ValueError("an extension of another kind")
    for number in range(min(sections, len(data) // _SECTION.size)):
        tag, _, offset, size = _SECTION.unpack_from(
            data, at + _EXTENSION.size + number * _SECTION.size
        )
        if tag == _HWCAPS_TAG:
            if offset + size > len(data):
                raise ValueError("cut off")
            places = struct.unpack_from(f"<{size // 4}I", data, offset)
            return tuple(_text(data, place) for place in places)
    return ()


def _text(data: bytes, at: int) -> str:
    """ValueError if it is longer than a path can be: many entries may refer to one long text."""
    return data[at : data.index(b"\0", at, at + _LONGEST_PATH)].decode("utf-8", "surrogateescape")


def write_cache(entries: Iterable[CacheEntry]) -> bytes:
    """Write a cache. Entries of one name and kind keep their order; the loader uses the first."""
    ordered = sorted(entries, key=functools.cmp_to_key(_compare))
    names = sorted({entry.subdirectory for entry in ordered if entry.subdirectory})
    texts = _Texts(_HEAD.size + len(ordered) * _ENTRY.size)
    rows = b"".join(_row(entry, texts, names) for entry in ordered)
    places = [texts.place(name) for name in names]
    text = texts.written()
    extension = b""
    extension_at = 0
    if places:
        end = _HEAD.size + len(rows) + len(text)
        extension_at = -(-end // 4) * 4
        names_at = extension_at + _EXTENSION.size + _SECTION.size
        extension = b"".join(
            (
                bytes(extension_at - end),
                _EXTENSION.pack(_EXTENSION_MAGIC, 1),
                _SECTION.pack(_HWCAPS_TAG, 0, names_at, 4 * len(places)),
                struct.pack(f"<{len(places)}I", *places),
            )
        )
    head = _HEAD.pack(_MAGIC, len(ordered), len(text), _LITTLE_ENDIAN, extension_at)
    return b"".join((head, rows, text, extension))


def _row(entry: CacheEntry, texts: _Texts, names: list[str]) -> bytes:
    path_at = texts.place(entry.path)
    if entry.path.endswith(entry.name):  # mostly, the path ends in the name
        name_at = path_at + len(_raw(entry.path)) - len(_raw(entry.name))
    else:
        name_at = texts.place(entry.name)
    hwcap = entry.hwcap
    if entry.subdirectory:
        hwcap |= _NAMED_HWCAP | names.index(entry.subdirectory)
    return _ENTRY.pack(entry.flags, name_at, path_at, entry.osversion, hwcap)


class _Texts:
    """The strings of a cache, without duplicates."""

    def __init__(self, begin: int) -> None:
        self._at = begin
        self._places: dict[bytes, int] = {}

    def place(self, text: str) -> int:
        raw = _raw(text)
        if b"\0" in raw:
            raise LoaderCacheError(
                f"The loader's cache cannot hold the name {text!r}.",
                fix="The wheel with this library is damaged: download it again.",
            )
        if raw not in self._places:
            self._places[raw] = self._at
            self._at += len(raw) + 1
        return self._places[raw]

    def written(self) -> bytes:
        return b"".join(raw + b"\0" for raw in self._places)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def with_libraries(
    cache: bytes | None, paths: Iterable[str], *, arch: str, directories: Sequence[str]
) -> bytes:
    """Return the cache with libraries added, each under its file name.

    `directories` is the order in which `ldconfig` would read them: of several libraries with one
    name the first is used, and those in directories not listed come last.
    """
    if arch not in FLAGS:
        raise LoaderCacheError(
            f"The loader's cache of {arch} is not supported here.",
            fix=f"Build for {' or '.join(sorted(FLAGS))}, or by an engine: --builder docker",
        )
    old = (read_cache(cache) if cache else None) or ()
    there = {entry.path for entry in old}
    new = [
        CacheEntry(name=posixpath.basename(path), path=path, flags=FLAGS[arch])
        for path in sorted(set(paths) - there)
    ]
    rank = {directory: number for number, directory in enumerate(directories)}
    last = len(rank)
    return write_cache(
        sorted((*old, *new), key=lambda one: rank.get(posixpath.dirname(one.path), last))
    )


def _compare(one: CacheEntry, other: CacheEntry) -> int:
    """Order entries as `ldconfig` does: names in descending order, then the most specific first."""
    by_name = compare_names(other.name, one.name)
    if by_name:
        return by_name
    if one.flags != other.flags:
        return 1 if one.flags < other.flags else -1
    if one.subdirectory != other.subdirectory:
        if not (one.subdirectory and other.subdirectory):
            return -1 if one.subdirectory else 1
        return -1 if one.subdirectory < other.subdirectory else 1
    bits = other.hwcap.bit_count() - one.hwcap.bit_count()
    return bits or (other.hwcap > one.hwcap) - (other.hwcap < one.hwcap)


def compare_names(one: str, other: str) -> int:
    """Compare two names as the loader's search does: byte by byte, and digits as numbers."""
    left, right = (_raw(text) + b"\0" for text in (one, other))
    at = to = 0
    while left[at]:
        digit, digits = left[at : at + 1].isdigit(), right[to : to + 1].isdigit()
        if digit and digits:
            number, at = _number(left, at)
            another, to = _number(right, to)
            if number != another:
                return _wrapped(number - another)
        elif digit or digits:
            return 1 if digit else -1
        elif left[at] != right[to]:
            break
        else:
            at, to = at + 1, to + 1
    return left[at] - right[to]


def _number(text: bytes, at: int) -> tuple[int, int]:
    """Read digits into an int that wraps around, as C does: the loader's search must agree."""
    value = 0
    while text[at : at + 1].isdigit():
        value = _wrapped(value * 10 + text[at] - 0x30)
        at += 1
    return value, at


def _wrapped(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
