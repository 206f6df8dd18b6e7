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
from typing import Literal, NamedTuple

from images.inspect.windows import NotKept, OutsideFile, Windows

MAGIC = b"\x7fELF"
Machine = Literal["x86_64", "aarch64"]
Read = Callable[[int, int], bytes]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_NEED = struct.Struct("<HHIII")
_NEED_AUX = struct.Struct("<IHHII")
_DEFINITION = struct.Struct("<HHHHIII")
_DEFINITION_AUX = struct.Struct("<II")
_MACHINES: Mapping[int, Machine] = {62: "x86_64", 183: "aarch64"}
_KINDS: Mapping[int, Literal["program", "library"]] = {2: "program", 3: "library"}
_LOAD, _DYNAMIC_PART, _INTERPRETER = 1, 2, 3
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29
_FLAGS_1, _VERDEF, _VERDEFNUM = 0x6FFFFFFB, 0x6FFFFFFC, 0x6FFFFFFD
_VERNEED, _VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_NO_DEFAULT_DIRECTORIES = 0x800
_WEAK = 2
_MOST_PROGRAM_HEADERS = 128
_MOST_DYNAMIC_BYTES = 1 << 20
_MOST_NEEDS = 1 << 12
_MOST_VERSIONS = 1 << 12
_MOST_NAME_BYTES = 1 << 12
_MOST_TEXT_BYTES = 1 << 16
_MOST_TABLE_BYTES = 32 << 20
_STEP_BYTES = 1 << 16
_MOST_PASSES = 4


class DamagedElf(ValueError):  # noqa: N818  the caller names the file
    """What is wrong with the file, as the rest of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """One ELF file, as the loader sees it.

    `machine` None: an unsupported machine; nothing else is known then. `kind` is "other" for what
    no loader loads (object files). `interpreter` is the loader that a program names. `rpath` is
    used only without a `runpath`; both are as written, with $ORIGIN. `versions` maps a needed
    library to the versions required from it; weak ones may be missing and are omitted. `provides`
    are the versions that it defines itself.
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

    @property
    def is_program(self) -> bool:
        """Whether it can be started: because of its kind, or because it names a loader."""
        return self.kind == "program" or self.interpreter is not None


class DynamicReader:
    """Reads one file that comes in pieces. `finish` says whether it must be fed again."""

    def __init__(self, size: int, *, head: int | None = None) -> None:
        self._windows = Windows(size) if head is None else Windows(size, head=head)
        self._due: int | None = min(size, _HEADER.size)
        self._passes = 1
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
            if self._passes == _MOST_PASSES or self._windows.at < self._windows.size:
                raise DamagedElf("it ends before what it speaks of")
            self._passes += 1
            self._windows.again()
            self._due = min(self._windows.size, _HEADER.size)
        return self.found

    def _try(self) -> None:
        try:
            try:
                self.found = read_dynamic(self._windows.read)
            except NotKept as part:
                self._due = self._windows.want(part)
        except OutsideFile as error:
            raise DamagedElf(f"it speaks of {error}") from error


def read_dynamic(read: Read) -> ElfFile:
    """Read a file through `read(begin, end)`. DamagedElf: it is truncated or invalid, or its tables
    point outside of it.
    """
    ident, kind, number, *_, programs_at, _, _, _, entry, count, _, _, _ = _HEADER.unpack(
        read(0, _HEADER.size)
    )
    if not ident.startswith(MAGIC):
        raise DamagedElf("it is no ELF file")
    machine = _MACHINES.get(number)
    if ident[4] != 2 or ident[5] != 1 or machine is None:  # 64 bits, little-endian
        return ElfFile(machine=None)
    if kind not in _KINDS or not count:
        return ElfFile(machine=machine)
    if entry != _PROGRAM.size or count > _MOST_PROGRAM_HEADERS:
        raise DamagedElf(f"it says it has {count} program headers of {entry} bytes")
    table = read(programs_at, programs_at + count * _PROGRAM.size)
    image = _Image(read, [_Segment(*row) for row in _PROGRAM.iter_unpack(table)])
    found = ElfFile(machine=machine, kind=_KINDS[kind], interpreter=image.interpreter())
    dynamic = image.dynamic()
    if dynamic is None and not found.is_program:
        raise DamagedElf("it has no dynamic part, without which no library is loaded")
    return found if dynamic is None else _with_dynamic(found, image, dynamic)


