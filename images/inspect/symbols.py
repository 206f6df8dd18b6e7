"""Reads which symbols a file looks up when it is loaded, and which others find in it.

As for the loader, the relocations name the symbols that are looked up, and the hash table holds
those that are found: a symbol table may have entries that neither uses.

https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.symtab.html
https://sourceware.org/git/?p=glibc.git;a=blob;f=elf/dl-lookup.c
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from images.inspect.segments import MOST_TABLE_BYTES, DamagedElf, ElfImage

Tag = Callable[[int], int | None]
"""Returns the value of a tag of the dynamic part."""

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<12xI8x")  # only the number of its symbol
_GNU_HASH = struct.Struct("<IIII")
_HASH = struct.Struct("<II")
_STRTAB, _STRSZ, _SYMTAB, _DT_HASH, _DT_GNU_HASH = 5, 10, 6, 4, 0x6FFFFEF5
_RELA, _RELASZ, _RELACOUNT, _JMPREL, _PLTRELSZ = 7, 8, 0x6FFFFFF9, 23, 2
_VERNEED, _VERDEF = 0x6FFFFFFE, 0x6FFFFFFC
_VERSYM, _BIND_NOW, _FLAGS, _FLAGS_1 = 0x6FFFFFF0, 24, 30, 0x6FFFFFFB
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_THREAD_LOCAL = 6
_FOUND = frozenset(  # no sections and files; a symbol without a type counts
    binding << 4 | kind for binding in (_GLOBAL, _WEAK, _UNIQUE) for kind in (0, 1, 2, 5, 6, 10)
)
_ONLY_ITS_OWN = (1, 2)  # STV_INTERNAL, STV_HIDDEN
_HIDDEN_VERSION = 0x8000
_FIRST_NAMED = 3  # the loader finds lower version numbers without a version even if hidden
# Limits on one file. The largest of those measured is libtensorflow_cc.so.2 2.21: 446,000 symbols,
# 83 MB of names.
_MOST_SYMBOLS = 1 << 21
_MOST_RELOCATIONS = 1 << 21
_MOST_BUCKETS = 1 << 20
_MOST_CHAINED = 1 << 16
_MOST_REPEATED = 8


def symbol_hash(name: bytes) -> int:
    """64 bits that stand for a name; the same in every process, so that they can be kept."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")


_hash = lru_cache(maxsize=1 << 16)(symbol_hash)
"""For the names that are looked up: each is, in several files."""


