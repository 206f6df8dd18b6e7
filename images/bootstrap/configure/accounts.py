"""Users, groups, their passwords (none), and the allowed login shells.

Written as by base-passwd, passwd's shadowconfig and debianutils' update-shells.
"""

from __future__ import annotations

from collections.abc import Iterable

from images.bootstrap.configure.simple import Row
from images.bootstrap.tree import PackageTree, file_names

WANTED = r"usr/share/base-passwd/.*|usr/share/debianutils/shells(\.d/.*)?"
_SHADOW_GROUP = 42
_DAY_S = 86400
_APT_LINE = "_apt:x:100:65534::/nonexistent:/usr/sbin/nologin\n"
"""Debian 12 has this user among the fixed ones; before, apt's script created it."""


def add_accounts(tree: PackageTree, rows: Iterable[Row]) -> None:
    """Write passwd, group and their shadow files. Passwords count as changed on `epoch`'s day.
    Groups of packages have fixed numbers, whatever is installed beside them.
    """
    users = _masters(tree, "passwd")
    groups = _masters(tree, "group")
    more = {name: number for row in rows for name, number in row.get("groups", {}).items()}
    groups += [f"{name}:!:{number}:\n" for name, number in sorted(more.items())]
    if not users or not groups:
        return
    if tree.has("usr/bin/apt-get") and not any(line.startswith("_apt:") for line in users):
        users.append(_APT_LINE)
    day = tree.epoch // _DAY_S
    shadow = [f"{line.split(':')[0]}:*:{day}:0:99999:7:::\n" for line in users]
    gshadow = ["{}:{}::\n".format(*line.split(":")) for line in groups]
    tree.add_file("etc/passwd", _shadowed(users))
    tree.add_file("etc/group", _shadowed(groups))
    tree.add_file("etc/shadow", "".join(shadow).encode(), mode=0o640, owner=(0, _SHADOW_GROUP))
    tree.add_file("etc/gshadow", "".join(gshadow).encode(), mode=0o640, owner=(0, _SHADOW_GROUP))


def _masters(tree: PackageTree, kind: str) -> list[str]:
    content = tree.read(f"usr/share/base-passwd/{kind}.master") or b""
    return content.decode().splitlines(keepends=True)


def _shadowed(lines: list[str]) -> bytes:
    """Refer each line to the shadow file: set the second field to "x"."""
    fields = (line.split(":") for line in lines)
    return "".join(":".join([name, "x", *rest]) for name, _, *rest in fields).encode()


def add_shells(tree: PackageTree, rows: Iterable[Row]) -> None:
    """Write /etc/shells: the packages' shells, and each one in /bin also as in /usr/bin."""
    heading = tree.read("usr/share/debianutils/shells")
    if heading is None:
        return
    lists = file_names(tree.texts, "usr/share/debianutils/shells.d")
    lines = heading.decode().splitlines()
    for path in lists:
        lines += (tree.read(path) or b"").decode().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    shells = _in_both_directories(lines)
    added = _in_both_directories([one for row in rows for one in row.get("shells", [])])
    every = dict.fromkeys((*comments, *shells, *added))
    tree.add_file("etc/shells", "".join(f"{line}\n" for line in every).encode())
    if lists:
        tree.add_file("var/lib/shells.state", "".join(f"{line}\n" for line in shells).encode())


def _in_both_directories(lines: Iterable[str]) -> list[str]:
    """The paths of shells, each once, and each in /bin also as in /usr/bin."""
    paths: dict[str, None] = {}
    for line in lines:
        if line.startswith("/"):
            paths[line] = None
        if line.startswith("/bin/"):
            paths[f"/usr{line}"] = None
    return list(paths)
