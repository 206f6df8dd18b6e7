"""Merges an image's layers into one tree that knows in which layer each content is.

https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname, join

from images.errors import Failure
from images.inspect.tree import (
    OPAQUE,
    WHITEOUT,
    Attributes,
    Directory,
    ImageFile,
    ImageTree,
    Node,
    Other,
    SymbolicLink,
)
from images.oci.errors import ImageUnreadableError
from images.oci.inflate import ANEW_FIX
from images.oci.sources import ImageLayer
from images.oci.tarstream import XATTR, layer_members

MOST_MEMBERS = 5_000_000
"""The limit for all layers together, as for unpacking them."""

_MOST_NUMBER = (1 << 32) - 1  # squashfs has 32 bits for owners and times
_IGNORED = f"{WHITEOUT}{WHITEOUT}"  # metadata of aufs, except OPAQUE


@dataclass(slots=True)
class Merged:
    """The tree, and for each layer the files that its members are, by the member's number."""

    tree: ImageTree = field(default_factory=ImageTree)
    files: list[dict[int, ImageFile]] = field(default_factory=list)


@dataclass(slots=True)
class _Layer:
    number: int
    opaque: list[str] = field(default_factory=list)
    whiteouts: list[str] = field(default_factory=list)
    nodes: list[tuple[str, Node | str]] = field(default_factory=list)  # a path: a hard link
    files: dict[int, ImageFile] = field(default_factory=dict)


def merge(layers: Sequence[ImageLayer]) -> Merged:
    """Read the headers of all layers, and merge them. ImageUnreadableError: no system could unpack
    them.
    """
    merged = Merged()
    left = MOST_MEMBERS
    for number, layer in enumerate(layers):
        found = _Layer(number=number)
        merged.files.append(found.files)
        with contextlib.closing(layer_members(layer)) as members:
            for at, (member, _) in enumerate(members):
                left -= 1
                if left < 0:
                    raise _unreadable(f"The image has more than {MOST_MEMBERS} files.")
                _take(found, at, member)
        _apply(merged.tree, found)
    return merged


def attributes_of(member: tarfile.TarInfo) -> Attributes:
    """What is kept of a member's header."""
    if max(member.uid, member.gid) > _MOST_NUMBER or min(member.uid, member.gid) < 0:
        raise _unreadable(
            f"{member.name[:200]!r} belongs to user {member.uid} and group {member.gid}, which "
            "no system has."
        )
    return Attributes(
        kind=member.type,
        mode=member.mode & 0o7777,
        owner=(member.uid, member.gid),
        mtime=min(max(int(member.mtime), 0), _MOST_NUMBER),
        device=(member.devmajor, member.devminor) if member.isdev() else (0, 0),
        xattrs=tuple(
            (name, value)
            for name, value in sorted(member.pax_headers.items())
            if name.startswith(XATTR)
        )
        if member.pax_headers
        else (),
    )


def _take(found: _Layer, at: int, member: tarfile.TarInfo) -> None:
    path = _absolute(member.name)
    name = basename(path)
    layer = found.number
    if name == OPAQUE:
        found.opaque.append(dirname(path))
        return
    if name.startswith(WHITEOUT):
        hidden = name.removeprefix(WHITEOUT)
        if hidden in {"", ".", ".."}:
            raise _unreadable(f"A layer has a whiteout that names nothing: {name!r}.")
        if not name.startswith(_IGNORED):
            found.whiteouts.append(join(dirname(path), hidden))
        return
    node: Node | str
    attributes = attributes_of(member)
    if member.isdir():
        node = Directory(layer=layer, attributes=attributes)
    elif member.issym():
        if not member.linkname:
            raise _unreadable(f"{path[:200]!r} is a symbolic link to nothing.")
        node = SymbolicLink(target=member.linkname, layer=layer, attributes=attributes)
    elif member.islnk():
        node = _absolute(member.linkname)
    elif member.isreg():
        node = ImageFile(size=member.size, layer=layer, attributes=attributes)
        found.files[at] = node
    else:
        node = Other(layer=layer, attributes=attributes)
    found.nodes.append((path, node))


def _apply(tree: ImageTree, layer: _Layer) -> None:
    for path in layer.opaque:
        tree.opaque(path)
    for path in layer.whiteouts:
        tree.whiteout(path)
    for path, node in layer.nodes:
        if isinstance(node, str):
            if not tree.hard_link(path, node, layer.number):
                raise _unreadable(f"A layer links a file to {node[:200]!r}, which is not a file.")
        elif path != "/":
            tree.add(path, node)
        elif isinstance(node, Directory):
            tree.root.attributes = node.attributes


def _absolute(name: str) -> str:
    """A member's path; refuses names that lead out of the root, as engines do."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ImageUnreadableError(
            f"A layer has a file named {name[:200]!r}, which leads out of the image.",
            fix="Do not use this image: no honest tool makes such a name.",
        )
    if any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
        raise _unreadable(f"A layer has a file whose name is too long: {name[:200]!r}.")
    return "/" + "/".join(parts)


def _unreadable(message: str) -> Failure:
    return ImageUnreadableError(message, fix=ANEW_FIX)
