"""Checks whether the libraries and symbols that each file needs are found, as the loader would.

For each program and module we repeat the loader's work: find the libraries that it needs, and those
that they need, in the places and in the order that the loader uses. A library that is loaded
already is used for every file that needs its name. Nothing is executed.

    a name with a slash    that file
    DT_RPATH               of the file that needs it, of the one that loaded that, and so on, and of
                           the program; not used for a file with a DT_RUNPATH
    LD_LIBRARY_PATH        as the image sets it
    DT_RUNPATH             only of the file that needs it
    /etc/ld.so.cache
    default directories    those of Debian and of Red Hat

Libraries for another machine are skipped, as the loader does. Directories for CPU generations
(glibc-hwcaps) have variants of the libraries above them, and are not searched.
https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname

from images.inspect.contents import Contents
from images.inspect.dynamic import Machine
from images.inspect.known_libraries import find_known
from images.inspect.loader import Loader, Mapped, NeededLibrary, Status, Unreadable, VersionMissing
from images.inspect.optional import for_each_cuda
from images.inspect.packages import Distribution, ImagePackages, distinct_files
from images.inspect.tree import ImageFile
from images.inspect.undefined import Load, SymbolNeeds, SymbolSearch
from images.inspect.versions import newest_asked, newest_of

_TAGGED_MODULE = re.compile(r"\.(cpython-\d+\w*-[\w-]+|abi3)\.so$")
_STANDARD_LIBRARY = re.compile(r"/lib(64)?/python\d+\.\d+/lib-dynload/")
_PYTHON = re.compile(r"python\d+\.\d+")
_PYTHON_TAG = re.compile(r"\.(?:cpython-(?P<major>\d)(?P<minor>\d+\w*)|pypy|graalpy)[\w-]*\.so$")
_STUBS = re.compile(r"/stubs/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The result. `roots` were loaded, of `files` ELF files for this machine."""

    roots: int
    files: int
    needs: tuple[NeededLibrary, ...]
    versions: tuple[VersionMissing, ...]
    symbols: SymbolNeeds
    unreadable: tuple[Unreadable, ...]
    newest_asked: Mapping[str, str] = field(default_factory=dict)
    """The newest required version of each series, and the file: "GLIBC_2.34 (by /x.so)"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Root:
    """A file that is loaded by itself: a program, a module, a library that is opened by name."""

    path: str
    file: ImageFile
    required: bool
    by_python: bool


class _Survey:
    """Loads one root after the other and records the results."""

    def __init__(
        self,
        contents: Contents,
        packages: ImagePackages,
        loader: Loader,
        framework: Distribution | None,
    ) -> None:
        self._contents = contents
        self._packages = packages
        self._framework = framework
        self._loader = loader
        self.needs: dict[tuple[str, str], NeededLibrary] = {}
        self.versions: dict[tuple[str, str, str], VersionMissing] = {}
        self._loads: list[Load] = []
        self.visited: set[ImageFile] = set()
        self.broken: set[ImageFile] = set()
        self._by_name = _by_name(contents, packages)
        self._names = {file: path for path, file in distinct_files(contents.tree)}
        python = _interpreter(contents)
        self._python: dict[str, Mapped] = {}
        self._python_version = python_version(contents)
        self._program: Mapped | None = None
        if python is not None and python[1].elf is not None:
            self._program = Mapped(python[0], python[1], python[1].elf, None)
            self._load(
                self._program, self._python, Load(root=python[1], required=True, by_python=False)
            )

    def load(self, root: _Root) -> None:
        assert root.file.elf is not None
        loaded = dict(self._python) if root.by_python else {}
        loader = self._program if root.by_python else None
        load = Load(
            root=root.file,
            required=root.required,
            by_python=root.by_python,
            known_program=not root.by_python
            or (loader is not None and not for_other_python(root.path, self._python_version)),
        )
        self._load(Mapped(root.path, root.file, root.file.elf, loader), loaded, load)

    def owner_of(self, path: str) -> Distribution | None:
        """The package that a file belongs to."""
        file = self._contents.tree.file(path)
        return self._packages.owners.get(file) if file is not None else None

    def symbols(self) -> SymbolNeeds:
        """Search the symbols of everything that was loaded."""
        missing = {(one.file, one.version) for one in self.versions.values()}
        search = SymbolSearch(
            self._names,
            program=self._loads[0] if self._program is not None else None,
            related=self._may_rely_on,
            ignored=lambda file, version: (self._names[file], version) in missing,
        )
        return search.search(self._loads)

    def _may_rely_on(self, file: ImageFile, other: ImageFile) -> bool:
        mine, theirs = self._packages.owners.get(file), self._packages.owners.get(other)
        return mine is not None and theirs is not None and self._go_together(mine, theirs)

    def _load(self, root: Mapped, loaded: dict[str, Mapped], load: Load) -> None:
        """Load as the loader does: breadth first, each library once."""
        self._loads.append(load)
        required = load.required
        program = self._program if root.loader is not None else root
        by_file = {one.file: one for one in loaded.values()}
        self._enter(root, loaded, by_file, root.path)
        queue = [root]
        for one in queue:
            self.visited.add(one.file)
            links, absent = load.links.setdefault(one.file, []), set[str]()
            for name in one.elf.needed:
                found = loaded.get(name)
                if found is None:
                    hit = self._loader.search(name, one, program)
                    if hit is None:
                        before = self._absent(name, one, root, required=required)
                        if before is None:
                            absent.add(name)
                        else:
                            links.append(before)
                        continue
                    path, file = hit
                    found = by_file.get(file)
                    if found is None:
                        assert file.elf is not None
                        found = Mapped(path, file, file.elf, one)
                        queue.append(found)
                    self._enter(found, loaded, by_file, name)
                links.append(found.file)
                where = self._names[found.file]
                self._found(name, one, where, root, "found", required=required)
                self._compare(name, one, found.file, root, required=required)
            if absent:
                load.absent[one.file] = absent

    def _enter(
        self, one: Mapped, loaded: dict[str, Mapped], by_file: dict[ImageFile, Mapped], name: str
    ) -> None:
        by_file.setdefault(one.file, one)
        loaded.setdefault(name, one)
        if one.elf.soname:
            loaded.setdefault(one.elf.soname, one)

    def _absent(
        self, name: str, asker: Mapped, root: Mapped, *, required: bool
    ) -> ImageFile | None:
        """Determine the status of a library that the loader does not find. Returns the file that
        was loaded before, if there is one.
        """
        if find_known(name, "driver"):
            self._found(name, asker, None, root, "driver", required=required)
            return None
        owner = self._packages.owners.get(asker.file) or self._packages.owners.get(root.file)
        places = self._by_name.get(name, ())
        for path, file in places:
            other = self._packages.owners.get(file)
            if owner is None or other is None:
                continue
            if self._go_together(owner, other) or self._by_framework(asker, other):
                self._found(name, asker, path, root, "loaded-before", required=required)
                self._compare(name, asker, file, root, required=required)
                return file
        status: Status
        where = places[0][0] if places else None
        if self._contents.kind == "wheel" and find_known(name, "base"):
            status = "base"
        elif places:
            status = "elsewhere"
        else:
            optional = find_known(name, "optional", self._names[asker.file])
            status = "optional" if optional else "missing"
        self._found(name, asker, where, root, status, required=required)
        return None

    def _by_framework(self, asker: Mapped, other: Distribution) -> bool:
        """Whether the framework has loaded a library of `other`, before the file that asks for it:
        one that needs the framework's own libraries works only in a program that imported it.
        """
        ours = self._framework
        if ours is None or not self._go_together(ours, other):
            return False
        places = (place for name in asker.elf.needed for place in self._by_name.get(name, ()))
        return any(self._packages.owners.get(file) is ours for _, file in places)

    def _go_together(self, one: Distribution, other: Distribution) -> bool:
        return one.name == other.name or self._packages.related(one, other)

    def _found(
        self,
        name: str,
        asker: Mapped,
        where: str | None,
        root: Mapped,
        status: Status,
        *,
        required: bool,
    ) -> None:
        """Record a need; for the same file and name, keep the worst status."""
        need = NeededLibrary(
            file=self._names[asker.file],
            name=name,
            status=status,
            root=self._names[root.file],
            required=required,
            where=where,
        )
        before = self.needs.get((need.file, name))
        if before is None or _badness(need) > _badness(before):
            self.needs[need.file, name] = need

    def _compare(
        self, name: str, asker: Mapped, file: ImageFile, root: Mapped, *, required: bool
    ) -> None:
        """Check the required versions against those that the library defines.

        A library without versions satisfies all, as for the loader.
        """
        have = file.elf.provides if file.elf is not None else ()
        for version in asker.elf.versions.get(name, ()) if have else ():
            if version in have:
                continue
            key = self._names[asker.file], version, self._names[file]
            before = self.versions.get(key)
            if before is None or (required and not before.required):
                self.versions[key] = VersionMissing(
                    file=key[0],
                    version=version,
                    library=key[2],
                    newest=newest_of(version, have),
                    root=self._names[root.file],
                    required=required,
                )


def survey(
    contents: Contents,
    packages: ImagePackages,
    *,
    machine: Machine,
    cache: Mapping[str, Sequence[str]] | None = None,
    framework: Distribution | None = None,
) -> Needs:
    """Simulate loading everything that can be loaded.

    Libraries that are only opened by name must load if they are the framework's, or in a wheel;
    whether others are ever opened is unknown.
    """
    done = _Survey(contents, packages, Loader(contents, machine, cache or {}), framework)
    elves = [
        (path, file)
        for path, file in distinct_files(contents.tree)
        if file.elf is not None and file.elf.machine == machine and file.elf.kind != "other"
    ]
    roots = [root for path, file in elves if (root := _root(contents, packages, path, file))]
    for root in roots:
        done.load(root)
    for path, file in elves:  # libraries that are only opened by name at run time
        if file not in done.visited:
            owner = packages.owners.get(file)
            must = contents.kind == "wheel" or (owner is not None and owner is framework)
            root = _Root(path=path, file=file, required=must, by_python=owner is not None)
            roots.append(root)
            done.load(root)
    return Needs(
        roots=len(roots),
        files=len(elves),
        needs=for_each_cuda(tuple(done.needs.values()), done.owner_of),
        versions=tuple(done.versions.values()),
        symbols=done.symbols(),
        unreadable=_unreadable(contents, packages),
        newest_asked=newest_asked(elves),
    )


def _root(contents: Contents, packages: ImagePackages, path: str, file: ImageFile) -> _Root | None:
    """The root for a file that must load: a program on the PATH, or a package's program or module;
    else None. A package's other libraries are loaded for these, or opened by name if at all.
    """
    assert file.elf is not None
    owned = file in packages.owners or contents.kind == "wheel"
    if file.elf.is_program:
        on_path = file.executable and dirname(path) in search_path(contents)
        if on_path or (owned and not _STUBS.search(path)):
            return _Root(path=path, file=file, required=True, by_python=False)
        return None
    is_module = _TAGGED_MODULE.search(path) or (
        path.endswith(".so") and not basename(path).startswith("lib")
    )
    if is_module and (owned or _STANDARD_LIBRARY.search(path)):
        return _Root(path=path, file=file, required=True, by_python=True)
    return None


def search_path(contents: Contents) -> tuple[str, ...]:
    """The directories of the image's PATH, with links resolved."""
    listed = contents.environment.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    real = [contents.tree.real(path) for path in listed if path.startswith("/")]
    return tuple(dict.fromkeys(path for path in real if path is not None))


