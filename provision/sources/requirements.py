"""A requirements.txt with the files that it includes.

https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.model.environment import is_git_url, is_wheel_url
from provision.model.plan import DeclaredIndex, IndexKind
from provision.sources.declaration import (
    Declaration,
    Declared,
    Lacking,
    applies,
    read_requirement,
    why_missing,
)
from provision.sources.errors import ProjectError
from provision.sources.files import (
    is_file,
    is_inside,
    is_there,
    outside,
    public,
    read_text,
    shown,
)
from provision.sources.packages import (
    IndexSource,
    Position,
    RequestedPackage,
    read_package,
    repository_name,
)

_OPTION = re.compile(r"(?P<flag>-[riecf](?=[^\s=-])|--?[A-Za-z][\w-]*)[=\s]*(?P<value>.*)")
_LONG = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-i": "--index-url",
    "-e": "--editable",
    "-f": "--find-links",
}
# One blank before, not all: a long line of blanks is then read once.
_COMMENT = re.compile(r"(^|\s)#.*$")
_TRAILING = re.compile(r"\s--(hash|config-settings?|global-option|install-option)\b.*$")
_HASH = re.compile(r"--hash[=\s]+sha256:([0-9a-f]{64})")
_KINDS: Mapping[str, IndexKind] = {
    "--index-url": "default",
    "--extra-index-url": "index",
    "--find-links": "links",
}
INDEXES = frozenset(_KINDS)
"""The options that say where packages are looked for."""
FILES = frozenset({"--requirement", "--constraint"})
"""The options that include another file."""
_HARMLESS = frozenset({"--only-binary", "--prefer-binary", "--require-hashes", "--use-feature"})
_MOST_FILES = 50
# As pip replaces them; here in a login only, which is never shown and in no lock.
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementLine:
    """A line of a requirements file: a requirement, or an option.

    `content` is without comment and the options after a requirement, `written` without the comment.
    `flag` is the option as it is written ("-r"), `option` its long name, both "" for a requirement;
    `value` is the requirement ("-e" has one, too), file or address.
    """

    at: Position
    written: str
    content: str
    flag: str = ""
    option: str = ""
    value: str = ""

    @property
    def package(self) -> RequestedPackage | None:
        """What it installs; None: an option that installs nothing."""
        installs = self.option in {"", "--editable"}
        return read_package(self.value, self.at) if installs else None

    @property
    def index(self) -> IndexSource | None:
        """Where packages are looked for; None: it does not say that."""
        if self.option not in INDEXES:
            return None
        replaces = self.option == "--index-url"
        return IndexSource(url=self.value, at=self.at, replaces_default=replaces)


def read_lines(text: str) -> Iterator[RequirementLine]:
    """The lines of a requirements file, joined with their continuations; empty ones are skipped."""
    for number, line in _logical_lines(text):
        found = read_line(line, Position(number, len(line) - len(line.lstrip()) + 1))
        if found is not None:
            yield found


def read_line(line: str, at: Position) -> RequirementLine | None:
    """One line; None: it is empty, or a comment."""
    written = _COMMENT.sub("", line).strip()
    content = _TRAILING.sub("", written).rstrip()
    if not content:
        return None
    match = _OPTION.fullmatch(content)
    if match is None:
        return RequirementLine(at=at, written=written, content=content, value=content)
    return RequirementLine(
        at=at,
        written=written,
        content=content,
        flag=match["flag"],
        option=_LONG.get(match["flag"], match["flag"]),
        value=match["value"].strip().strip("\"'"),
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines joined with their backslash continuations, and the number of the first."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        yield first, pending + line
        pending, first = "", 0
    if pending:
        yield first, pending


@dataclass
class _Found:
    packages: list[Declared] = field(default_factory=list)
    constraints: list[Declared] = field(default_factory=list)
    cuda: Declared | None = None
    hashes: dict[str, set[str]] = field(default_factory=dict)
    missing: list[Lacking] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    indexes: list[DeclaredIndex] = field(default_factory=list)
    seen: set[tuple[Path, bool]] = field(default_factory=set)
    itself: bool = False  # the project is installed, too, with what its pyproject.toml declares


def read_requirements(path: Path, root: Path) -> Declaration:
    """The declaration of a requirements file. ProjectError: a file cannot be read, or a line is
    malformed.
    """
    found = _Found()
    _read(path, root, found, limits=False)
    return _declaration(shown(path, root), found)


def pip_lines(lines: list[tuple[str, int]], file: str, root: Path) -> Declaration:
    """The same for lines of another file, each with its number: pip's in an environment.yml."""
    found = _Found()
    for text, number in lines:
        line = read_line(text, Position(number))
        if line is not None:
            _take(line, file, root / file, root, found, limits=False)
    return _declaration(file, found)


def _declaration(source: str, found: _Found) -> Declaration:
    return Declaration(
        source=source,
        packages=tuple(found.packages),
        constraints=tuple(found.constraints),
        cuda=found.cuda,
        hashes={name: frozenset(values) for name, values in found.hashes.items()},
        missing=tuple(found.missing),
        left_out=tuple(found.left_out),
        indexes=tuple(found.indexes),
        itself=found.itself,
    )


