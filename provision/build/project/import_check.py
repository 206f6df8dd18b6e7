"""Whether an image has what its project's code imports, before anything is downloaded or built.

What the code surely imports and no wheel of the lock has stops the build. What it may import is a
note; so is everything where the modules of the image are not all known.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from posixpath import dirname

from packaging.utils import canonicalize_name

from images.text.data import data_table
from images.text.printable import printable
from provision.build.base import BuildSettings
from provision.build.project.code import ProjectCode
from provision.build.project.imports import (
    MOST_FILES,
    MOST_IN_ALL,
    FileImports,
    Import,
    unknown_imports,
)
from provision.lock.lockfile import Lock
from provision.lock.modules import modules_of
from provision.output.console import Console
from provision.sources.errors import ProjectIncompleteError

_table = data_table(__file__, "import_names.json")
_MOST_SHOWN = 6
_MOST_UNREAD = 3
_OWN_BASES = ("docker.io/library/python:", "docker.io/nvidia/cuda:")
"""Their modules are known; another base may bring any."""


def check_imports(
    code: ProjectCode,
    locks: Sequence[Lock],
    without: Collection[str],
    settings: BuildSettings,
    console: Console,
) -> None:
    """Judge the imports of a project's code against the wheels of each lock. `without`: names that
    may be missing. ProjectIncompleteError: the code surely imports what no wheel has.
    """
    files, paths = code.imports()
    for note in _notes(files, paths):
        console.note(note)
    unknown = unknown_imports(files, paths, code.roots, code.called)
    accepted = {canonicalize_name(name) for name in without}
    for lock in locks if unknown else ():
        wheels = {canonicalize_name(wheel.name) for wheel in lock.wheels}
        left = [one for one in unknown if canonicalize_name(one.name) not in wheels]
        if not left:
            continue
        with console.step("imports", "comparing the project's imports with the wheels"):
            found = modules_of(
                lock, settings.state, ca_bundle=settings.ca, offline=settings.offline
            )
        left = [one for one in left if one.name not in found.names]
        base = lock.plan.base
        known = base is not None and (
            base.kind == "bootstrap" or base.reference.startswith(_OWN_BASES)
        )
        sure = [one for one in left if one.surely and canonicalize_name(one.name) not in accepted]
        if sure and known and not found.unread:
            raise _missing(sure, code)
        if left:
            console.note(
                f"Not found among the wheels: {_listed(left)}. {_why(sure, found.unread)}"
                f"{_out_in_words(_kept_out(left, code))}"
            )


def _notes(files: Mapping[str, FileImports], paths: Sequence[str]) -> Iterator[str]:
    """Whose imports are not known."""
    unread = [path for path, one in files.items() if one.unread]
    if unread:
        python = ".".join(map(str, sys.version_info[:2]))
        yield f"Python {python} cannot parse {_counted(unread)}; what they import is not checked."
    rest = [path for path in paths if path.endswith(".py") and path not in files]
    if rest:
        yield (
            f"Not read for what they import, of more than {MOST_FILES:,} files or "
            f"{MOST_IN_ALL >> 20} MiB: {_counted(rest)}."
        )


def _counted(paths: Sequence[str]) -> str:
    few = ", ".join(printable(one, limit=80) for one in paths[:_MOST_UNREAD])
    more = ", ..." if len(paths) > _MOST_UNREAD else ""
    return f"{len(paths):,} file{'' if len(paths) == 1 else 's'} ({few}{more})"


def _kept_out(imports: Sequence[Import], code: ProjectCode) -> dict[str, str]:
    """The project's own modules among these imports that a .gitignore or .dockerignore keeps out of
    the image: path -> the name of that file.
    """
    known = dict(code.tree.kept_out)
    places = {
        f"{folder}/{one.name}{suffix}".removeprefix("/")
        for one in imports
        for folder in (*code.roots, dirname(one.path))
        for suffix in ("", ".py")
    }
    return {path: known[path] for path in sorted(places & known.keys())}


def _out_in_words(kept_out: Mapping[str, str]) -> str:
    return "".join(
        f" {file} keeps {printable(path, limit=80)} out of the image."
        for path, file in kept_out.items()
    )


def _why(sure: Sequence[Import], unread: Sequence[str]) -> str:
    if sure and unread:
        few = ", ".join(unread[:_MOST_SHOWN])
        return f"The modules of {few} could not be read."
    if sure:
        return "The base may have them."
    return "The project may do without them."


def _missing(sure: Sequence[Import], code: ProjectCode) -> ProjectIncompleteError:
    names = dict.fromkeys(one.name for one in sure)
    # a guess might be a stranger's package
    known = _table()["names"]
    lines = [known[name] for name in names if name in known]
    known = f" ({', '.join(lines)}?)" if lines else ""
    where = code.source or "the project's requirements"
    options = " ".join(f"--without {name}" for name in names)
    own = _kept_out(sure, code)
    echo = "; ".join(f"echo {shlex.quote(f'!{path}')} >> .dockerignore" for path in own)
    add = f"Put it into the image: {echo}" if own else f"Add what provides it to {where}{known}"
    return ProjectIncompleteError(
        f"The project imports what no wheel of the image has: {_listed(sure)}.{_out_in_words(own)}",
        fix=f"{add}, or build the image without it: {options}",
    )


def _listed(imports: Sequence[Import]) -> str:
    first: dict[str, Import] = {}
    for one in sorted(imports, key=lambda one: not one.surely):
        first.setdefault(one.name, one)
    few = [
        f"{printable(name, limit=60)} ({printable(one.path, limit=80)}, line {one.line})"
        for name, one in list(first.items())[:_MOST_SHOWN]
    ]
    more = len(first) - len(few)
    return ", ".join(few) + (f" and {more} more" if more else "")
