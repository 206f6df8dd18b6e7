"""A requirements.txt with the files that it includes.

https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from images.text.printable import printable
from provision.build.project.declaration import (
    Declaration,
    Declared,
    ProjectError,
    read_requirement,
)
from provision.build.project.files import (
    is_file,
    is_inside,
    is_there,
    outside,
    public,
    read_text,
    shown,
)
from provision.doctor.lint.findings import Position
from provision.doctor.lint.installs import IndexSource, read_package
from provision.doctor.lint.requirements import logical_lines, without_comment, without_options
from provision.model.environment import is_wheel_url

_OPTION = re.compile(r"(?P<flag>--?[A-Za-z][\w-]*)(?:\s*=\s*|\s+|$)(?P<value>.*)")
_SHORT = re.compile(r"(?P<flag>-[riecf])(?P<value>[^\s=-].*)")  # pip accepts -rFILE
_HASH = re.compile(r"--hash[=\s]+sha256:([0-9a-f]{64})")
_INDEXES = frozenset({"-i", "--index-url", "--extra-index-url", "-f", "--find-links"})
_HARMLESS = frozenset({"--only-binary", "--prefer-binary", "--require-hashes", "--use-feature"})
_MOST_FILES = 50


@dataclass
class _Found:
    packages: list[Declared] = field(default_factory=list)
    constraints: list[Declared] = field(default_factory=list)
    cuda: Declared | None = None
    hashes: dict[str, set[str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
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
        _take(text, file, number, root / file, root, found, limits=False)
    return _declaration(file, found)


def _declaration(source: str, found: _Found) -> Declaration:
    return Declaration(
        source=source,
        packages=tuple(found.packages),
        constraints=tuple(found.constraints),
        cuda=found.cuda,
        hashes={name: frozenset(values) for name, values in found.hashes.items()},
        left_out=tuple(found.left_out),
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
    for number, line in logical_lines(read_text(path, root)):
        _take(line, name, number, path, root, found, limits=limits)


def _take(
    line: str, name: str, number: int, path: Path, root: Path, found: _Found, *, limits: bool
) -> None:
    written = without_comment(line)
    content = without_options(written)
    if not content:
        return
    where = Declared("", name, number).where
    option = _SHORT.fullmatch(content) or _OPTION.fullmatch(content)
    if content.startswith("-") and option is not None:
        flag, value = option["flag"], option["value"].strip().strip("\"'")
        if flag in {"-r", "--requirement", "-c", "--constraint"}:
            _include(value, flag, where, path, root, found, limits=limits)
            return
        if flag in _INDEXES:
            _index(value, flag, Declared("", name, number), found)
            return
        if flag not in {"-e", "--editable"}:
            if flag not in _HARMLESS:
                found.left_out.append(f"{public(content, 80)} ({where})")
            return
        content = value
    _package(content, written, Declared("", name, number), root, found, limits=limits)


def _include(
    value: str, flag: str, where: str, path: Path, root: Path, found: _Found, *, limits: bool
) -> None:
    if "://" in value or not value:
        found.left_out.append(f"{flag} {public(value, 80)} ({where})")
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
    _read(target, root, found, limits=limits or flag in {"-c", "--constraint"})


def _index(value: str, flag: str, at: Declared, found: _Found) -> None:
    tag = IndexSource(url=value, at=Position(at.line)).torch_tag
    if tag and re.fullmatch(r"cu\d{2,3}", tag):
        found.cuda = found.cuda or at._replace(text=f"{tag[2:-1]}.{tag[-1]}")
        return
    url = public(value)
    found.left_out.append(f"{flag} {url} ({at.where}; to use it: --index URL)")


def _package(
    content: str, written: str, at: Declared, root: Path, found: _Found, *, limits: bool
) -> None:
    read = read_package(content, Position(at.line or 1))
    if read.address:
        path = content.partition(";")[0].partition("[")[0].strip().removeprefix("file:")
        if "://" not in content and (root / path).resolve() == root.resolve():
            found.itself = True
            return
        wheel = read.address.partition(";")[0].partition("#")[0].strip()
        if read.name and is_wheel_url(wheel):
            named = read.requirement is not None and read.requirement.url is not None
            content = content if named else f"{read.name} @ {wheel}"
        else:
            url = public(content)
            found.left_out.append(f"{url} ({at.where}; images are built from wheels)")
            return
    if "${" in content:
        found.left_out.append(f"{public(content, 80)} ({at.where})")
        return
    declared = read_requirement(content, at.file, at.line)
    if declared is None:
        return
    (found.constraints if limits else found.packages).append(declared)
    if hashes := _HASH.findall(written):
        found.hashes.setdefault(declared.name, set()).update(hashes)
