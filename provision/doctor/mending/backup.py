"""Copies files before they are changed, next to the originals, and restores them. Pure texts.

The commands are run (and shown) like those of a fix, so that sudo alone suffices to keep and
restore files of root. A copy is written whole or not at all: first under another name, in the same
directory, then renamed. A link is followed: a fix changes the file that it points to.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath

from provision.doctor.mending.written_files import UNNAMED, written

# Paths that are not regular files of a user.
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_PATTERN = re.compile(r"[\w./*?\[\]-]*[*?\[][\w./*?\[\]-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file and its copy; `copy` is None if there was no file. `real` is the resolved path if the
    name is a link, or has one in it.
    """

    path: str
    copy: str | None
    real: str | None = None


def kept_files(backup: Sequence[str], home: PurePath) -> tuple[str, ...]:
    """The files of a fix, with ~ expanded; some may be patterns (`is_pattern`)."""
    return tuple(
        str(home / name[2:]) if name.startswith("~/") else name for name in dict.fromkeys(backup)
    )


def is_pattern(name: str) -> bool:
    """Whether it is a pattern for a shell: it has * ? or [ ], and no other shell syntax."""
    return _PATTERN.fullmatch(name) is not None


def list_command(pattern: str) -> str:
    """Prints the files that a pattern matches, and fails if a name has a newline. They are the
    files that a command with this pattern affects.
    """
    return (
        f"for file in {pattern}; do case $file in *'\n'*) exit 1;; esac;"
        ' if test -e "$file" || test -L "$file"; then printf \'%s\\n\' "$file"; fi; done'
    )


def is_named(path: str, backup: Iterable[str]) -> bool:
    """Whether a backup covers the file (or the pattern): by its own name, or with a pattern."""
    return any(
        path == name
        or (
            is_pattern(name)
            and path.count("/") == name.count("/")
            and ".." not in path.split("/")
            and fnmatchcase(path, name)
        )
        for name in backup
    )


def not_kept(commands: Iterable[str], backup: Sequence[str]) -> Iterator[str]:
    """What the commands write or remove and the backup does not cover; UNNAMED if they do not name
    it.
    """
    for command in commands:
        for path in written(command):
            if path == UNNAMED or not (is_named(path, backup) or path.startswith(_NO_FILES)):
                yield path


def sudo_for(path: str, *, is_root: bool, home: PurePath) -> str:
    own = home != PurePath("/") and PurePath(path).is_relative_to(home)
    return "" if is_root or own else "sudo "


THERE, ABSENT = "there", "absent"


def look_command(path: str, sudo: str) -> str:
    """Prints THERE, after the resolved path, or ABSENT: an exit code could be sudo's."""
    there = f'readlink -f "$1"; echo {THERE}'
    look = f'if test -e "$1" || test -L "$1"; then {there}; else echo {ABSENT}; fi'
    return f"{sudo}sh -c '{look}' sh {shlex.quote(path)}"


def copy_name(path: str, stamp: str) -> str:
    return f"{path}.before-{stamp}"


def copy_command(path: str, copy: str, sudo: str) -> str:
    """Mode, owner and times are kept."""
    file, whole, part = (shlex.quote(name) for name in (path, copy, f"{copy}.partial"))
    return f"{sudo}cp -pL {file} {part} && {sudo}mv -f {part} {whole}"


def restore_command(kept: KeptFile, sudo: str) -> str:
    """The command that restores a file, or removes one that did not exist. A link is followed only
    if it points to the same file as before: if the fix made it a link, the link itself is replaced.
    """
    file = shlex.quote(kept.path)
    if kept.copy is None:
        return f"{sudo}rm -f {file}"
    part = shlex.quote(f"{kept.copy}.partial")
    back = f"{sudo}cp -p {shlex.quote(kept.copy)} {part}"
    if kept.real in {None, kept.path}:
        return f"{back} && {sudo}mv -fT {part} {file}"
    real = shlex.quote(str(kept.real))
    return (
        f'{back} && if test "$({sudo}readlink -f {file})" = {real};'
        f" then {sudo}mv -fT {part} {real}; else {sudo}mv -fT {part} {file}; fi"
    )