def _interpreter(contents: Contents) -> tuple[str, ImageFile] | None:
    """Find the Python that imports the modules: the first on the PATH."""
    for directory in search_path(contents):
        for name in ("python3", "python"):
            real = contents.tree.real(f"{directory}/{name}")
            file = contents.tree.file(real) if real else None
            if real and file is not None and file.elf is not None and file.elf.machine:
                return real, file
    return None


def python_version(contents: Contents) -> str | None:
    """The version of the Python that the image runs, from its file name: "3.11"."""
    found = _interpreter(contents)
    match = _PYTHON.search(found[0]) if found else None
    return match[0].removeprefix("python") if match else None


def for_other_python(path: str, version: str | None) -> bool:
    """Whether a module is for another Python than that of this version ("3.11"): by its tag
    (cpython-312, pypy310), else by a directory (python3.12).
    """
    if tag := _PYTHON_TAG.search(path):
        return tag["major"] is None or version != f"{tag['major']}.{tag['minor']}"
    directory = _PYTHON.search(dirname(path))
    return directory is not None and directory[0] != f"python{version}"


def _by_name(contents: Contents, packages: ImagePackages) -> dict[str, list[tuple[str, ImageFile]]]:
    """The libraries of the image by each of their names, those of packages first."""
    found: dict[str, list[tuple[str, ImageFile]]] = {}
    for path, file in distinct_files(contents.tree):
        if file.elf is None or file.elf.kind != "library" or _STUBS.search(path):
            continue
        for name in {basename(path), file.elf.soname or basename(path)}:
            found.setdefault(name, []).append((path, file))
    for places in found.values():
        places.sort(key=lambda place: place[1] not in packages.owners)
    return found


_ORDER: tuple[Status, ...] = (
    "found", "loaded-before", "base", "driver", "optional", "elsewhere", "missing",
)  # fmt: skip


def _badness(need: NeededLibrary) -> tuple[int, bool]:
    return _ORDER.index(need.status), need.required


def _unreadable(contents: Contents, packages: ImagePackages) -> tuple[Unreadable, ...]:
    return tuple(
        Unreadable(
            file=path,
            why=file.problem,
            required=file in packages.owners
            or contents.kind == "wheel"
            or (file.executable and dirname(path) in search_path(contents)),
        )
        for path, file in distinct_files(contents.tree)
        if file.problem is not None
    )
