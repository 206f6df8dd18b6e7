"""Writes the layer of a base: a tar of its directories, its packages, and the added files.

It is one gzip stream with several members, which every gzip reader reads as one: packages are
compressed separately and in parallel. The same packages give the same bytes on every machine,
because the compressor is a pinned library whose output depends on nothing else (see `unpack`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.bootstrap.configure import configure
from images.bootstrap.errors import BootstrapError
from images.bootstrap.tree import PackageTree
from images.bootstrap.unpack import UnpackedPackage, compress
from images.layers.tar import END, TarEntry, padding

_PYTHON = re.compile(r"usr/bin/python(\d+\.\d+)")
_MERGED = re.compile(r"(bin|sbin|lib|lib32|lib64|libo32|libx32)(?=/|$)")
_STANDING = ("dev", "proc", "sys", "run", "tmp")
"""Directories at which engines mount; packages contain only some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer that was written to `path`, compressed. `diff_id` is the digest of its plain tar,
    `digest` that of the file; `size` in bytes. `packages` are "name=version", `pythons` the
    versions in /usr/bin ("3.11"), `unconfigured` the packages with unknown scripts, and why.
    """

    path: Path
    diff_id: str
    digest: str
    size: int
    packages: tuple[str, ...]
    pythons: tuple[str, ...]
    unconfigured: Mapping[str, str]


def write_layer(
    path: Path, parts: Sequence[UnpackedPackage], *, suite: str, arch: str, epoch: int
) -> Layer:
    """Write the layer of unpacked packages, sorted by name."""
    tree = _tree_of(parts, suite=suite, arch=arch, epoch=epoch)
    unknown = configure(tree, parts)
    directories = _tar(tree.directories[name] for name in sorted(tree.directories))
    added = _tar(tree.added[name] for name in sorted(tree.added))
    packed = (one.packed for one in parts if one.packed)
    digest, plain = hashlib.sha256(), hashlib.sha256()
    with path.open("wb") as file:
        for member in (compress(directories), *packed, compress([*added, END])):
            file.write(member)
            digest.update(member)
            plain.update(_inflated(member))
    pythons = (found[1] for name in sorted(tree.files) if (found := _PYTHON.fullmatch(name)))
    return Layer(
        path=path,
        diff_id=f"sha256:{plain.hexdigest()}",
        digest=f"sha256:{digest.hexdigest()}",
        size=path.stat().st_size,
        packages=tuple(f"{one.package.name}={one.package.version}" for one in parts),
        pythons=tuple(pythons),
        unconfigured=unknown,
    )


def _tree_of(
    unpacked: Iterable[UnpackedPackage], *, suite: str, arch: str, epoch: int
) -> PackageTree:
    tree = PackageTree(epoch=epoch, arch=arch, suite=suite)
    merged = set()
    owners: dict[str, str] = {}
    of_directories: dict[str, str] = {}
    for one in unpacked:
        name = one.package.name
        for path in (*one.files, *one.links):
            if other := owners.get(path) or of_directories.get(path):
                raise _collision(name, other, path)
            owners[path] = name
        for entry in one.directories:
            tree.directories.setdefault(entry.path, entry)
            of_directories.setdefault(entry.path, name)
            if entry.path in owners:
                raise _collision(name, owners[entry.path], entry.path)
        tree.files |= one.files
        tree.links.update(one.links)
        tree.texts.update(one.texts)
        tree.sonames.update(one.sonames)
        merged |= {m[1] for name in one.listed if (m := _MERGED.match(name[1:]))}
    for name in _STANDING:
        if name not in tree.directories:
            tree.add_directory(name, mode=0o1777 if name == "tmp" else 0o755)
    for name in sorted(merged - set(tree.links)):
        tree.add_link(name, f"usr/{name}")
        tree.directories.setdefault(f"usr/{name}", TarEntry(path=f"usr/{name}", kind="dir"))
    return tree


def _collision(package: str, other: str, path: str) -> BootstrapError:
    return BootstrapError(
        f"{package} and {other} both install /{path}.",
        fix="Name other packages, or another suite.",
    )


def _tar(entries: Iterable[TarEntry]) -> Iterator[bytes]:
    for entry in entries:
        yield from (entry.header, entry.content, padding(len(entry.content)))


def _inflated(member: bytes) -> bytes:
    """Decompress what was just compressed, with another library, as a check."""
    from isal import isal_zlib

    return bytes(isal_zlib.decompress(member, 31))