class Wanted(NamedTuple):
    """A symbol that must be defined by a loaded file. `version` None: any default version.

    `lazy`: only calls need it, which the loader may resolve when they first happen.
    """

    name: bytes
    version: bytes | None
    lazy: bool

    @property
    def keys(self) -> tuple[int, ...]:
        """The hashes of which a file that defines it exports one (see `Symbols.defines`)."""
        if self.version is None:
            return (_hash(self.name),)
        return (
            _hash(self.name),
            _hash(self.name + b"@"),
            _hash(self.name + b"@" + self.version),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """What a file looks up, and what others find in it.

    The names that it exports are kept as hashes of 64 bits (`symbol_hash`); the names themselves
    would need many times the memory. `exported` are those of the version that most have:
    `version`, or None for definitions without a version. `others` has the name, if it is not
    hidden, and the name with its version ("name@V", "name@") of every other definition.
    """

    wanted: tuple[Wanted, ...] = ()
    exported: frozenset[int] = frozenset()
    version: bytes | None = None
    others: frozenset[int] = frozenset()

    @property
    def memory_bytes(self) -> int:
        """About how much memory it takes."""
        hashed = len(self.exported) + len(self.others)
        return 70 * hashed + sum(200 + len(want.name) for want in self.wanted)

    def defines(self, want: Wanted) -> bool:
        """Whether the loader takes this file's definition for the wanted symbol.

        A required version matches the same version, and a definition without one. Without a
        required version every definition that is not hidden matches.
        """
        key = _hash(want.name)
        if want.version is None:
            return key in self.exported or key in self.others
        return (self.version in (None, want.version) and key in self.exported) or (
            bool(self.others)
            and (
                _hash(want.name + b"@" + want.version) in self.others
                or _hash(want.name + b"@") in self.others
            )
        )

    def without(self, wanted: Sequence[Wanted]) -> Sequence[Wanted]:
        """Those of the wanted symbols that this file does not define."""
        exported, others = self.exported, self.others
        if self.version is None and not others:  # as in most files
            return [want for want in wanted if _hash(want.name) not in exported]
        return [
            want
            for want in wanted
            if (
                not self.defines(want)
                if want.version
                else _hash(want.name) not in exported and _hash(want.name) not in others
            )
        ]


def expect_symbols(image: ElfImage, tag: Tag) -> None:
    """Let the tables be kept together that `read_symbols` reads."""
    tables = {_STRTAB: _STRSZ, _RELA: _RELASZ, _JMPREL: _PLTRELSZ}
    sizes = {at: tag(size) for one, size in tables.items() if (at := tag(one)) is not None}
    for one in (_SYMTAB, _VERSYM, _VERNEED, _VERDEF, _DT_GNU_HASH, _DT_HASH):
        if (at := tag(one)) is not None:
            sizes.setdefault(at, None)
    image.expect(sizes, MOST_TABLE_BYTES)


def read_symbols(image: ElfImage, tag: Tag, versions: Mapping[int, str]) -> Symbols:
    """Read the symbols of a file whose version numbers mean `versions`. DamagedElf: the tables are
    inconsistent, or too large to be read.
    """
    table, names_at, size = tag(_SYMTAB), tag(_STRTAB), tag(_STRSZ)
    if table is None or names_at is None or size is None:
        return Symbols()
    eager, lazy = _looked_up(image, tag)
    first, end = _hashed(image, tag)
    count = _bounded(max(end, 1 + max(eager | lazy, default=0)), _MOST_SYMBOLS)
    rows = image.take(table, count * _SYMBOL.size)
    numbers = _version_numbers(image, tag(_VERSYM), count)
    names = _Names(image.take(names_at, _bounded(size, MOST_TABLE_BYTES)))
    named = {number: name.encode("utf-8", "surrogateescape") for number, name in versions.items()}
    undefined = list(_undefined(rows, sorted(eager | lazy)))
    wanted = tuple(
        Wanted(name, named.get(numbers[one] & ~_HIDDEN_VERSION), one not in eager)
        for (one, _), name in zip(undefined, names.at(at for _, at in undefined), strict=True)
    )
    usual = _usual(numbers[first:end], named)
    exported, others = _exports(names, rows, (first, end), numbers, named, usual)
    return Symbols(
        wanted=wanted,
        exported=exported,
        version=named.get(min(usual, default=0)),
        others=others,
    )


class _Names:
    """The table of names. Together they may be longer than it: several versions of a symbol have
    one name, and a name may be the end of another.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._left = _MOST_REPEATED * len(raw)

    def at(self, offsets: Iterable[int]) -> Iterator[bytes]:
        """The names at these offsets."""
        raw = self._raw
        for offset in offsets:
            end = raw.find(0, offset)
            if end < 0:
                raise DamagedElf(f"a symbol's name at byte {offset} has no end")
            self._left -= end - offset
            if self._left < 0:
                raise DamagedElf("its symbols have far more names than their table")
            yield raw[offset:end]


def _looked_up(image: ElfImage, tag: Tag) -> tuple[set[int], set[int]]:
    """The numbers of the symbols in relocations: those looked up at once, and at the first call."""
    relative = (tag(_RELACOUNT) or 0) * 24  # these come first, and have no symbol
    eager = _numbers(image, tag(_RELA), tag(_RELASZ), relative)
    calls = _numbers(image, tag(_JMPREL), tag(_PLTRELSZ))
    if tag(_BIND_NOW) is not None or (tag(_FLAGS) or 0) & 8 or (tag(_FLAGS_1) or 0) & 1:
        eager |= calls
    return eager, calls - eager


def _numbers(image: ElfImage, at: int | None, size: int | None, skipped: int = 0) -> set[int]:
    if at is None or size is None or size <= skipped:
        return set()
    count = _bounded((size - skipped) // _RELOCATION.size, _MOST_RELOCATIONS)
    raw = image.take(at + skipped, count * _RELOCATION.size)
    return set(chain.from_iterable(_RELOCATION.iter_unpack(raw))) - {0}


def _hashed(image: ElfImage, tag: Tag) -> tuple[int, int]:
    """(first, end) of the numbers of the symbols that are in the hash table."""
    if (at := tag(_DT_GNU_HASH)) is not None:
        buckets, first, words, _ = image.fields(_GNU_HASH, at)
        at += _GNU_HASH.size + 8 * _bounded(words, _MOST_SYMBOLS)
        raw = image.take(at, 4 * _bounded(buckets, _MOST_BUCKETS))
        last = max(struct.unpack(f"<{buckets}I", raw), default=0)
        if last < first:
            return 0, 0
        return first, last + _chain_length(image, at + len(raw) + 4 * (last - first))
    if (at := tag(_DT_HASH)) is not None:
        _, count = image.fields(_HASH, at)
        return 1, _bounded(count, _MOST_SYMBOLS)
    return 0, 0


def _chain_length(image: ElfImage, at: int) -> int:
    """Count the hashes from here to the one that ends its bucket: it is odd.

    One by one: what follows the table may not be kept.
    """
    for count in range(1, _MOST_CHAINED):
        if image.take(at + 4 * (count - 1), 1)[0] & 1:
            return count
    raise DamagedElf("its hash table has no end")


def _version_numbers(image: ElfImage, at: int | None, count: int) -> tuple[int, ...]:
    if at is None:
        return (0,) * count
    return struct.unpack(f"<{count}H", image.take(at, 2 * count))


def _undefined(rows: bytes, numbers: list[int]) -> Iterator[tuple[int, int]]:
    """(number, offset of the name) of those that another file must define; not weak ones."""
    for number in numbers:
        name, info, other, section, _, _ = _SYMBOL.unpack_from(rows, number * _SYMBOL.size)
        if section == _UNDEFINED and info >> 4 == _GLOBAL and other & 3 not in _ONLY_ITS_OWN:
            yield number, name


def _usual(numbers: Sequence[int], versions: Mapping[int, bytes]) -> frozenset[int]:
    """The numbers of the version that most definitions have, and that is not hidden."""
    counts = Counter(numbers)
    without = frozenset(
        number for number in (*counts, 0) if number < _HIDDEN_VERSION and number not in versions
    )
    named = [number for number in counts if number in versions]
    most = max(named, key=lambda number: counts[number], default=0)
    return frozenset({most}) if counts[most] > sum(counts[n] for n in without) else without


def _exports(
    names: _Names,
    rows: bytes,
    hashed: tuple[int, int],
    numbers: Sequence[int],
    versions: Mapping[int, bytes],
    usual: frozenset[int],
) -> tuple[frozenset[int], frozenset[int]]:
    """(`exported`, `others`) of `Symbols`: definitions with the usual version, and the others."""
    defined = list(_defined(rows, *hashed))
    found = names.at(at for _, at in defined)
    if usual.issuperset(numbers[slice(*hashed)]):
        return frozenset(map(symbol_hash, found)), frozenset()
    exported, others = set[int](), set[int]()
    for (one, _), name in zip(defined, found, strict=True):
        number = numbers[one]
        if number in usual:
            exported.add(symbol_hash(name))
            continue
        hidden = number & _HIDDEN_VERSION
        number &= ~_HIDDEN_VERSION
        if not hidden or number < _FIRST_NAMED:
            others.add(symbol_hash(name))
        if number in versions or not hidden:
            others.add(symbol_hash(name + b"@" + versions.get(number, b"")))
    return frozenset(exported), frozenset(others)


def _defined(rows: bytes, first: int, end: int) -> Iterator[tuple[int, int]]:
    """(number, offset of the name) of those that other files find."""
    part = memoryview(rows)[first * _SYMBOL.size : end * _SYMBOL.size]
    for one, (at, info, other, section, value, _) in enumerate(_SYMBOL.iter_unpack(part), first):
        if section == _UNDEFINED or info not in _FOUND or other & 3 in _ONLY_ITS_OWN:
            continue
        if value or section == _ABSOLUTE or info & 15 == _THREAD_LOCAL:
            yield one, at


def _bounded(count: int, most: int) -> int:
    if count > most:
        raise DamagedElf(f"it says it has {count} symbols, relocations or bytes of names")
    return count
