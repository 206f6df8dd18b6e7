"""Writes what the maintainer scripts of Debian's packages would write, without running them.

`dpkg` runs a package's scripts when it configures it. A base is built without running anything, for
any architecture and by any user, so this package reproduces the scripts' results: the simple ones
as data (`data/scripts.json`: copied files, directories, links, alternatives, diversions), the
others in one module each: accounts, shells, PAM's stacks, certificates, MIME types, the loader's
cache, dpkg's records. The scripts of a package that is not in the data are read (`scripts`).

A package with unknown scripts is recorded as unpacked but not configured, which is true: `dpkg
--configure -a` or the next apt-get in the image completes it. Packages that a user names, and what
they need, must be known. A test compares the result with that of mmdebstrap, which runs the
scripts, for the same packages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from images.bootstrap.configure import (
    accounts,
    alternatives,
    apt,
    certificates,
    dpkg,
    loader,
    mime,
    pam,
    simple,
)
from images.bootstrap.configure.scripts import read_script
from images.bootstrap.tree import PackageTree
from images.bootstrap.unpack import UnpackedPackage

__all__ = ["configure", "modes", "wanted_paths"]

modes = simple.modes


def wanted_paths() -> str:
    """A pattern of the paths whose contents `configure` reads."""
    parts = (simple, accounts, pam, certificates, loader, mime, apt)
    return "|".join(part.WANTED for part in parts)


def configure(tree: PackageTree, packages: Sequence[UnpackedPackage]) -> Mapping[str, str]:
    """Add to a tree what the packages' scripts would have added.

    Returns the packages whose scripts are not known here, each with the reason.
    """
    rows = simple.rows_for(tree.suite, {one.package.name for one in packages}, tree.triplet)
    read, readings = _read(tree, packages, {row["package"] for row in rows})
    rows = (*rows, *read)
    simple.apply(tree, rows)
    accounts.add_accounts(tree, rows)
    accounts.add_shells(tree, rows)
    pam.add_stacks(tree)
    alternatives.add_alternatives(tree, rows)
    certificates.add_certificates(tree)
    apt.add_apt(tree)
    mime.add_types(tree)
    loader.add_cache(tree)
    unknown = simple.unknown(packages, rows, readings)
    dpkg.add_database(tree, packages, rows, unknown)
    return unknown


_SCRIPTS = {"preinst": "install", "postinst": "configure"}
"""The scripts of an installation, and what they are called with."""


def _read(
    tree: PackageTree, packages: Sequence[UnpackedPackage], known: Collection[str]
) -> tuple[tuple[simple.Row, ...], Mapping[str, str]]:
    """Read the scripts of the packages without a row: rows for those, and what was not understood
    of each.
    """
    rows: list[simple.Row] = []
    unread: dict[str, str] = {}
    for one in packages:
        name = one.package.name
        for script, argument in _SCRIPTS.items():
            if name in known or script not in one.control:
                continue
            text = one.control[script].content.decode("utf-8", "replace")
            reading = read_script(text, argument, tree.has_program)
            rows.append({"package": name, "alternatives": reading.alternatives})
            unread[name] = unread.get(name) or reading.unread
    return tuple(rows), unread
