"""The file tree of a base image, read from its layers from lowest to uppermost.

Nothing is unpacked. Only links and the few wanted files are kept, and of these only the part of the
content that `look` extracts. So memory stays flat, however large the base is.

https://github.com/opencontainers/image-spec/blob/main/layer.md (whiteouts)
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

from images.inspect.tree import OPAQUE, WHITEOUT
from images.layers.own_errors import BaseUnfitError
from images.oci.errors import ImageUnreadableError
from images.oci.sources import ImageLayer
from images.oci.tarstream import layer_members

MOST_KEPT = 300_000
MOST_UNPACKED_BYTES = 64 << 30
_MOST_LINKS = 40  # the kernel's limit
_PIECE_BYTES = 1 << 20
_OVERLAP_BYTES = 256
_RESERVED = f"{WHITEOUT}{WHITEOUT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseNode:
    """A link (with its `target`), or a file; `found` is what `look` extracted from its content."""

    target: str | None = None
    mode: int = 0
    found: bytes | None = None

    @property
    def runs(self) -> bool:
        """Whether it is an executable file."""
        return self.target is None and bool(self.mode & 0o111)


Look = Callable[[str, IO[bytes]], "bytes | None"]
"""Extracts what is wanted from the content of the file at a path."""


@dataclass(slots=True, kw_only=True)
class BaseTree:
    """The root of an image. `wanted` matches the paths ("usr/bin/python3") that are kept."""

    wanted: re.Pattern[str]
    look: Look
    nodes: dict[str, BaseNode] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, layer: ImageLayer) -> None:
        """Add a layer on top. Its whiteouts hide files of the layers below, not its own."""
        fresh: dict[str, BaseNode] = {}
        gone: set[str] = set()
        emptied: set[str] = set()
        hideable = {parent for path in self.nodes for parent in _parents(path)} | set(self.nodes)
        with contextlib.closing(layer_members(layer)) as members:
            for member, content in members:
                self._bytes += tarfile.BLOCKSIZE + member.size
                path = plain_path(member.name)
                name = posixpath.basename(path)
                if name == OPAQUE:
                    emptied.add(posixpath.dirname(path))
                elif name.startswith(WHITEOUT):
                    if not name.startswith(_RESERVED):
                        gone.add(posixpath.join(posixpath.dirname(path), name[len(WHITEOUT) :]))
                elif path:
                    if not member.isdir() and path in hideable:
                        gone.add(path)
                    node = self._node(path, member, content, fresh)
                    if node is not None:
                        fresh[path] = node
                    else:
                        fresh.pop(path, None)
                self._check_bounds(len(fresh), layer)
        self._hide(gone, emptied)
        self._merge(fresh)

    def _node(
        self,
        path: str,
        member: tarfile.TarInfo,
        content: IO[bytes] | None,
        fresh: dict[str, BaseNode],
    ) -> BaseNode | None:
        if member.issym():
            return BaseNode(target=member.linkname)
        if member.islnk():
            other = plain_path(member.linkname)
            return fresh.get(other) or self.nodes.get(other)
        if content is None or not self.wanted.fullmatch(path):
            return None
        return BaseNode(mode=member.mode, found=self.look(path, content))

    def _check_bounds(self, fresh: int, layer: ImageLayer) -> None:
        if fresh + len(self.nodes) > MOST_KEPT or self._bytes > MOST_UNPACKED_BYTES:
            raise ImageUnreadableError(
                f"The layer {layer.blob.digest[:19]} unpacks to more than a base image has: "
                f"{self._bytes >> 20} MiB, {fresh + len(self.nodes)} links and libraries.",
                fix="Give another base: --base IMAGE",
            )

    def _hide(self, gone: set[str], emptied: set[str]) -> None:
        if not gone and not emptied:
            return
        for path in list(self.nodes):
            above = list(_parents(path))
            if path in gone or not gone.isdisjoint(above) or not emptied.isdisjoint(above):
                del self.nodes[path]

    def _merge(self, fresh: dict[str, BaseNode]) -> None:
        """Add the new nodes; a directory without an own entry may be a link in a lower layer."""
        real: dict[str, str] = {"": ""}
        for path, node in fresh.items():
            parent, name = posixpath.split(path)
            if parent not in real:
                real[parent] = self.resolve(parent)
            self.nodes[posixpath.join(real[parent], name)] = node

    def resolve(self, path: str) -> str:
        """Resolve links within the image: absolute ones start at the image's root."""
        left = [part for part in path.split("/") if part][::-1]
        at: list[str] = []
        links = 0
        while left:
            part = left.pop()
            if part in {".", ".."}:
                del at[-1 if part == ".." and at else len(at) :]
                continue
            node = self.nodes.get("/".join([*at, part]))
            if node is None or node.target is None:
                at.append(part)
                continue
            links += 1
            if links > _MOST_LINKS or len(left) > 4096:
                raise BaseUnfitError(
                    f"/{path} of the base is a link that leads nowhere.",
                    fix="Give another base: --base IMAGE",
                )
            if node.target.startswith("/"):
                at = []
            left += [part for part in node.target.split("/") if part][::-1]
        return "/".join(at)

    def file(self, path: str) -> tuple[str, BaseNode] | None:
        """Find a kept file: its path without links, and its node."""
        try:
            real = self.resolve(path)
        except BaseUnfitError:
            return None
        node = self.nodes.get(real)
        return (real, node) if node is not None and node.target is None else None


def plain_path(name: str) -> str:
    """Normalize a member's name to "usr/bin/python3"; "" for the root itself."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ImageUnreadableError(
            f"A layer of the base names a file {name!r}, which lies outside of it.",
            fix="Give another base: --base IMAGE",
        )
    return "/".join(parts)


def search(content: IO[bytes], pattern: re.Pattern[bytes]) -> bytes | None:
    """Find the first match's group in content of any size, with little memory."""
    held = b""
    while piece := content.read(_PIECE_BYTES):
        held += piece
        match = pattern.search(held)
        if match:
            return match[1]
        held = held[-_OVERLAP_BYTES:]
    return None


def _parents(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        yield path[:at]
        at = path.rfind("/", 0, at)
    yield ""


def read_tree(layers: Iterable[ImageLayer], wanted: re.Pattern[str], look: Look) -> BaseTree:
    """Read the layers of an image."""
    tree = BaseTree(wanted=wanted, look=look)
    for layer in layers:
        tree.add(layer)
    return tree
