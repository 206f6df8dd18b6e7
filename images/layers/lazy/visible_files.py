"""What a container sees of a layer's files after a pull, to be compared with what a table says."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from images.layers.lazy.table import TYPES
from images.oci.tarstream import XATTR
from images.text.printable import printable

_SURROGATES = re.compile("[\ud800-\udfff]")
_ROUNDED_S = 0.5
"""Tables of stargz-snapshotter have whole seconds, rounded."""


@dataclass(slots=True, kw_only=True)
class VisibleFile:
    """A file, as a container sees it: by a tar's member, or by a table's row.

    `mtime` in seconds; `link`: the target of a link; `device`: major and minor number; `digest` of
    a regular file's content ("": unknown).
    """

    kind: str
    mode: int
    uid: int
    gid: int
    mtime: float
    size: int = 0
    link: str = ""
    device: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    digest: str = ""


class VisibleTree:
    """The files of a tar, by name ("" is the root). `chunks`: the digests of a content's parts."""

    def __init__(self) -> None:
        self.files: dict[str, VisibleFile] = {}
        self.chunks: dict[str, tuple[str, ...]] = {}
        self._targets: dict[str, VisibleFile | None] = {}

    def add(self, member: tarfile.TarInfo, digest: str = "", chunks: tuple[str, ...] = ()) -> None:
        """Apply a member, as engines unpack it over the earlier ones."""
        name, found = plain_name(member.name), _of_member(member, digest)
        before = self.files.get(name)
        if before is not None and before.kind == found.kind == "dir":
            found.xattrs = {**before.xattrs, **found.xattrs}
        self._targets.pop(name, None)
        if found.kind == "hardlink":
            target = self._targets[name] = self.files.get(found.link)
            if target is not None:  # it is the same file, which gets what this header says
                target.mode, target.uid, target.gid = found.mode, found.uid, found.gid
                target.mtime, target.xattrs = found.mtime, {**target.xattrs, **found.xattrs}
        self.files[name], self.chunks[name] = found, chunks

    def lost_links(self) -> list[str]:
        """Hard links to a file that comes later, or that a later one replaces."""
        files = self.files
        return [
            name
            for name, target in self._targets.items()
            if target is None or files.get(files[name].link) is not target
        ]


def difference(tar: VisibleFile | None, table: VisibleFile | None) -> str:
    """How a file differs: "mode 0755 in the tar, 4755 in the table"; "" if it does not."""
    if tar is None or table is None:
        return f"only in the {'tar' if table is None else 'table'}"
    for field_name, word, shown in _FIELDS:
        left, right = getattr(tar, field_name), getattr(table, field_name)
        if left != right:
            return f"{word} {shown(left)} in the tar, {shown(right)} in the table"
    if tar.xattrs != table.xattrs:
        names = tar.xattrs.keys() | table.xattrs.keys()
        wrong = sorted(n for n in names if tar.xattrs.get(n) != table.xattrs.get(n))
        return f"extended attribute {printable(wrong[0], limit=60)}"
    if abs(tar.mtime - table.mtime) > _ROUNDED_S:
        return f"time {tar.mtime} in the tar, {table.mtime} in the table"
    if table.digest and tar.digest != table.digest:
        return "content"
    return ""


_FIELDS: tuple[tuple[str, str, Callable[..., str]], ...] = (
    ("kind", "type", str),
    ("size", "size", str),
    ("link", "target", lambda text: repr(text[:80])),
    ("mode", "mode", lambda mode: f"{mode:04o}"),
    ("uid", "owner", str),
    ("gid", "group", str),
    ("device", "device", lambda pair: f"{pair[0]}:{pair[1]}"),
)


def plain_name(name: str) -> str:
    """A path below the root as every reader resolves it: without ".", and without slashes that
    mean nothing; "" is the root.
    """
    return whole_text("/".join(part for part in name.split("/") if part not in {"", "."}))


def whole_text(text: str) -> str:
    """The text with U+FFFD for each byte that is not UTF-8, as Go writes it in JSON."""
    return _SURROGATES.sub("\ufffd", text)


def _of_member(member: tarfile.TarInfo, digest: str) -> VisibleFile:
    kind = TYPES[member.type]
    link = {"hardlink": plain_name, "symlink": whole_text}.get(kind)
    return VisibleFile(
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=float(member.mtime),
        size=member.size,
        link=link(member.linkname) if link else "",
        device=(member.devmajor, member.devminor) if kind in {"char", "block"} else (0, 0),
        xattrs={
            whole_text(key.removeprefix(XATTR)): text.encode("utf-8", "surrogateescape")
            for key, text in member.pax_headers.items()
            if key.startswith(XATTR)
        },
        digest=digest,
    )
