"""Finds symbols that a file needs and that nothing which the loader searches defines.

The loader searches the program and its libraries, then the module and its libraries. Python loads
modules at once (RTLD_NOW), so their calls count, too. A library is relocated when it is loaded for
the first time, and the order in which Python imports modules is unknown: one load in which a symbol
is found is enough. What a related package defines may have been loaded for all (RTLD_GLOBAL).

A symbol is not judged if something in the scope was not read and may define it.
https://man7.org/linux/man-pages/man3/dlopen.3.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain

from images.inspect.known_libraries import find_known
from images.inspect.loader import SymbolMissing
from images.inspect.segments import decoded
from images.inspect.symbols import Symbols, Wanted
from images.inspect.tree import ImageFile

_MOST_LOOKUPS = 100_000_000
_MOST_MISSING = 10_000
_UNKNOWN_PROGRAM = "(the program that loads it)"
_TOO_MANY = "(more symbols than are looked up)"


@dataclass(slots=True, eq=False, kw_only=True)
class Load:
    """What the loader maps for one root, in order, and what each of these files needs.

    `links` are the libraries that it needs and that are in the image; `absent` are the names of the
    others. `known_program`: the root is a program, or a module for the Python of the image.
    """

    root: ImageFile
    required: bool
    by_python: bool
    known_program: bool = True
    links: dict[ImageFile, list[ImageFile]] = field(default_factory=dict)
    absent: dict[ImageFile, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolNeeds:
    """How many symbols of all files are `found`, how many are not judged, and which are missing."""

    found: int = 0
    unjudged: int = 0
    missing: tuple[SymbolMissing, ...] = ()


@dataclass(slots=True)
class _Open:
    """The symbols of a file that were not found so far, and the names of what was not read.

    `load` is a load of the file: one that must work, if there is one.
    """

    left: Sequence[Wanted]
    load: Load
    unread: set[str] = field(default_factory=set)


_Group = dict[ImageFile, _Open]
_Missing = dict[tuple[ImageFile, bytes, bytes | None], tuple[Wanted, Load, bool]]
"""(file, symbol, version) -> the same, its load, and whether loading must work."""


class SymbolSearch:
    """Searches the symbols of all files, after everything was loaded.

    `names` are the paths of all files of the image. `related` says whether one file may rely on
    what the package of another has loaded. `ignored` says whether a version that a file requires is
    missing as a whole.
    """

    def __init__(
        self,
        names: Mapping[ImageFile, str],
        *,
        program: Load | None,
        related: Callable[[ImageFile, ImageFile], bool],
        ignored: Callable[[ImageFile, str], bool],
    ) -> None:
        self._names = names
        self._program = program
        self._related = related
        self._ignored = ignored
        self._best: dict[ImageFile, Load] = {}
        self._lookups = 0

    def search(self, loads: Sequence[Load]) -> SymbolNeeds:
        """Search everything. Programs have a process each; Python's modules share one."""
        for load in loads:
            for file in load.links:
                if self._best.setdefault(file, load).absent.get(file) and not load.absent.get(file):
                    self._best[file] = load
        groups: list[_Group] = [{}]
        for load in loads:
            if load.by_python:
                self._look(load, groups[0])
            elif load.required:
                groups.append({})
                self._look(load, groups[-1])
        return self._conclude(groups)

    def _look(self, load: Load, group: _Group) -> None:
        """Search what is still open of each of its files."""
        scope: Sequence[ImageFile] | None = None
        unread: set[str] = set()
        for file in load.links:
            symbols = _symbols(file)
            if symbols is None:
                continue
            one = group.setdefault(file, _Open(symbols.wanted, load))
            if load.required and not one.load.required:
                one.load = load
            if not one.left:
                continue
            if scope is None:
                scope, unread = self._scope(load)
            # the order does not matter here; most are in what the file itself needs
            one.left = self._undefined(one.left, chain(load.links[file], scope))
            one.unread |= unread
            if self._lookups > _MOST_LOOKUPS:
                one.unread.add(_TOO_MANY)

    def _scope(self, load: Load) -> tuple[Sequence[ImageFile], set[str]]:
        """The files that are searched, and the names of those that are not in the image.

        A library that was loaded before brings its own libraries, as they were found then.
        """
        unread: set[str] = set() if load.known_program else {_UNKNOWN_PROGRAM}
        roots = [(load.root, load)]
        if load.by_python and self._program is not None:
            roots.insert(0, (self._program.root, self._program))
        seen: dict[ImageFile, None] = {}
        for root, own in roots:
            waiting = [root]
            for file in waiting:
                if file in seen:
                    continue
                seen[file] = None
                where = own if file in own.links else self._best.get(file, own)
                waiting += where.links.get(file, ())
                unread |= where.absent.get(file, set())
                if _symbols(file) is None:
                    unread.add(self._names[file])
        return list(seen), unread

    def _undefined(self, left: Sequence[Wanted], scope: Iterable[ImageFile]) -> Sequence[Wanted]:
        for file in scope:
            if not left or self._lookups > _MOST_LOOKUPS:
                break
            if (symbols := _symbols(file)) is not None:
                self._lookups += len(left)
                left = symbols.without(left)
        return left

    def _conclude(self, groups: Sequence[_Group]) -> SymbolNeeds:
        missing: _Missing = {}
        total: dict[ImageFile, int] = {}
        unjudged: dict[ImageFile, int] = {}
        for group in groups:
            for file, one in group.items():
                symbols = _symbols(file)
                assert symbols is not None
                total[file] = len(symbols.wanted)
                judged = list(self._judged(file, one))
                unjudged[file] = max(unjudged.get(file, 0), len(one.left) - len(judged))
                for want in judged[: _MOST_MISSING - len(missing)]:
                    required = one.load.required and (one.load.by_python or not want.lazy)
                    key = file, want.name, want.version
                    if key not in missing or (required and not missing[key][2]):
                        missing[key] = want, one.load, required
        found = tuple(self._reported(missing))
        skipped = sum(unjudged.values())
        return SymbolNeeds(
            found=sum(total.values()) - skipped - len(found), unjudged=skipped, missing=found
        )

    def _judged(self, file: ImageFile, one: _Open) -> Iterator[Wanted]:
        """Those that nothing defines, whatever was not read."""
        if not one.left:
            return
        patterns: list[str] = []
        for name in one.unread:
            row = find_known(name, "driver")
            if row is None or not row.symbols:
                return
            patterns += row.symbols
        for want in one.left:
            text = decoded(want.name)
            if want.version is not None and self._ignored(file, decoded(want.version)):
                continue
            if not any(fnmatchcase(text, pattern) for pattern in patterns):
                yield want

    def _reported(self, missing: _Missing) -> Iterator[SymbolMissing]:
        """Those that no related package defines, and which other file of the image does."""
        keys = {key for want, _, _ in missing.values() for key in want.keys}
        definers = [
            (file, symbols)
            for file in (self._names if missing else ())
            if (symbols := _symbols(file)) is not None
            and not (keys.isdisjoint(symbols.exported) and keys.isdisjoint(symbols.others))
        ]
        for (file, _, _), (want, load, required) in missing.items():
            others = [one for one, symbols in definers if symbols.defines(want)]
            if any(self._related(file, other) for other in others):
                continue
            where = self._best[file].links[file]
            yield SymbolMissing(
                file=self._names[file],
                symbol=decoded(want.name),
                version=None if want.version is None else decoded(want.version),
                root=self._names[load.root],
                required=required and not others,
                searched=tuple(self._names[library] for library in where),
                where=self._names[others[0]] if others else None,
            )


def _symbols(file: ImageFile) -> Symbols | None:
    return file.elf.symbols if file.elf is not None else None
