"""Files kept beside themselves before they are changed, and how they are put back. Pure texts.

The commands are run (and shown) like those of a fix, so that files of root can be kept and put
back through sudo alone. A copy is written whole or not at all: first under another name, in the
same directory, then renamed. A link is followed: the file behind it is what a fix changes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A file and its copy; `copy` is None where there was no file."""

    path: str
    copy: str | None


def kept_files(backup: Sequence[str], home: PurePath) -> tuple[str, ...]:
    """The files of a fix, ~ written out."""
    return tuple(
        str(home / name[2:]) if name.startswith("~/") else name for name in dict.fromkeys(backup)
    )


def sudo_for(path: str, *, is_root: bool, home: PurePath) -> str:
    own = home != PurePath("/") and PurePath(path).is_relative_to(home)
    return "" if is_root or own else "sudo "


THERE, ABSENT = "there", "absent"


def look_command(path: str, sudo: str) -> str:
    """It prints THERE or ABSENT: an exit code could be sudo's own."""
    return f"{sudo}sh -c 'test -e \"$1\" && echo {THERE} || echo {ABSENT}' sh {shlex.quote(path)}"


def copy_name(path: str, stamp: str) -> str:
    return f"{path}.before-{stamp}"


def copy_command(path: str, copy: str, sudo: str) -> str:
    """Mode, owner and times are kept."""
    file, whole, part = (shlex.quote(name) for name in (path, copy, f"{copy}.partial"))
    return f"{sudo}cp -pL {file} {part} && {sudo}mv -f {part} {whole}"


def restore_command(kept: Kept, sudo: str) -> str:
    """What puts a file back, or takes away one that was not there."""
    file = shlex.quote(kept.path)
    if kept.copy is None:
        return f"{sudo}rm -f {file}"
    part = shlex.quote(f"{kept.copy}.partial")
    return (
        f"{sudo}cp -p {shlex.quote(kept.copy)} {part}"
        f' && {sudo}mv -f {part} "$({sudo}readlink -f {file})"'
    )
