"""Reads what the loader reads of the programs and libraries in a wheel or a base image.

The result depends on the content alone, so it can be kept under the content's digest and `FORMAT`.
Reading a wheel inflates its programs and libraries, each only as far as the loader's tables go.

    python -m images.inspect.facts WHEEL...

prints those of each wheel on a line, so that several processes can read: inflating holds the GIL.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from images.inspect.archive import WheelArchive
from images.inspect.contents import Contents
from images.inspect.dynamic import MAGIC, DynamicReader, ElfFile
from images.inspect.segments import DamagedElf
from images.inspect.source import open_file
from images.inspect.symbols import Symbols, Wanted
from images.inspect.tree import ImageFile, SymbolicLink
from images.wheels.directory import Member

FORMAT = 1
"""Part of the key of kept facts: raise it when other facts are read of the same content."""

CACHE = "/etc/ld.so.cache"
_MOST_SYMBOLS_BYTES = 1 << 30  # of one wheel, in memory
_MOST_NAMES_BYTES = 256 << 20
_LAZY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFacts:
    """A program or library: as the loader sees it, or the `problem` for which it cannot."""

    size: int
    elf: ElfFile | None = None
    problem: str | None = None
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """The ELF `files` of a wheel by their members' names; of a base by their paths, with its
    symbolic `links` and the loader's `cache`.
    """

    files: Mapping[str, ElfFacts]
    links: Mapping[str, str] = field(default_factory=dict)
    cache: bytes | None = None


def read_wheel_facts(path: str) -> LoadFacts:
    """Read those of a wheel on this machine. WheelUnreadableError: it is damaged."""
    source = open_file(path)
    try:
        return _read_archive(WheelArchive(source))
    finally:
        source.close()


def _read_archive(archive: WheelArchive) -> LoadFacts:
    files: dict[str, ElfFacts] = {}
    kept = 0
    for name, member in archive.members.items():
        if member.size < len(MAGIC) or name.endswith("/"):
            continue
        found = _read_member(archive, member)
        if found is None:
            continue
        if found.elf is not None and found.elf.symbols is not None:
            kept += found.elf.symbols.memory_bytes
            if kept > _MOST_SYMBOLS_BYTES:
                found = replace(found, elf=replace(found.elf, symbols=None))
        files[name] = found
    return LoadFacts(files=files)


def _read_member(archive: WheelArchive, member: Member) -> ElfFacts | None:
    """None: it is no ELF file."""
    reader = DynamicReader(member.size)
    try:
        while True:  # a reader may need the file again, from its beginning
            start = b""
            for piece in archive.stream(member):
                if len(start) < len(MAGIC):
                    start += piece[: len(MAGIC)]
                    if not start.startswith(MAGIC[: len(start)]):
                        return None
                reader.feed(piece)
                if reader.found is not None:  # what follows is code
                    break
            if (elf := reader.finish()) is not None:
                return ElfFacts(size=member.size, elf=elf)
    except DamagedElf as error:
        return ElfFacts(size=member.size, problem=str(error))


def facts_of_base(contents: Contents) -> LoadFacts:
    """Those of a base that was read. What its own files need is left out: only what they define is
    asked for.
    """
    files: dict[str, ElfFacts] = {}
    links: dict[str, str] = {}
    for path, node in contents.tree.walk():
        if isinstance(node, SymbolicLink):
            links[path] = node.target
        elif isinstance(node, ImageFile) and (node.elf is not None or node.problem is not None):
            files[path] = ElfFacts(
                size=node.size, elf=node.elf, problem=node.problem, executable=node.executable
            )
    cache = contents.tree.file(CACHE)
    text = cache.text if cache is not None else None
    return without_wanted(LoadFacts(files=files, links=links, cache=text))


def without_wanted(facts: LoadFacts) -> LoadFacts:
    """The same facts without the symbols that the files need."""
    return replace(
        facts,
        files={
            name: replace(one, elf=replace(one.elf, symbols=replace(one.elf.symbols, wanted=())))
            if one.elf is not None and one.elf.symbols is not None
            else one
            for name, one in facts.files.items()
        },
    )


def facts_to_json(facts: LoadFacts) -> dict[str, Any]:
    """Convert them to JSON; names and hashes are packed."""
    return {
        "files": {name: _file_to_json(one) for name, one in facts.files.items()},
        "links": dict(facts.links),
        "cache": None if facts.cache is None else _packed(facts.cache),
    }


def facts_from_json(document: Mapping[str, Any] | None) -> LoadFacts | None:
    """Read the output of `facts_to_json`; None if it is invalid: read the content again."""
    if document is None:
        return None
    try:
        cache = document["cache"]
        return LoadFacts(
            files={str(name): _file_from_json(one) for name, one in document["files"].items()},
            links={str(path): str(target) for path, target in document["links"].items()},
            cache=None if cache is None else _unpacked(cache),
        )
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, struct.error):
        return None


def _file_to_json(one: ElfFacts) -> dict[str, Any]:
    elf = one.elf
    return {
        "size": one.size,
        "problem": one.problem,
        "executable": one.executable,
        "elf": None
        if elf is None
        else {
            **{name: getattr(elf, name) for name in _PLAIN},
            **{name: list(getattr(elf, name)) for name in _LISTS},
            "versions": {library: list(names) for library, names in elf.versions.items()},
            "symbols": None if elf.symbols is None else _symbols_to_json(elf.symbols),
        },
    }


_PLAIN = ("machine", "kind", "interpreter", "soname", "default_directories")
_LISTS = ("needed", "rpath", "runpath", "provides")


def _file_from_json(document: Mapping[str, Any]) -> ElfFacts:
    found = document["elf"]
    elf = None
    if found is not None:
        symbols = found["symbols"]
        elf = ElfFile(
            machine=found["machine"],
            kind=found["kind"],
            interpreter=found["interpreter"],
            soname=found["soname"],
            default_directories=found["default_directories"],
            needed=tuple(map(str, found["needed"])),
            rpath=tuple(map(str, found["rpath"])),
            runpath=tuple(map(str, found["runpath"])),
            provides=tuple(map(str, found["provides"])),
            versions={
                library: tuple(map(str, names)) for library, names in found["versions"].items()
            },
            symbols=None if symbols is None else _symbols_from_json(symbols),
        )
    return ElfFacts(
        size=int(document["size"]),
        problem=document["problem"],
        executable=bool(document["executable"]),
        elf=elf,
    )


def _symbols_to_json(symbols: Symbols) -> dict[str, Any]:
    versions = list(dict.fromkeys(want.version for want in symbols.wanted))
    number = {version: at for at, version in enumerate(versions)}
    marks = array("H", (number[w.version] << 1 | (_LAZY if w.lazy else 0) for w in symbols.wanted))
    return {
        "wanted": _packed(b"\0".join(want.name for want in symbols.wanted)),
        "marks": _packed(marks.tobytes()),
        "versions": [None if one is None else _packed(one) for one in versions],
        "exported": _hashes(symbols.exported),
        "others": _hashes(symbols.others),
        "version": None if symbols.version is None else _packed(symbols.version),
    }


def _symbols_from_json(document: Mapping[str, Any]) -> Symbols:
    versions = [None if one is None else _unpacked(one) for one in document["versions"]]
    marks = array("H", _unpacked(document["marks"]))
    names = _unpacked(document["wanted"]).split(b"\0") if marks else []
    version = document["version"]
    return Symbols(
        wanted=tuple(
            Wanted(name, versions[mark >> 1], bool(mark & _LAZY))
            for name, mark in zip(names, marks, strict=True)
        ),
        exported=frozenset(array("Q", base64.b64decode(document["exported"], validate=True))),
        others=frozenset(array("Q", base64.b64decode(document["others"], validate=True))),
        version=None if version is None else _unpacked(version),
    )


def _hashes(found: frozenset[int]) -> str:
    return base64.b64encode(array("Q", sorted(found)).tobytes()).decode()


def _packed(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 1)).decode()


def _unpacked(text: str) -> bytes:
    inflater = zlib.decompressobj()
    raw = inflater.decompress(base64.b64decode(text, validate=True), _MOST_NAMES_BYTES)
    if not inflater.eof:
        raise ValueError("its packed names are incomplete, or too long")
    return raw


def main(paths: Sequence[str]) -> int:
    """Print the facts of wheels as JSON, one wheel a line."""
    for path in paths:
        sys.stdout.write(f"{json.dumps(facts_to_json(read_wheel_facts(path)))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
