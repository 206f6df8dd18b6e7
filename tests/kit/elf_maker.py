"""Makes small ELF files with a dynamic part: what a linker would, and what it never would."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

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
) -> bytes:
    """An ELF file; `filling` bytes lie before its dynamic part, and `behind` puts the names and
    versions behind that. `extra` is what follows: device code, for instance.
    """
    names = bytearray(b"\0")

    def name(text: str) -> int:
        at = len(names)
        names.extend(text.encode() + b"\0")
        return at

    rows = [(1, name(one)) for one in needed]
    rows += [(tag, name(text)) for tag, text in ((14, soname), (15, rpath), (29, runpath)) if text]
    needs = _needs(name, versions or {}, weak or {})
    defined = _definitions(name, provides)
    loader = (interpreter or "").encode() + b"\0" if interpreter else b""
    programs = 3 if interpreter else 2
    start = 64 + 56 * programs
    count = len({*(versions or {}), *(weak or {})})
    rows += [(5, 0), (10, len(names))]
    rows += [(0x6FFFFFFE, 0), (0x6FFFFFFF, count)] if needs else []
    rows += [(0x6FFFFFFC, 0), (0x6FFFFFFD, len(provides))] if defined else []
    rows += [(0x6FFFFFFB, 0x800)] if no_default else []
    size = 16 * (len(rows) + 1)
    tables = [bytes(names) + b"\0" * (-len(names) % 8), needs, defined]
    if behind:
        dynamic_at = start + len(loader) + filling
        table_at = dynamic_at + size
    else:
        table_at = start + len(loader)
        dynamic_at = table_at + sum(map(len, tables)) + filling
    places = {5: table_at, 0x6FFFFFFE: table_at + len(tables[0])}
    places[0x6FFFFFFC] = places[0x6FFFFFFE] + len(needs)
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


def _needs(
    name: Callable[[str], int],
    versions: Mapping[str, Sequence[str]],
    weak: Mapping[str, Sequence[str]],
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
            blob += struct.pack("<IHHII", 0, flags, 2, name(version), following)
    return blob


def _definitions(name: Callable[[str], int], provides: Sequence[str]) -> bytes:
    blob = b""
    for number, version in enumerate(provides):
        following = 0 if number == len(provides) - 1 else 28
        blob += struct.pack("<HHHHIII", 1, 0, number + 1, 1, 0, 20, following)
        blob += struct.pack("<II", name(version), 0)
    return blob
