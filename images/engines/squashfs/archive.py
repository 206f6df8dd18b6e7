"""Writes a merged tree as one tar, streamed from the layers that have the contents.

Directories, links and devices come first, then the contents in the order of the layers. Names, link
targets and attributes may be any bytes; what does not fit into a header is in another before it.
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Generator, Iterator, Sequence

from images.engines.squashfs.merge import Merged
from images.inspect.tree import Attributes, Directory, ImageFile, Node, SymbolicLink
from images.layers.tar import pax_record
from images.oci.sources import ImageLayer
from images.oci.tarstream import layer_members

ROOT = Attributes(kind=tarfile.DIRTYPE, mode=0o755)
"""The attributes of a directory that no layer describes."""

_BLOCK = 512
_PIECE = 1 << 20
_LARGE = 1 << 18
_MOST_NAME = 100
_MOST_ID = 0o7777777
_MOST_SIZE = 1 << 33
_END = bytes(20 * _BLOCK)


def archive(merged: Merged, layers: Sequence[ImageLayer]) -> Generator[bytes, None, None]:
    """Yield the tar in pieces of about a megabyte."""
    paths: dict[ImageFile, list[str]] = {}
    held = bytearray(header("./", merged.tree.root.attributes or ROOT))
    for path, node in merged.tree.walk():
        if not isinstance(node, ImageFile):
            held += _without_content(path[1:], node)
        elif node.text is not None:
            held += header(path[1:], node.attributes or ROOT, size=len(node.text))
            held += node.text + bytes(-len(node.text) % _BLOCK)
        else:
            paths.setdefault(node, []).append(path[1:])
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    for layer, files in zip(layers, merged.files, strict=True):
        wanted = {at: file for at, file in files.items() if file in paths}
        if wanted:
            yield from _contents(held, layer, wanted, paths)
    yield bytes(held) + _END


def _contents(
    held: bytearray,
    layer: ImageLayer,
    wanted: dict[int, ImageFile],
    paths: dict[ImageFile, list[str]],
) -> Iterator[bytes]:
    """The files that one layer has, each followed by its other names."""
    with contextlib.closing(layer_members(layer)) as members:
        for at, (_, content) in enumerate(members):
            file = wanted.get(at)
            if file is None or content is None:
                continue
            first, *others = paths[file]
            attributes = file.attributes or ROOT
            held += header(first, attributes, size=file.size)
            while piece := content.read(_PIECE):
                if len(held) + len(piece) >= _LARGE:
                    yield bytes(held)
                    held.clear()
                    yield piece
                else:
                    held += piece
            held += bytes(-file.size % _BLOCK)
            for other in others:
                held += header(other, attributes, kind=tarfile.LNKTYPE, link=first)


def _without_content(path: str, node: Node) -> bytes:
    attributes = node.attributes or ROOT
    if isinstance(node, SymbolicLink):
        return header(path, attributes, link=node.target)
    return header(path + "/" if isinstance(node, Directory) else path, attributes)


def header(
    path: str, attributes: Attributes, *, size: int = 0, link: str = "", kind: bytes = b""
) -> bytes:
    """The blocks before a member's content. `kind`: another than its attributes'."""
    name, target = (text.encode("utf-8", "surrogateescape") for text in (path, link))
    records: list[tuple[str, bytes]] = [
        (key, value.encode("utf-8", "surrogateescape")) for key, value in attributes.xattrs
    ]
    if len(name) > _MOST_NAME:
        records.append(("path", name))
    member = tarfile.TarInfo(_short(name))
    member.type = kind or attributes.kind
    member.linkname, member.mode, member.mtime = _short(target), attributes.mode, attributes.mtime
    member.devmajor, member.devminor = attributes.device
    for key, number, most in (
        ("size", size, _MOST_SIZE - 1),
        ("uid", attributes.owner[0], _MOST_ID),
        ("gid", attributes.owner[1], _MOST_ID),
    ):
        setattr(member, key, number if number <= most else 0)
        if number > most:
            records.append((key, b"%d" % number))
    more = b"".join(pax_record(key.encode("utf-8", "surrogateescape"), v) for key, v in records)
    # GNU's form for a long target: some tools take the first "/" from one in a pax record
    long_target = target + b"\0" if len(target) > _MOST_NAME else b""
    return (
        _extension(tarfile.GNUTYPE_LONGLINK, long_target)
        + _extension(tarfile.XHDTYPE, more)
        + member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    )


def _extension(kind: bytes, content: bytes) -> bytes:
    """A header for the member after it; nothing if there is no content."""
    if not content:
        return b""
    member = tarfile.TarInfo("././@LongLink" if kind == tarfile.GNUTYPE_LONGLINK else "pax")
    member.type, member.size = kind, len(content)
    block = member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    return block + content + bytes(-len(content) % _BLOCK)


def _short(name: bytes) -> str:
    """What a header has of a name: all of it, or its beginning."""
    if len(name) <= _MOST_NAME:
        return name.decode("utf-8", "surrogateescape")
    return name[:_MOST_NAME].decode("ascii", "replace").replace("\ufffd", "_")
