"""Writes what the maintainer scripts of Debian's packages would write, without running them.

`dpkg` runs a package's scripts when it configures it. A base is built without running anything, for
any architecture and by any user, so this package reproduces the scripts' results: the simple ones
as data (`data/scripts.json`: copied files, directories, links, alternatives, diversions), the
others in one module each: accounts, shells, PAM's stacks, certificates, the loader's cache, dpkg's
records.

A package with unknown scripts is recorded as unpacked but not configured, which is true: `dpkg
--configure -a` or the next apt-get in the image completes it. A test compares the result with that
of mmdebstrap, which runs the scripts, for the same packages.
"""

from __future__ import annotations

from collections.abc import Sequence

from images.bootstrap.configure import (
    accounts,
    alternatives,
    apt,
    certificates,
    dpkg,
    loader,
    pam,
    simple,
)
from images.bootstrap.tree import PackageTree
from images.bootstrap.unpack import UnpackedPackage

__all__ = ["configure", "wanted_paths"]


def wanted_paths() -> str:
    """A pattern of the paths whose contents `configure` reads."""
    parts = (simple, accounts, pam, certificates, loader, apt)
    return "|".join(part.WANTED for part in parts)


def configure(tree: PackageTree, packages: Sequence[UnpackedPackage]) -> tuple[str, ...]:
    """Add to a tree what the packages' scripts would have added.

    Returns the names of the packages whose scripts are not known here.
    """
    rows = simple.rows_for(tree.suite, {one.package.name for one in packages})
    simple.apply(tree, rows)
    accounts.add_accounts(tree)
    accounts.add_shells(tree, rows)
    pam.add_stacks(tree)
    alternatives.add_alternatives(tree, rows)
    certificates.add_certificates(tree)
    apt.add_apt(tree)
    loader.add_cache(tree)
    unknown = simple.unknown(packages, rows)
    dpkg.add_database(tree, packages, rows, unknown)
    return tuple(sorted(unknown))
