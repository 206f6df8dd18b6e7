"""dpkg's records: the installed packages, their files, and dpkg's other data about them.

https://manpages.debian.org/bookworm/dpkg/dpkg.1.en.html#FILES
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from images.bootstrap.configure.simple import Row
from images.bootstrap.index import read_fields
from images.bootstrap.tree import PackageTree
from images.bootstrap.unpack import UnpackedPackage

_DATABASE = "var/lib/dpkg"
_INFO = f"{_DATABASE}/info"
_NOT_KEPT = frozenset({"control"})
_ORDER = (
    "Package", "Essential", "Protected", "Status", "Priority", "Section", "Installed-Size",
    "Origin", "Maintainer", "Bugs", "Architecture", "Multi-Arch", "Source", "Version", "Replaces",
    "Provides", "Depends", "Pre-Depends", "Recommends", "Suggests", "Breaks", "Conflicts",
    "Enhances", "Conffiles", "Description",
)  # fmt: skip
"""The order in which dpkg writes fields; others follow, in the package's order."""


def add_database(
    tree: PackageTree,
    packages: Sequence[UnpackedPackage],
    rows: Iterable[Row],
    unknown: Collection[str],
) -> None:
    """Write the packages' records; those in `unknown` as unpacked but not configured."""
    status = [_paragraph(one, configured=one.package.name not in unknown) for one in packages]
    tree.add_file(f"{_DATABASE}/status", "".join(f"{text}\n" for text in status).encode())
    tree.add_file(f"{_DATABASE}/available", b"")
    tree.add_file(f"{_INFO}/format", b"1\n")
    tree.add_file(f"{_DATABASE}/diversions", _diversions(tree, rows))
    for one in packages:
        _add_info(tree, one)
    _add_triggers(tree, packages)


def _paragraph(one: UnpackedPackage, *, configured: bool) -> str:
    fields = read_fields(one.control["control"].content.decode())
    fields["Status"] = f"install ok {'installed' if configured else 'unpacked'}"
    if one.digests:
        lines = (f"\n {path} {digest}" for path, digest in one.digests.items())
        fields["Conffiles"] = "".join(lines)
    names = [name for name in _ORDER if name in fields]
    names += [name for name in fields if name not in _ORDER]
    return "".join(f"{name}:{_spaced(fields[name])}\n" for name in names)


def _spaced(value: str) -> str:
    return value if value.startswith("\n") else f" {value}"


def _add_info(tree: PackageTree, one: UnpackedPackage) -> None:
    name = _full_name(tree, one)
    tree.add_file(f"{_INFO}/{name}.list", "".join(f"{path}\n" for path in one.listed).encode())
    for file, control in sorted(one.control.items()):
        if file not in _NOT_KEPT:
            tree.add_file(f"{_INFO}/{name}.{file}", control.content, mode=control.mode & 0o777)


def _full_name(tree: PackageTree, one: UnpackedPackage) -> str:
    """The name of a package, with its architecture if several of it can be installed."""
    fields = read_fields(one.control["control"].content.decode())
    name = one.package.name
    return f"{name}:{tree.arch}" if fields.get("Multi-Arch") == "same" else name


def _diversions(tree: PackageTree, rows: Iterable[Row]) -> bytes:
    lines = []
    for row in rows:
        for arch in (tree.arch, "any"):
            for path, to in row.get("diversions", {}).get(arch, {}).items():
                lines += [path, to, row["package"]]
    return "".join(f"{line}\n" for line in lines).encode()


def _add_triggers(tree: PackageTree, packages: Sequence[UnpackedPackage]) -> None:
    """Write which package waits for which trigger: paths in "File", each name in its own file."""
    files: list[str] = []
    names: dict[str, list[str]] = {}
    for one in packages:
        triggers = one.control.get("triggers")
        for line in triggers.content.decode().splitlines() if triggers else ():
            words = line.split()
            if len(words) != 2 or not words[0].startswith("interest"):
                continue
            waiter = _full_name(tree, one) + ("/noawait" if words[0] == "interest-noawait" else "")
            if words[1].startswith("/"):
                files.append(f"{words[1]} {waiter}\n")
            else:
                names.setdefault(words[1], []).append(f"{waiter}\n")
    if files:
        tree.add_file(f"{_DATABASE}/triggers/File", "".join(sorted(files)).encode())
    tree.add_file(f"{_DATABASE}/triggers/Unincorp", b"")
    for name, waiters in names.items():
        tree.add_file(f"{_DATABASE}/triggers/{name}", "".join(waiters).encode())
