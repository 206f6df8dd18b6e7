"""Reads the files of a project: regular, of a sensible size, UTF-8, TOML or text."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from images.net.address import shown_text
from images.text.printable import printable
from provision.sources.errors import ProjectError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCK_BYTES = 16 << 20
TEXT_BYTES = 1 << 20
"""Larger than any declaration written by hand."""


def shown(path: Path, root: Path) -> str:
    """A file as messages name it: relative to the project."""
    return printable(os.path.relpath(path, root), limit=100)


def is_file(path: Path) -> bool:
    """Whether this is a file, or a link to one; not if that cannot be found out."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Whether there is anything of this name."""
    return os.path.lexists(path)


def is_inside(path: Path, root: Path) -> bool:
    """Whether a file, at the end of its links, belongs to a project: it is in its directory, or in
    the git checkout that this directory is part of. What cannot be found out is left to the reader.
    """
    try:
        return path.resolve().is_relative_to(_bounds(root))
    except (OSError, ValueError):
        return True
    except RuntimeError:  # links in a circle
        return False


@cache
def _bounds(root: Path) -> Path:
    """The top of the git checkout that a directory is part of, if one user owns both and it is no
    home directory; else the directory.
    """
    here = root.resolve()
    homes = {Path(os.environ.get("HOME") or "/").resolve(), Path("/")}
    for place in (here, *here.parents):
        git = place / ".git"
        if place in homes:
            break
        if is_there(git):
            owners = {one.lstat().st_uid for one in (git, place, here)}
            return place if len(owners) == 1 else here
    return here


def outside(name: str, said: str = "") -> ProjectError:
    """The error for a file outside of a project that the project names. Its text is never
    shown: it may be anybody's. `said`: where the project names it.
    """
    return ProjectError(
        f"{said}{name} leads outside of the project and is not read.",
        fix="Copy it into the project; or, if both are in one git repository, build from a "
        "checkout that has them.",
    )


def read_text(path: Path, root: Path, *, limit: int = TEXT_BYTES, errors: str = "strict") -> str:
    """The text of a project's file. ProjectError: it is missing, outside of the project, larger
    than `limit` bytes, not a regular file, or not UTF-8 unless `errors` says what becomes of other
    bytes.
    """
    name = shown(path, root)
    if not is_inside(path, root):
        raise outside(name)
    try:
        if not path.is_file():  # a device or a pipe could be endless
            what = "is not a regular file" if path.exists() else "does not exist"
            raise ProjectError(f"{name} {what}.", fix="Name a text file.")
        with path.open("rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise ProjectError(
                f"{name} is larger than {limit >> 20} MiB, more than any file of its kind.",
                fix="Remove it, or replace it by the project's real one.",
            )
        return content.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise ProjectError(
            f"{name} is not UTF-8 text (byte {error.start}).", fix="Save it as UTF-8."
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ProjectError(
            f"{name} cannot be read: {why}.", fix="Make it readable, or remove it."
        ) from error


def read_toml(text: str, name: str) -> Mapping[str, Any]:
    """A TOML document. ProjectError: it is invalid."""
    try:
        found: Mapping[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        why = printable(str(error), limit=200) or "it is nested too deeply"
        raise ProjectError(
            f"{name} is not valid TOML: {why}.", fix="Correct it; uv and pip cannot read it either."
        ) from error
    return found


def table(document: object, *keys: str) -> Mapping[str, Any]:
    """A table by its path; empty if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def listed(value: object) -> list[Any]:
    """A list; empty if it is something else."""
    return value if isinstance(value, list) else []


def line_of(text: str, pattern: str) -> int:
    """The number of the first line that a pattern matches at its start; 0 if none does."""
    found = re.search(rf"^[ \t]*{pattern}", text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 0


def line_with(text: str, *words: str) -> int:
    """The number of the first line that has one of these words in it; 0 if none has."""
    found = [at for word in words if (at := text.find(word)) >= 0]
    return text.count("\n", 0, min(found)) + 1 if found else 0


def public(text: str, limit: int = 100) -> str:
    """A text for messages, with its addresses as they may be shown."""
    return printable(shown_text(text), limit=limit)
