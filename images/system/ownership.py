"""Who can change a file: only its owner and root, or somebody else, too."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40  # as the kernel's


def changed_by_others(path: Path, *, home: Path | None = None) -> str:
    """Why a user other than this one and root could change the file or directory `path`, or put
    another in its place: a sentence without a full stop. "" if nobody else could.

    The file, its links and all directories above them count, except those above `home` (default:
    $HOME): a user who can change these controls the account. Below a directory that others may not
    enter, their rights do not count. OSError: it cannot be read.
    """
    home = Path(os.environ.get("HOME") or "/") if home is None else home
    trusted = {*home.parents, *Path(os.path.realpath(home)).parents, Path("/")}
    closed: set[Path] = set()
    for place in _on_the_way(Path(os.path.abspath(path))):  # noqa: PTH100  links are kept
        if place in trusted:
            continue
        status = place.lstat()
        if status.st_uid != 0 and (another := another_owner(place, status)):
            return another
        if closed.isdisjoint(place.parents) and written_by_others(place, status):
            return f"{place} can be changed by other users (mode {status.st_mode & 0o7777:04o})"
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            closed.add(place)
    return ""


def another_owner(path: Path, status: os.stat_result) -> str:
    """A sentence without a full stop if a file belongs to another user, root included; else "".
    `status`: lstat of `path`.
    """
    mine = os.geteuid()
    if status.st_uid == mine:
        return ""
    return f"{path} belongs to user {status.st_uid}, and you are user {mine}"


def written_by_others(path: Path, status: os.stat_result) -> bool:
    """Whether its mode lets anybody but its owner and root change a file, or remove and rename what
    is theirs in a directory. `status`: lstat of `path`.

    A group in which only the owner is (the "user private group" of Fedora and Ubuntu) is no other.
    """
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return False
    if mode & stat.S_IWOTH:
        return True
    return bool(mode & stat.S_IWGRP) and (
        _has_acl(path) or not _is_private(status.st_gid, status.st_uid)
    )


def _on_the_way(path: Path) -> Iterator[Path]:
    """Every directory, link and file that decides what an absolute path means, from the root."""
    done, left, links = Path("/"), list(path.parts[1:]), 0
    while left:
        part = left.pop(0)
        if part == "..":
            done = done.parent
            continue
        place = done / part
        yield place
        target = place.readlink() if place.is_symlink() and links < _MOST_LINKS else None
        if target is None:
            done = place
            continue
        links += 1
        left = [one for one in target.parts if one != "/"] + left
        done = Path("/") if target.is_absolute() else done


def _has_acl(path: Path) -> bool:
    """Whether an access list names more users: the group's mode is then the most of any of them."""
    with contextlib.suppress(OSError):
        return bool(os.getxattr(path, "system.posix_acl_access", follow_symlinks=False))
    return False


def _is_private(group: int, owner: int) -> bool:
    """Whether only the owner is in a group: root's, or one that is named like its owner."""
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = ""
    try:
        found = grp.getgrgid(group)
    except KeyError:  # in a container, users and groups may have no names
        return group in {0, owner}
    return (group == 0 or found.gr_name == user) and not set(found.gr_mem) - {user, "root"}
