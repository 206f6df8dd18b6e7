"""Makes small ELF files with a dynamic part: what a linker would, and what it never would."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
X86_64, AARCH64 = 62, 183


def elf(
    *,
    needed: Sequence[str] = (),
    soname: str | None = None,
    rpath: str | None = None,
    runpath: str | None = None,
    versions: Mapping[str, Sequence[str]] | None = None,
    weak: Mapping[str, Sequence[str]] | None = None,
    provides: Sequence[str] = (),
    interpreter: str | None = None,
    no_default: bool = False,
    machine: int = X86_64,
    kind: int = 3,
    filling: int = 0,
    behind: bool = False,
    extra: bytes = b"",
    wants: Sequence[str] = (),
    calls: Sequence[str] = (),
    weak_wants: Sequence[str] = (),
    unused: Sequence[str] = (),
    defines: Sequence[str] = (),
    sysv_hash: bool = False,
    binds_now: bool = False,
) -> bytes:
    """An ELF file; `filling` bytes lie before its dynamic part, and `behind` puts the names and
    versions behind that. `extra` is what follows: device code, for instance.

    Symbols are written as nm does: "name", "name@VERSION" (hidden if it is defined) or
    "name@@VERSION" (the default). Relocations look up `wants` when it is loaded and `calls` at the
    first call; no relocation is for `unused` ones. ".name" is local to the file (STV_HIDDEN).
    """
    names = bytearray(b"\0")

    def name(text: str) -> int:
        at = len(names)
        names.extend(text.encode("utf-8", "surrogateescape") + b"\0")
        return at

    rows = [(1, name(one)) for one in needed]
    rows += [(tag, name(text)) for tag, text in ((14, soname), (15, rpath), (29, runpath)) if text]
    numbers = {version: number for number, version in enumerate(provides, 1)}
    needs = _needs(name, versions or {}, weak or {}, numbers)
    defined = _definitions(name, provides)
    undefined = [(one, 0x10) for one in (*wants, *calls, *unused)]
    undefined += [(one, 0x20) for one in weak_wants]
    symbols, version_numbers = _symbols(name, undefined, defines, numbers)
    first = len(wants)
    late = [len(undefined) - len(weak_wants) + number for number in range(len(weak_wants))]
    relocations = _relocations([*range(first), *late])
    jumps = _relocations(range(first, first + len(calls)))
    hashed = _hash(1 + len(undefined), len(defines), sysv=sysv_hash)
    loader = (interpreter or "").encode() + b"\0" if interpreter else b""
    programs = 3 if interpreter else 2
    start = 64 + 56 * programs
    count = len({*(versions or {}), *(weak or {})})
    rows += [(5, 0), (10, len(names))]
    rows += [(0x6FFFFFFE, 0), (0x6FFFFFFF, count)] if needs else []
    rows += [(0x6FFFFFFC, 0), (0x6FFFFFFD, len(provides))] if defined else []
    rows += [(0x6FFFFFFB, 0x800)] if no_default else []
    rows += [(24, 0)] if binds_now else []
    has_symbols = bool(undefined or defines)
    rows += [(6, 0), (4 if sysv_hash else 0x6FFFFEF5, 0)] if has_symbols else []
    rows += [(0x6FFFFFF0, 0)] if any(version_numbers) else []
    rows += [(7, 0), (8, len(relocations)), (0x6FFFFFF9, 0)] if relocations else []
    rows += [(23, 0), (2, len(jumps))] if jumps else []
    size = 16 * (len(rows) + 1)
    tables = [bytes(names) + b"\0" * (-len(names) % 8), needs, defined]
    tables += [symbols, hashed, struct.pack(f"<{len(version_numbers)}H", *version_numbers)]
    tables[-1] += b"\0" * (-len(tables[-1]) % 8)
    tables += [relocations, jumps] if has_symbols else []
    if not has_symbols:
        tables = tables[:3]
    if behind:
        dynamic_at = start + len(loader) + filling
        table_at = dynamic_at + size
    else:
        table_at = start + len(loader)
        dynamic_at = table_at + sum(map(len, tables)) + filling
    places = {}
    at = table_at
    tags = (5, 0x6FFFFFFE, 0x6FFFFFFC, 6, 4 if sysv_hash else 0x6FFFFEF5, 0x6FFFFFF0, 7, 23)
    for tag, part in zip(tags, tables, strict=False):
        places[tag] = at
        at += len(part)
    dynamic = b"".join(
        struct.pack("<qQ", tag, places.get(tag, value)) for tag, value in [*rows, (0, 0)]
    )
    body = b"".join(tables)
    middle = b"\xcc" * filling
    content = middle + dynamic + body if behind else body + middle + dynamic
    whole = start + len(loader) + len(content) + len(extra)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1" + b"\0" * 9, kind, machine, 1, 0, 64, 0, 0, 64, 56,
        programs, 64, 0, 0,
    )  # fmt: skip
    table = _program(_LOAD, 0, whole) + _program(_DYNAMIC, dynamic_at, size)
    if interpreter:
        table += _program(_INTERPRETER, start, len(loader))
    return header + table + loader + content + extra


def _program(kind: int, at: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 4, at, at, at, size, size, 8)


def _symbols(
    name: Callable[[str], int],
    undefined: Sequence[tuple[str, int]],
    defines: Sequence[str],
    numbers: Mapping[str, int],
) -> tuple[bytes, list[int]]:
    """The table of symbols and their version numbers: first the undefined ones."""
    rows, versions = [bytes(24)], [0]
    marked = [(text, info, 0) for text, info in undefined] + [(text, 0x12, 7) for text in defines]
    for text, info, section in marked:
        bare, at, version = text.partition("@")
        visibility = 2 if bare.startswith(".") else 0
        place = name(bare.lstrip("."))
        rows.append(
            struct.pack("<IBBHQQ", place, info, visibility, section, 0x1000 if section else 0, 8)
        )
        hidden = at and section and not version.startswith("@")
        versions.append(
            (numbers[version.lstrip("@")] if at else 1 if numbers else 0)
            | (0x8000 if hidden else 0)
        )
    return b"".join(rows), versions


def _relocations(symbols: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<QIIq", 0x2000, 6, 1 + symbol, 0) for symbol in symbols)


def _hash(first: int, count: int, *, sysv: bool) -> bytes:
    """One bucket for all that is defined; as a linker does, an empty table starts at 1."""
    if sysv:
        chain = [0, *range(2, first + count), 0]
        blob = struct.pack(f"<III{len(chain)}I", 1, len(chain), 1, *chain)
    elif not count:
        blob = struct.pack("<IIIIQI", 1, 1, 1, 0, 0, 0)
    else:
        hashes = [2] * (count - 1) + [3]
        blob = struct.pack(f"<IIIIQI{count}I", 1, first, 1, 0, 2**64 - 1, first, *hashes)
    return blob + b"\0" * (-len(blob) % 8)


def _needs(
    name: Callable[[str], int],
    versions: Mapping[str, Sequence[str]],
    weak: Mapping[str, Sequence[str]],
    numbers: dict[str, int],
) -> bytes:
    blob = b""
    libraries = list(dict.fromkeys([*versions, *weak]))
    for position, library in enumerate(libraries):
        asked = [(v, 0) for v in versions.get(library, ())] + [
            (v, 2) for v in weak.get(library, ())
        ]
        last = position == len(libraries) - 1
        blob += struct.pack(
            "<HHIII", 1, len(asked), name(library), 16, 0 if last else 16 + 16 * len(asked)
        )
        for number, (version, flags) in enumerate(asked):
            following = 0 if number == len(asked) - 1 else 16
            other = numbers.setdefault(version, max(numbers.values(), default=1) + 1)
            blob += struct.pack("<IHHII", 0, flags, other, name(version), following)
    return blob


def _definitions(name: Callable[[str], int], provides: Sequence[str]) -> bytes:
    blob = b""
    for number, version in enumerate(provides):
        following = 0 if number == len(provides) - 1 else 28
        base = 0 if number else 1  # the first is the file's own name
        blob += struct.pack("<HHHHIII", 1, base, number + 1, 1, 0, 20, following)
        blob += struct.pack("<II", name(version), 0)
    return blob