def _read(path: Path, root: Path, found: _Found, *, limits: bool) -> None:
    key = (path.resolve(), limits)
    if key in found.seen:
        return
    found.seen.add(key)
    name = shown(path, root)
    if len(found.seen) > _MOST_FILES:
        raise ProjectError(
            f"{name}: more than {_MOST_FILES} requirements files include each other.",
            fix="Put the requirements into fewer files.",
        )
    for line in read_lines(read_text(path, root)):
        _take(line, name, path, root, found, limits=limits)


def _take(
    line: RequirementLine, name: str, path: Path, root: Path, found: _Found, *, limits: bool
) -> None:
    at = Declared("", name, line.at.line)
    if line.option in FILES:
        _include(line, at.where, path, root, found, limits=limits)
    elif line.index is not None:
        _index(line.index, line.flag, at, found)
    elif line.package is not None:
        _package(line, line.package, at, root, found, limits=limits)
    elif line.option not in _HARMLESS:
        found.left_out.append(f"{public(line.content, 80)} ({at.where})")


def _include(
    line: RequirementLine, where: str, path: Path, root: Path, found: _Found, *, limits: bool
) -> None:
    value, flag = line.value, line.flag
    if "://" in value or not value:
        text, at = f"{flag} {public(value, 80)}", line.at.line
        if not (limits or line.option == "--constraint"):
            why = "files of other machines are not read"
            found.missing.append(Lacking("include", text, shown(path, root), at, why))
        else:
            found.left_out.append(f"{text} ({where})")
        return
    target = path.parent / value
    if not is_inside(target, root):
        raise outside(printable(value, limit=100), f"{where}: ")
    if not is_file(target):
        name = printable(value, limit=100)
        there = f"{name} is not a regular file" if is_there(target) else f"there is no file {name}"
        raise ProjectError(
            f"{where}: {there}.",
            fix=f"Correct the line: {flag} FILE, relative to {shown(path, root)}",
        )
    _read(target, root, found, limits=limits or line.option == "--constraint")


def _index(source: IndexSource, flag: str, at: Declared, found: _Found) -> None:
    if source.cuda is not None:
        found.cuda = found.cuda or at._replace(text=source.cuda)
    kind = _KINDS[_LONG.get(flag, flag)]
    if (place := source.declared(kind, at.where)) is not None:
        found.indexes.append(place)
    elif source.torch_tag is None:
        found.left_out.append(f"{flag} {public(source.url)} ({at.where}; to use it: --index URL)")


def _package(
    line: RequirementLine,
    read: RequestedPackage,
    at: Declared,
    root: Path,
    found: _Found,
    *,
    limits: bool,
) -> None:
    content = line.value
    if read.address:
        path = content.partition(";")[0].partition("[")[0].strip().removeprefix("file:")
        if "://" not in content and (root / path).resolve() == root.resolve():
            found.itself = True
            return
        place, _, marker = (one.strip() for one in read.address.partition(";"))
        wheel = place.partition("#")[0]
        if is_git_url(place):
            if read.requirement is None:
                name = repository_name(place)
                content = f"{name} @ {place}{f' ; {marker}' if marker else ''}"
            if why := why_missing(content.partition("@")[0].partition("[")[0].strip(), place):
                _miss(read, content, at, found, limits=limits, why=why)
                return
        elif read.name and is_wheel_url(wheel):
            named = read.requirement is not None and read.requirement.url is not None
            content = content if named else f"{read.name} @ {wheel}"
        else:
            _miss(read, content, at, found, limits=limits)
            return
    content = _with_variables(content, os.environ)
    if "${" in content:
        unset = [name for login in _LOGIN.findall(content) for name in _VARIABLE.findall(login)]
        why = f"{unset[0]} is not set" if unset else "variables are replaced in a login only"
        _miss(read, content, at, found, limits=limits, why=why)
        return
    declared = read_requirement(content, at.file, at.line)
    if declared is None:
        return
    (found.constraints if limits else found.packages).append(declared)
    if hashes := _HASH.findall(line.written):
        found.hashes.setdefault(declared.name, set()).update(hashes)


def _with_variables(content: str, env: Mapping[str, str]) -> str:
    """A requirement whose login has the values of variables: "x @ git+https://${TOKEN}@h/x.git"."""
    return _LOGIN.sub(
        lambda login: _VARIABLE.sub(lambda name: env.get(name[1]) or name[0], login[0]),
        content,
        count=1,
    )


def _miss(
    read: RequestedPackage,
    content: str,
    at: Declared,
    found: _Found,
    *,
    limits: bool,
    why: str = "images are built from wheels",
) -> None:
    """Keep what is required and cannot be installed; of constraints it is only a note."""
    if read.requirement is not None and not applies(read.requirement):
        return
    last = content.partition(";")[0].strip().rstrip("/").rpartition("/")[2]
    stem = re.split(r"[^\w.-]", last)[0].removesuffix(".git")
    name = read.name or canonicalize_name(printable(stem, limit=60)) or "."
    missing = Lacking(name, public(content, 80), at.file, at.line, why)
    if limits:
        found.left_out.append(missing.message)
    else:
        found.missing.append(missing)
