"""The files of an image after all its layers, as a tree in memory that is never unpacked.

https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from images.inspect.dynamic import ElfFile
from images.inspect.model import LibraryCode
from images.oci.errors import ImageUnreadableError

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_MOST_HOPS = 40  # Linux's limit
_MOST_PATH = 4096
_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a tar says about a file beside its name and content; `device` is (major, minor)."""

    kind: bytes
    mode: int
    owner: tuple[int, int] = (0, 0)
    mtime: int = 0
    device: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class ImageFile:
    """A regular file. `elf` and `code` are for libraries and programs; `problem` says why an ELF
    file could not be read; `text` is the content of a small file that was requested.

    `attributes`, here and below, are those of nodes that will be written again.
    """

    size: int
    layer: int
    elf: ElfFile | None = None
    code: LibraryCode | None = None
    flags: tuple[str, ...] = ()
    problem: str | None = None
    text: bytes | None = None
    executable: bool = False
    attributes: Attributes | None = None


@dataclass(slots=True, eq=False)
class SymbolicLink:
    """A symbolic link."""

    target: str
    layer: int
    attributes: Attributes | None = None


@dataclass(slots=True, eq=False)
class Other:
    """A device or a pipe: it has a name but no content."""

    layer: int
    attributes: Attributes | None = None


@dataclass(slots=True, eq=False)
class Directory:
    """A directory's contents, by name."""

    layer: int
    children: dict[str, Node] = field(default_factory=dict)
    attributes: Attributes | None = None


Node = ImageFile | SymbolicLink | Other | Directory


class ImageTree:
    """Files by path; symbolic links are resolved within the tree, never out of it."""

    def __init__(self) -> None:
        self.root = Directory(layer=0)

    def add(self, path: str, node: Node) -> None:
        """Add a node, as an engine that unpacks a layer would.

        Creates missing parent directories, and follows links to them; replaces what was there,
        except that a directory keeps its contents.
        """
        *before, name = _parts(path) or [""]
        if not name:
            return  # the root itself
        parent = self._directory(before, node.layer)
        there = parent.children.get(name)
        if isinstance(there, Directory) and isinstance(node, Directory):
            there.layer, there.attributes = node.layer, node.attributes
        else:
            parent.children[name] = node

    def hard_link(self, path: str, target: str, layer: int) -> bool:
        """Give a file another name; False if there is no such file."""
        *before, name = _parts(target) or [""]
        parent, _ = self._walk(before)
        there = parent.children.get(name) if isinstance(parent, Directory) else None
        if there is None or isinstance(there, Directory):
            return False
        *before, name = _parts(path) or [""]
        self._directory(before, layer).children[name] = there
        return True

    def whiteout(self, path: str) -> None:
        """Remove a path. A layer's whiteouts apply to the layers below: apply them first, and then
        add the layer's own files.
        """
        *before, name = _parts(path) or [""]
        parent, _ = self._walk(before)
        if isinstance(parent, Directory):
            parent.children.pop(name, None)

    def opaque(self, path: str) -> None:
        """Remove all contents of a directory."""
        found, _ = self._walk(_parts(path))
        if isinstance(found, Directory):
            found.children.clear()

    def find(self, path: str) -> Node | None:
        """Return the node at a path, following links."""
        return self._walk(_split(path))[0]

    def file(self, path: str) -> ImageFile | None:
        """Return the regular file at a path, following links."""
        found = self.find(path)
        return found if isinstance(found, ImageFile) else None

    def real(self, path: str) -> str | None:
        """Return the path with all links resolved."""
        found, where = self._walk(_split(path))
        return None if found is None else "/" + "/".join(where)

    def walk(self, below: str = "/") -> Iterator[tuple[str, Node]]:
        """Yield all nodes below a directory with their paths, sorted; does not follow links."""
        start = self.find(below)
        if not isinstance(start, Directory):
            return
        waiting = [(below.rstrip("/"), start)]
        while waiting:
            path, directory = waiting.pop()
            for name in sorted(directory.children):
                node = directory.children[name]
                yield f"{path}/{name}", node
            for name in sorted(directory.children, reverse=True):
                node = directory.children[name]
                if isinstance(node, Directory):
                    waiting.append((f"{path}/{name}", node))

    def _directory(self, parts: list[str], layer: int) -> Directory:
        """Find a directory; missing ones on the way, and where a link leads, are created."""
        waiting = parts[::-1]
        way = [self.root]
        hops = 0
        while waiting:
            name = waiting.pop()
            if name == "..":
                way = way[:-1] or way
                continue
            here = way[-1]
            child = here.children.get(name)
            if isinstance(child, SymbolicLink) and hops < _MOST_HOPS:
                hops += 1
                if child.target.startswith("/"):
                    way = way[:1]
                waiting += _split(child.target)[::-1]
                continue
            if not isinstance(child, Directory):
                child = here.children[name] = Directory(layer=layer)
            way.append(child)
        return way[-1]

    def _walk(self, parts: list[str]) -> tuple[Node | None, list[str]]:
        """(the node at a path, the names of its path with links resolved)."""
        waiting = parts[::-1]
        way: list[tuple[str, Node]] = []
        hops = 0
        for _ in range(_MOST_STEPS):
            here = way[-1][1] if way else self.root
            if not waiting:
                return here, [name for name, _ in way]
            name = waiting.pop()
            if name == "..":
                way = way[:-1]
                continue
            if not isinstance(here, Directory):
                return None, []
            node = here.children.get(name)
            if node is None:
                return None, []
            if isinstance(node, SymbolicLink):
                hops += 1
                if hops > _MOST_HOPS:
                    return None, []
                if node.target.startswith("/"):
                    way = []
                waiting += _split(node.target)[::-1]
            else:
                way.append((name, node))
        return None, []


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _parts(path: str) -> list[str]:
    """Split the name of a member; ".." does not lead above the root, as in an engine."""
    if len(path.encode("utf-8", "surrogateescape")) > _MOST_PATH:
        raise ImageUnreadableError(
            f"A layer holds a path of {len(path)} characters, which no system can unpack.",
            fix="Rebuild the image or pull it again.",
        )
    parts: list[str] = []
    for part in _split(path):
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return parts
