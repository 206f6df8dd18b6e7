"""Reads what the loader reads from an ELF file: needed libraries, search paths, versions.

Like the loader, it uses program headers and addresses: sections are for linkers, may be missing,
and may disagree. The file is not trusted: counts are limited, and inconsistencies raise
`DamagedElf`.

https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.dynamic.html
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from mmap import mmap
from typing import Literal, NamedTuple

from images.inspect.segments import DamagedElf, ElfImage, Read, Segment
from images.inspect.symbols import Symbols, expect_symbols, read_symbols
from images.inspect.windows import NotKept, OutsideFile, Windows

MAGIC = b"\x7fELF"
Machine = Literal["x86_64", "aarch64"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_NEED = struct.Struct("<HHIII")
_NEED_AUX = struct.Struct("<IHHII")
_DEFINITION = struct.Struct("<HHHHIII")
_DEFINITION_AUX = struct.Struct("<II")
_MACHINES: Mapping[int, Machine] = {62: "x86_64", 183: "aarch64"}
_KINDS: Mapping[int, Literal["program", "library"]] = {2: "program", 3: "library"}
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29
_FLAGS_1, _VERDEF, _VERDEFNUM = 0x6FFFFFFB, 0x6FFFFFFC, 0x6FFFFFFD
_VERNEED, _VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_NO_DEFAULT_DIRECTORIES = 0x800
_BASE, _WEAK = 1, 2
_VERSION_NUMBER = 0x7FFF
_MOST_PROGRAM_HEADERS = 128
_MOST_NEEDS = 1 << 12
_MOST_VERSIONS = 1 << 12
_MOST_TEXT_BYTES = 1 << 16
_MOST_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """One ELF file, as the loader sees it.

    `machine` None: an unsupported machine; nothing else is known then. `kind` is "other" for what
    no loader loads (object files). `interpreter` is the loader that a program names. `rpath` is
    used only without a `runpath`; both are as written, with $ORIGIN. `versions` maps a needed
    library to the versions required from it; weak ones may be missing and are omitted. `provides`
    are the versions that it defines itself. `symbols` None: they were not read, are damaged, or are
    too many.
    """

    machine: Machine | None
    kind: Literal["program", "library", "other"] = "other"
    interpreter: str | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    default_directories: bool = True
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    provides: tuple[str, ...] = ()
    symbols: Symbols | None = None

    @property
    def is_program(self) -> bool:
        """Whether it can be started: because of its kind, or because it names a loader."""
        return self.kind == "program" or self.interpreter is not None


class DynamicReader:
    """Reads one file that comes in pieces, with its symbols. `finish` says whether it must be fed
    again.
    """

    def __init__(self, size: int, *, head: int | None = None) -> None:
        self._windows = Windows(size) if head is None else Windows(size, head=head)
        self._due: int | None = min(size, _HEADER.size)
        self._passes = 1
        self._without_symbols: ElfFile | None = None
        self.found: ElfFile | None = None
        """The result, as soon as it is known."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece. DamagedElf: the file is invalid."""
        if self.found is not None:
            return
        self._windows.feed(piece)
        while self._due is not None and self._windows.at >= self._due and self.found is None:
            self._try()

    def finish(self) -> ElfFile | None:
        """Return the result, or None: then feed the file again, from its beginning."""
        if self.found is None:
            if self._windows.at < self._windows.size:
                raise DamagedElf("it ends before what it speaks of")
            if self._passes == _MOST_PASSES:
                return self._give_up("it must be read too often")
            self._passes += 1
            self._windows.again()
            self._due = min(self._windows.size, _HEADER.size)
        return self.found

    def _try(self) -> None:
        try:
            try:
                self._without_symbols, symbols = _read(
                    self._windows.read, self._windows.shorten_head
                )
                self.found = replace(self._without_symbols, symbols=symbols())
            except NotKept as part:
                self._due = self._windows.want(part)
        except OutsideFile as error:
            self._give_up(f"it speaks of {error}")
        except DamagedElf as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> ElfFile:
        """Do without the symbols if only these cannot be read."""
        if self._without_symbols is None:
            raise DamagedElf(why)
        self.found = self._without_symbols
        return self.found


def read_dynamic(read: Read) -> ElfFile:
    """Read a file without its symbols through `read(begin, end)`. DamagedElf: it is truncated or
    invalid, or its tables point outside of it.
    """
    return _read(read).file


def read_soname(content: memoryview | mmap) -> str | None:
    """Read a shared library's soname; "" if it has none, None for other and damaged files."""
    try:
        found = read_dynamic(partial(_part, content))
    except DamagedElf:  # or a linker script (text)
        return None
    return (found.soname or "") if found.machine and found.kind == "library" else None


def _part(content: memoryview | mmap, begin: int, end: int) -> bytes:
    if not 0 <= begin <= end <= len(content):
        raise DamagedElf("it is cut off")
    return bytes(content[begin:end])


