"""The links and records of update-alternatives: which of several programs has a common name.

https://manpages.debian.org/bookworm/dpkg/update-alternatives.1.en.html
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from images.bootstrap.configure.simple import Row
from images.bootstrap.tree import PackageTree, merged_path, plain_path

_DIRECTORY = "etc/alternatives"


def add_alternatives(tree: PackageTree, rows: Iterable[Row]) -> None:
    """Add the links of each group to its choice of the highest priority, and dpkg's record of it.
    Absent files, such as manual pages, get no link and no record.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        for choice in row.get("alternatives", []):
            if tree.has(choice["path"]):
                groups.setdefault(choice["name"], []).append(choice)
    for name, choices in groups.items():
        _add(tree, name, sorted(choices, key=lambda choice: str(choice["path"])))


def _add(tree: PackageTree, name: str, choices: Sequence[Row]) -> None:
    best = max(choices, key=lambda choice: int(choice["priority"]))
    of_each = [
        {slave: (link, path) for slave, link, path in choice.get("slaves", []) if tree.has(path)}
        for choice in choices
    ]
    slaves = {slave: link for one in of_each for slave, (link, _) in one.items()}
    of_best = of_each[choices.index(best)]
    links = {name: (best["link"], best["path"]), **of_best}
    for one, (link, path) in links.items():
        tree.add_link(f"{_DIRECTORY}/{one}", path)
        tree.add_link(merged_path(plain_path(link)), f"/{_DIRECTORY}/{one}")
    lines = ["auto", best["link"]]
    for slave in sorted(slaves):
        lines += [slave, slaves[slave]]
    lines.append("")
    for choice, own in zip(choices, of_each, strict=True):
        lines += [choice["path"], str(choice["priority"])]
        lines += [own[slave][1] if slave in own else "" for slave in sorted(slaves)]
    lines += ["", ""]
    tree.add_file(f"var/lib/dpkg/alternatives/{name}", "\n".join(lines).encode())