class _Segment(NamedTuple):
    """A program header, in the order of its fields."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    alignment: int


class _Image:
    """The file, by the addresses to which the loader would map it."""

    def __init__(self, read: Read, segments: Sequence[_Segment]) -> None:
        self._read = read
        self._segments = segments

    def at(self, address: int) -> tuple[int, int]:
        """(offset in the file, end of the segment that is mapped with it)."""
        for segment in self._segments:
            if segment.kind == _LOAD and 0 <= address - segment.address < segment.in_file:
                return (
                    segment.offset + address - segment.address,
                    segment.offset + segment.in_file,
                )
        raise DamagedElf(f"nothing of it is mapped at address {address:#x}")

    def fields(self, form: struct.Struct, address: int) -> tuple[int, ...]:
        """Read a record. If it is not kept, request more: what follows is probably needed next."""
        begin, end = self.at(address)
        try:
            return form.unpack(self._read(begin, begin + form.size))
        except NotKept:
            raise NotKept(begin, max(begin + form.size, min(begin + _STEP_BYTES, end))) from None

    def interpreter(self) -> str | None:
        for segment in self._segments:
            if segment.kind == _INTERPRETER:
                if segment.in_file > _MOST_TEXT_BYTES:
                    raise DamagedElf(f"the name of its loader has {segment.in_file} bytes")
                raw = self._read(segment.offset, segment.offset + segment.in_file)
                return _decoded(raw.partition(b"\0")[0])
        return None

    def dynamic(self) -> dict[int, list[int]] | None:
        """Read the dynamic part: tag -> its values, in order; None if there is none."""
        segment = next((s for s in self._segments if s.kind == _DYNAMIC_PART), None)
        if segment is None:
            return None
        if segment.in_file > _MOST_DYNAMIC_BYTES:
            raise DamagedElf(f"its dynamic part has {segment.in_file} bytes")
        begin, end = self.at(segment.address)
        end = min(end, begin + segment.in_file)
        raw = self._read(begin, end - (end - begin) % _DYNAMIC.size)
        found: dict[int, list[int]] = {}
        for tag, value in _DYNAMIC.iter_unpack(raw):
            if tag == 0:
                break
            found.setdefault(tag, []).append(value)
        return found

    def texts(self, address: int, size: int) -> Callable[..., str]:
        """Return a function that reads names from the string table at this address."""
        table, _ = self.at(address)

        def text(offset: int, most: int = _MOST_NAME_BYTES) -> str:
            if offset >= size:
                raise DamagedElf(f"a name lies at byte {offset} of {size} bytes of names")
            at, raw = offset, b""
            while b"\0" not in raw and at < size and len(raw) <= most:
                upto = min(at + 256, size)
                try:
                    raw += self._read(table + at, table + upto)
                except NotKept as part:
                    whole = size <= _MOST_TABLE_BYTES  # other names are needed soon
                    raise (NotKept(table, table + size) if whole else part) from None
                at = upto
            name, end, _ = raw.partition(b"\0")
            if not end:
                raise DamagedElf("a name in it has no end, or is far too long")
            return _decoded(name)

        return text


def _with_dynamic(found: ElfFile, image: _Image, tags: Mapping[int, Sequence[int]]) -> ElfFile:
    """Add the values of the dynamic part."""

    def one(tag: int) -> int | None:
        return tags[tag][-1] if tag in tags else None  # the loader uses the last one

    names, size = one(_STRTAB), one(_STRSZ)
    if names is None or size is None:
        return found
    text = image.texts(names, size)
    if len(tags.get(_NEEDED, ())) > _MOST_NEEDS:
        raise DamagedElf(f"it says it needs {len(tags[_NEEDED])} libraries")

    def directories(tag: int) -> tuple[str, ...]:
        value = one(tag)
        return (
            () if value is None else tuple(d for d in text(value, _MOST_TEXT_BYTES).split(":") if d)
        )

    soname = one(_SONAME)
    return replace(
        found,
        soname=None if soname is None else text(soname),
        needed=tuple(dict.fromkeys(text(value) for value in tags.get(_NEEDED, ()))),
        rpath=directories(_RPATH),
        runpath=directories(_RUNPATH),
        default_directories=not (one(_FLAGS_1) or 0) & _NO_DEFAULT_DIRECTORIES,
        versions=_versions(image, text, one(_VERNEED), one(_VERNEEDNUM)),
        provides=_provides(image, text, one(_VERDEF), one(_VERDEFNUM)),
    )


def _versions(
    image: _Image, text: Callable[[int], str], at: int | None, count: int | None
) -> dict[str, tuple[str, ...]]:
    """Read which versions it requires from which library."""
    found: dict[str, dict[str, None]] = {}
    read = 0
    for _ in range(_bounded(count) if at else 0):
        assert at is not None
        _, parts, library, first, following = image.fields(_NEED, at)
        wanted = found.setdefault(text(library), {})
        part = at + first
        read += parts
        for _ in range(_bounded(parts, read)):
            _, flags, _, name, next_part = image.fields(_NEED_AUX, part)
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
    image: _Image, text: Callable[[int], str], at: int | None, count: int | None
) -> tuple[str, ...]:
    """Read which versions it defines itself; the first is its own name."""
    found: dict[str, None] = {}
    for _ in range(_bounded(count) if at else 0):
        assert at is not None
        *_, first, following = image.fields(_DEFINITION, at)
        name, _ = image.fields(_DEFINITION_AUX, at + first)
        found[text(name)] = None
        if not following:
            break
        at += following
    return tuple(found)


def _bounded(count: int | None, total: int = 0) -> int:
    if max(count or 0, total) > _MOST_VERSIONS:
        raise DamagedElf(f"it says it has {max(count or 0, total)} versions")
    return count or 0


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