class _Parts(NamedTuple):
    """A file without its symbols, and the function that reads these."""

    file: ElfFile
    symbols: Callable[[], Symbols] = Symbols


def _read(read: Read, on_tables_end: Callable[[int], None] = lambda _: None) -> _Parts:
    """`on_tables_end` is called with the offset before which most files have their tables."""
    ident, kind, number, *_, programs_at, _, _, _, entry, count, _, _, _ = _HEADER.unpack(
        read(0, _HEADER.size)
    )
    if not ident.startswith(MAGIC):
        raise DamagedElf("it is no ELF file")
    machine = _MACHINES.get(number)
    if ident[4] != 2 or ident[5] != 1 or machine is None:  # 64 bits, little-endian
        return _Parts(ElfFile(machine=None))
    if kind not in _KINDS or not count:
        return _Parts(ElfFile(machine=machine))
    if entry != _PROGRAM.size or count > _MOST_PROGRAM_HEADERS:
        raise DamagedElf(f"it says it has {count} program headers of {entry} bytes")
    table = read(programs_at, programs_at + count * _PROGRAM.size)
    image = ElfImage(read, [Segment(*row) for row in _PROGRAM.iter_unpack(table)])
    on_tables_end(image.tables_end())
    found = ElfFile(machine=machine, kind=_KINDS[kind], interpreter=image.interpreter())
    dynamic = image.dynamic()
    if dynamic is None and not found.is_program:
        raise DamagedElf("it has no dynamic part, without which no library is loaded")
    return _Parts(found) if dynamic is None else _with_dynamic(found, image, dynamic)


def _with_dynamic(found: ElfFile, image: ElfImage, tags: Mapping[int, Sequence[int]]) -> _Parts:
    """Add the values of the dynamic part."""

    def one(tag: int) -> int | None:
        return tags[tag][-1] if tag in tags else None  # the loader uses the last one

    names, size = one(_STRTAB), one(_STRSZ)
    if names is None or size is None:
        return _Parts(found)
    expect_symbols(image, one)
    text = image.texts(names, size)
    if len(tags.get(_NEEDED, ())) > _MOST_NEEDS:
        raise DamagedElf(f"it says it needs {len(tags[_NEEDED])} libraries")

    def directories(tag: int) -> tuple[str, ...]:
        value = one(tag)
        return (
            () if value is None else tuple(d for d in text(value, _MOST_TEXT_BYTES).split(":") if d)
        )

    soname = one(_SONAME)
    numbers: dict[int, str] = {}
    file = replace(
        found,
        soname=None if soname is None else text(soname),
        needed=tuple(dict.fromkeys(text(value) for value in tags.get(_NEEDED, ()))),
        rpath=directories(_RPATH),
        runpath=directories(_RUNPATH),
        default_directories=not (one(_FLAGS_1) or 0) & _NO_DEFAULT_DIRECTORIES,
        versions=_versions(image, text, one(_VERNEED), one(_VERNEEDNUM), numbers),
        provides=_provides(image, text, one(_VERDEF), one(_VERDEFNUM), numbers),
    )
    return _Parts(file, partial(read_symbols, image, one, numbers))


def _versions(
    image: ElfImage,
    text: Callable[[int], str],
    at: int | None,
    count: int | None,
    numbers: dict[int, str],
) -> dict[str, tuple[str, ...]]:
    """Read which versions it requires from which library; adds their `numbers`."""
    found: dict[str, dict[str, None]] = {}
    read = 0
    for _ in range(_bounded(count) if at else 0):
        assert at is not None
        _, parts, library, first, following = image.fields(_NEED, at)
        wanted = found.setdefault(text(library), {})
        part = at + first
        read += parts
        for _ in range(_bounded(parts, read)):
            _, flags, number, name, next_part = image.fields(_NEED_AUX, part)
            numbers[number & _VERSION_NUMBER] = text(name)
            if not flags & _WEAK:
                wanted[text(name)] = None
            if not next_part:
                break
            part += next_part
        if not following:
            break
        at += following
    return {library: tuple(versions) for library, versions in found.items()}


def _provides(
    image: ElfImage,
    text: Callable[[int], str],
    at: int | None,
    count: int | None,
    numbers: dict[int, str],
) -> tuple[str, ...]:
    """Read which versions it defines itself; the first is its own name, which is no version of
    symbols. Adds the others' `numbers`.
    """
    found: dict[str, None] = {}
    for _ in range(_bounded(count) if at else 0):
        assert at is not None
        _, flags, number, _, _, first, following = image.fields(_DEFINITION, at)
        name, _ = image.fields(_DEFINITION_AUX, at + first)
        found[text(name)] = None
        if not flags & _BASE:
            numbers[number & _VERSION_NUMBER] = text(name)
        if not following:
            break
        at += following
    return tuple(found)


def _bounded(count: int | None, total: int = 0) -> int:
    if max(count or 0, total) > _MOST_VERSIONS:
        raise DamagedElf(f"it says it has {max(count or 0, total)} versions")
    return count or 0
