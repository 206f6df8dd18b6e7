"""The links and records of update-alternatives: which of several programs has a common name.

https://manpages.debian.org/bookworm/dpkg/update-alternatives.1.en.html
"""

from __future__ import annotations

from collections.abc import Iterable

from images.bootstrap.configure.simple import Row
from images.bootstrap.tree import PackageTree, merged_path, plain_path

_DIRECTORY = "etc/alternatives"


def add_alternatives(tree: PackageTree, rows: Iterable[Row]) -> None:
    """Add the links of each group, and dpkg's record of it. Absent files, such as manual pages, get
    no link and no record.
    """
    for row in rows:
        for group in row.get("alternatives", []):
            if tree.has(group["path"]):
                _add(tree, group)


def _add(tree: PackageTree, group: Row) -> None:
    slaves = sorted(slave for slave in group.get("slaves", []) if tree.has(slave[2]))
    for name, link, path in [(group["name"], group["link"], group["path"]), *slaves]:
        tree.add_link(f"{_DIRECTORY}/{name}", path)
        tree.add_link(merged_path(plain_path(link)), f"/{_DIRECTORY}/{name}")
    lines = ["auto", group["link"]]
    for name, link, _ in slaves:
        lines += [name, link]
    lines += ["", group["path"], str(group["priority"]), *(path for _, _, path in slaves), "", ""]
    tree.add_file(f"var/lib/dpkg/alternatives/{group['name']}", "\n".join(lines).encode())
