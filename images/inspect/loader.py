"""Simulates how the dynamic loader of an image finds libraries (ld.so(8))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname
from typing import Literal

from images.inspect.contents import Contents
from images.inspect.dynamic import ElfFile, Machine
from images.inspect.tree import ImageFile

_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM))")
Status = Literal["found", "driver", "loaded-before", "base", "optional", "elsewhere", "missing"]
"""Where a needed library comes from. "loaded-before": a related package has it, and is imported
first. "base": a wheel may rely on it. "elsewhere": it is in the image, but the loader does not look
there. "optional": it is missing, and what needs it is for some machines only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededLibrary:
    """One library that a file needs. `root` is the program or module that was being loaded;
    `required`: loading it must work. `where` is the file that was found.
    """

    file: str
    name: str
    status: Status
    root: str
    required: bool
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMissing:
    """A version ("GLIBC_2.38") that a file requires from a library, and that the one found lacks.

    `newest` is the newest of the same series that it has.
    """

    file: str
    version: str
    library: str
    newest: str | None
    root: str
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolMissing:
    """A symbol that a file needs and that nothing which the loader searches defines.

    `symbol` is as in the file (C++ names are mangled); `version` None: it may have any. `searched`
    are the libraries that the file itself needs. `where` is another file of the image that defines
    it: if that is loaded before for all (RTLD_GLOBAL), the file loads.
    """

    file: str
    symbol: str
    version: str | None
    root: str
    required: bool
    searched: tuple[str, ...]
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """An ELF file that could not be read, and whether it is required to work."""

    file: str
    why: str
    required: bool


@dataclass(eq=False, slots=True)
class Mapped:
    """A file that the loader has mapped. `loader` is the file that needed it."""

    path: str
    file: ImageFile
    elf: ElfFile
    loader: Mapped | None

    @property
    def rpath(self) -> tuple[str, ...]:
        return () if self.elf.runpath else self.elf.rpath


class Loader:
    """Finds libraries in one image."""

    def __init__(
        self, contents: Contents, machine: Machine, cache: Mapping[str, Sequence[str]]
    ) -> None:
        self._tree = contents.tree
        self._machine = machine
        self._cache = cache
        self._seen: dict[tuple[str, str], tuple[str, ImageFile] | None] = {}
        listed = re.split("[:;]", contents.environment.get("LD_LIBRARY_PATH", ""))
        self._library_path = [path for path in listed if path.startswith("/")]
        triplet = f"{machine}-linux-gnu"
        self._libs = (f"lib/{triplet}", "lib64", "lib")
        self._default = [
            f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
        ]  # fmt: skip
        if self._tree.file(f"/lib/ld-musl-{machine}.so.1") is not None:
            self._default += ["/usr/local/lib"]

    def search(
        self, name: str, asker: Mapped, program: Mapped | None
    ) -> tuple[str, ImageFile] | None:
        """Find a library as the loader would for the file `asker`."""
        if "/" in name:
            return self._usable(name) if name.startswith("/") else None
        for directory in self._directories(asker, program):
            if found := self._in(directory, name):
                return found
        if asker.elf.default_directories:
            for path in self._cache.get(name, ()):
                if found := self._usable(path):
                    return found
            for directory in self._default:
                if found := self._in(directory, name):
                    return found
        return None

    def _directories(self, asker: Mapped, program: Mapped | None) -> Iterator[str]:
        if not asker.elf.runpath:
            chain = [asker]
            while (above := chain[-1].loader) is not None:
                chain.append(above)
            if program is not None and program is not chain[-1]:
                chain.append(program)
            for one in chain:
                yield from self._expanded(one.rpath, one)
        yield from self._library_path
        yield from self._expanded(asker.elf.runpath, asker)

    def _expanded(self, entries: Sequence[str], owner: Mapped) -> Iterator[str]:
        for entry in entries:
            for lib in self._libs if "LIB" in entry else ("",):
                path = _expand(
                    entry,
                    {"ORIGIN": dirname(owner.path), "LIB": lib, "PLATFORM": self._machine},
                )
                if path.startswith("/"):  # relative ones depend on the process's working directory
                    yield path

    def _in(self, directory: str, name: str) -> tuple[str, ImageFile] | None:
        key = directory, name
        if key not in self._seen:
            self._seen[key] = self._usable(f"{directory.rstrip('/')}/{name}")
        return self._seen[key]

    def _usable(self, path: str) -> tuple[str, ImageFile] | None:
        file = self._tree.file(path)
        mine = file is not None and file.elf is not None and file.elf.machine == self._machine
        return (path, file) if mine and file is not None else None


def _expand(entry: str, values: Mapping[str, str]) -> str:
    """Expand $ORIGIN, $LIB and $PLATFORM."""
    return _TOKEN.sub(lambda match: values[match[1] or match[2]], entry)
