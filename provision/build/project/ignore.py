"""Which files of a project stay out of its image: .gitignore, .dockerignore, and a list of caches.

Patterns are matched part by part, so that no pattern takes long.
A .gitignore says nothing about files that git tracks, so the index of git is read, too.
https://git-scm.com/docs/gitignore https://docs.docker.com/build/concepts/context/#dockerignore-files
https://git-scm.com/docs/index-format
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

Origin = Literal["git", "docker", "cache"]

_LENGTH = 0xFFF  # the bits of an entry's flags that have the length of its name
_MOST_NAME = 4096
_CACHES = (
    ".git", ".hg", ".svn", "__pycache__", "*.py[cod]", "*.egg-info", ".venv", ".tox", ".nox",
    ".pixi", ".eggs", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis",
    ".ipynb_checkpoints", "node_modules", ".DS_Store",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreRule:
    """A pattern: its parts ("**" for any number of directories), and what it does. `below` is the
    directory of its .gitignore, as parts.
    """

    parts: tuple[str, ...]
    origin: Origin
    keeps: bool = False
    directories_only: bool = False
    below: tuple[str, ...] = ()

    def matches(self, path: Sequence[str], *, directory: bool) -> bool:
        """Whether it is about this path, given as parts."""
        if self.directories_only and not directory:
            return False
        if tuple(path[: len(self.below)]) != self.below:
            return False
        if len(self.parts) == 2 and self.parts[0] == "**" != self.parts[1]:  # most are such
            return len(path) > len(self.below) and bool(_glob(self.parts[1])(path[-1]))
        return _matches(self.parts, tuple(path[len(self.below) :]))


def read_gitignore(text: str, below: Sequence[str] = ()) -> tuple[IgnoreRule, ...]:
    """The rules of a .gitignore in a directory."""
    return tuple(_git(line, tuple(below)) for line in _lines(text))


def read_dockerignore(text: str) -> tuple[IgnoreRule, ...]:
    """The rules of a .dockerignore: all are relative to the project."""
    rules = []
    for line in _lines(text):
        keeps = line.startswith("!")
        parts = [one for one in _parts(line.removeprefix("!").strip()) if one != "."]
        if parts and ".." not in parts:
            rules.append(IgnoreRule(parts=tuple(parts), origin="docker", keeps=keeps))
    return tuple(rules)


CACHES = tuple(IgnoreRule(parts=("**", name), origin="cache") for name in _CACHES)
"""What no image needs. No rule of a project keeps it."""


def _lines(text: str) -> Iterable[str]:
    for line in text.splitlines():
        written = line.rstrip()
        if written.endswith("\\"):
            written = line[: len(written) + 1]  # the blank after it counts
        if written and not written.startswith("#") and written.strip("!/"):
            yield written


def _parts(pattern: str) -> tuple[str, ...]:
    """The parts of a pattern; "**" after another one says nothing more."""
    parts = [one for one in pattern.split("/") if one]
    pairs = zip(parts, ["", *parts], strict=False)
    return tuple(one for one, before in pairs if not one == before == "**")


def _git(line: str, below: tuple[str, ...]) -> IgnoreRule:
    keeps = line.startswith("!")
    pattern = line.removeprefix("!")
    pattern = pattern[1:] if pattern[:2] in {"\\!", "\\#"} else pattern
    anchored = "/" in pattern.rstrip("/")
    parts = _parts(pattern)
    return IgnoreRule(
        parts=parts if anchored else ("**", *parts),
        origin="git",
        keeps=keeps,
        directories_only=pattern.endswith("/"),
        below=below,
    )


def tracked_by_git(index: bytes) -> frozenset[tuple[str, ...]]:
    """The paths in git's index, versions 2 to 4, as parts, with their directories. None for one of
    another version, with SHA-256, or that is damaged.
    """
    version, count = (int.from_bytes(index[at : at + 4], "big") for at in (4, 8))
    if index[:4] != b"DIRC" or version not in {2, 3, 4}:
        return frozenset()
    found: set[tuple[str, ...]] = set()
    start, name = 12, b""
    for _ in range(count):
        flags = index[start + 60 : start + 62]
        at = start + (64 if flags[:1] and flags[0] & 0x40 else 62)
        kept = 0
        if version == 4:  # the name is the one before, less some bytes at its end, and more
            removed, at = _number(index, at)
            kept = len(name) - removed
        end = index.find(b"\0", at)
        if kept < 0 or end < 0 or kept + end - at > _MOST_NAME:
            return frozenset()
        name = name[:kept] + index[at:end]
        if _LENGTH & int.from_bytes(flags, "big") != min(len(name), _LENGTH):
            return frozenset()
        start = end + 1 if version == 4 else start + (end - start) // 8 * 8 + 8
        parts = tuple(os.fsdecode(name).split("/"))
        while parts and parts not in found:
            found.add(parts)
            parts = parts[:-1]
    return frozenset(found)


def _number(index: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, as in packs of git, and where it ends."""
    value = -1
    for end in range(at, min(at + 10, len(index))):
        value = (value + 1) << 7 | index[end] & 0x7F
        if not index[end] & 0x80:
            return value, end + 1
    return len(index), at  # more than any name has


def names_in(rules: Iterable[IgnoreRule]) -> frozenset[tuple[str, ...]]:
    """The paths, as parts, that rules keep by their whole name: a wildcard names nothing."""
    return frozenset(
        rule.parts
        for rule in rules
        if rule.keeps and not any(re.search(r"[*?\[\\]", part) for part in rule.parts)
    )


def verdict(
    path: Sequence[str], rules: Sequence[IgnoreRule], *, directory: bool, above: Origin | None
) -> Origin | None:
    """Which kind of rule excludes a path: that of the last rule that is about it; None: it is kept.

    `above` is the verdict on its directory. A .dockerignore keeps files of an excluded directory,
    a .gitignore does not.
    """
    kept_by_git = False
    for rule in reversed(rules):
        if (kept_by_git and rule.origin == "git") or not rule.matches(path, directory=directory):
            continue
        if not rule.keeps:
            return rule.origin
        if rule.origin != "git":
            return None if rule.origin == "docker" else above
        kept_by_git = True
    return above


def _matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether a pattern matches a whole path: the positions that it can have reached, part by
    part.
    """
    reached = _through(pattern, {0})
    for part in path:
        reached = _through(pattern, {to for at in reached for to in _steps(pattern, at, part)})
        if not reached:
            return False
    return len(pattern) in reached


def _steps(pattern: tuple[str, ...], at: int, part: str) -> Iterator[int]:
    """The positions after a part of the path."""
    if at == len(pattern):
        return
    if pattern[at] == "**":
        yield at
        if at == len(pattern) - 1:  # "a/**" is what is in a, not a itself
            yield at + 1
    elif _glob(pattern[at])(part):
        yield at + 1


def _through(pattern: tuple[str, ...], reached: set[int]) -> set[int]:
    """With the positions after each "**" that is not the last part: it may be no directory."""
    last = len(pattern) - 1
    found = set(reached)
    for start in reached:
        at = start
        while at < last and pattern[at] == "**":
            at += 1
            found.add(at)
    return found


@cache
def _glob(pattern: str) -> Callable[[str], object]:
    """What matches one part: *, ?, [a-z], [!a-z], [^a-z] and a backslash before a plain one."""
    if not re.search(r"[*?\[\\]", pattern):
        return pattern.__eq__
    plain = re.sub(r"\\(.)", lambda found: f"[{found[1]}]", pattern).replace("[^", "[!")
    return re.compile(fnmatch.translate(re.sub(r"\*{2,}", "*", plain))).match
