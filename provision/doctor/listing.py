"""What `ls` and `df` print, of GNU or busybox."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(
    r"(?P<mode>[-dlcbsp][-rwxsStT]{9})[.+@]?\s+\d+\s+(?P<uid>\d+)\s+(?P<gid>\d+)\s+"
    r"(?P<size>\d+(?:,\s*\d+)?)\s+\S+\s+\S+\s+\S+ (?P<name>.+)"
)
_KINDS = {"-": "file", "d": "directory", "c": "device", "b": "device", "s": "socket"}
_LINE_LIMIT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A line of `ls -lAn`."""

    kind: str  # as in `Status`, or "link"
    mode: int
    uid: int
    gid: int
    size: int
    target: str = ""


def parse_listing(text: str) -> dict[str, ListedFile]:
    """Entries of a directory by name, by `ls -lAn` of GNU or busybox."""
    found: dict[str, ListedFile] = {}
    for line in text.splitlines():
        match = _ENTRY.match(line[:_LINE_LIMIT])
        if match is None:
            continue
        name, target = match["name"], ""
        if match["mode"][0] == "l":
            name, _, target = name.partition(" -> ")
        found[name] = ListedFile(
            kind="link" if target else _KINDS.get(match["mode"][0], "other"),
            mode=bits(match["mode"][1:]),
            uid=int(match["uid"]),
            gid=int(match["gid"]),
            size=int(match["size"]) if match["size"].isdecimal() else 0,
            target=target,
        )
    return found


def bits(letters: str) -> int:
    """ "rw-r--r--" -> 0o644."""
    return sum(1 << (8 - i) for i, c in enumerate(letters) if c not in "-ST")


def parse_df(text: str) -> tuple[int, int] | None:
    """(total, free) of the last line of `df -P`, in its own unit."""
    rows = [line.split() for line in text.splitlines()]
    rows = [row for row in rows if len(row) >= 6 and row[1].isdecimal() and row[3].isdecimal()]
    return (int(rows[-1][1]), int(rows[-1][3])) if rows else None
