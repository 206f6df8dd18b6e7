"""The rows of a table of contents, which anybody may have written, as typed values.

stargz-snapshotter and Podman read the same rows. What two readers could understand differently is
refused: a key twice or in another case (Go ignores the case), a file twice, an impossible number.
https://github.com/containerd/stargz-snapshotter/blob/main/estargz/types.go
https://github.com/containers/storage/blob/main/pkg/chunked/internal/minimal/compression.go
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from images.errors import Failure
from images.layers import tar
from images.layers.lazy.table import TYPES, VERSION
from images.layers.lazy.visible_files import VisibleFile, plain_name, whole_text
from images.oci.errors import ImageUnreadableError
from images.oci.model import is_digest

MOST_ROWS = 400_000
_MOST_NUMBER = (1 << 53) - 1
_MOST_ID = (1 << 32) - 1  # readers cut larger owners and devices
_MOST_TEXT = 4096
_KINDS = frozenset(TYPES.values())
_LINKS = frozenset({"symlink", "hardlink"})
_DEVICES = frozenset({"char", "block"})
_NUMBERS = {
    **dict.fromkeys(("size", "mode", "offset", "innerOffset", "endOffset"), _MOST_NUMBER),
    **dict.fromkeys(("version", "chunkOffset", "chunkSize"), _MOST_NUMBER),
    **dict.fromkeys(("uid", "gid", "devMajor", "devMinor"), _MOST_ID),
}
"""The keys with numbers, and the largest of each."""
_TEXTS = frozenset(
    {"name", "type", "modtime", "linkName", "userName", "groupName", "digest", "chunkDigest"}
    | {"chunkType", "accesstime", "changetime"}
)
_KEYS = frozenset({"entries", "xattrs", *_NUMBERS, *_TEXTS})
_FOLDED = frozenset(key.casefold() for key in _KEYS)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NO_TIME = datetime(1, 1, 1, tzinfo=timezone.utc)  # Go's zero value

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """`size` bytes of a file's content: compressed from `offset` on, behind `inner` other bytes.
    `is_zeros`: Podman writes zeros instead of reading them.
    """

    offset: int
    size: int
    digest: str
    inner: int = 0
    is_zeros: bool = False


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, and its content's parts in order."""

    seen: VisibleFile
    chunks: tuple[ChunkPlace, ...] = ()


def read_rows(text: bytes, end: int) -> dict[str, TableFile]:
    """The files of a table, by name ("" is the root), for a blob whose contents end at `end`.
    ImageUnreadableError: the table is invalid, or two readers could understand it differently.
    """
    if text.count(b"{") > MOST_ROWS or text.count(b"[") > MOST_ROWS:
        raise refused(f"it has more than {MOST_ROWS} rows")
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise refused("it is not JSON") from error
    if not isinstance(document, dict) or "entries" not in document:
        raise refused("it has no rows")
    rows = [] if document["entries"] is None else document["entries"]
    if not isinstance(rows, list) or _number(document, "version") != VERSION:
        raise refused("it has no rows, or is of an unknown version")
    grouped = _grouped(rows)
    _check_places((row for group in grouped.values() for row in group), end)
    files = {name: _file(name, group) for name, group in grouped.items()}
    for name, file in files.items():
        _check_tree(files, name, file.seen)
    return files


def refused(why: str) -> Failure:
    """The error for a table that cannot be used."""
    return ImageUnreadableError(
        f"The layer's table of contents cannot be used: {why}.",
        fix="Pull the whole layer, or build the image again.",
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise refused("a row has a key twice")
    for key in found.keys() - _KEYS:
        if key.casefold() in _FOLDED:
            raise refused(f"a row has the key {key[:40]!r}")
    return found


def _grouped(rows: Iterable[object]) -> dict[str, list[Row]]:
    """The rows of each file: its own, and those of its further chunks, which follow it."""
    found: dict[str, list[Row]] = {}
    last = ""
    for row in rows:
        if not isinstance(row, dict):
            raise refused("a row is not an object")
        _check_types(row)
        kind = _text(row, "type")
        if kind == "chunk":
            if last not in found or found[last][0]["type"] != "reg":
                raise refused("a chunk follows no file")
            found[last].append(row)
            continue
        if kind not in _KINDS:
            raise refused(f"a row is of the unknown kind {kind[:40]!r}")
        last = _name(row, "name")
        if last in found and not kind == found[last][0]["type"] == "dir":
            raise refused(f"it has {last[:200]!r} twice")
        found[last] = [row]
    return found


def _check_types(row: Row) -> None:
    """Every key, used or not: Go's readers refuse a table with one of another type."""
    for key in row:
        if key in _NUMBERS:
            _number(row, key)
        elif key in _TEXTS:
            _text(row, key)
    _xattrs(row)


def _name(row: Row, key: str) -> str:
    name = _text(row, key)
    if not name or "\0" in name or ".." in name.split("/"):
        raise refused(f"a row has the {key} {name[:200]!r}")
    return plain_name(name)


def _check_places(rows: Iterable[Row], end: int) -> None:
    seen: set[tuple[int, int]] = set()
    for row in rows:
        if row["type"] == "chunk" or (row["type"] == "reg" and row.get("size")):
            place = _number(row, "offset"), _number(row, "innerOffset")
            if place in seen or place[0] >= end:
                raise refused(f"a chunk is at {place[0]}, as another or outside of the layer")
            seen.add(place)


def _check_tree(files: Mapping[str, TableFile], name: str, seen: VisibleFile) -> None:
    if not name and seen.kind != "dir":
        raise refused("its root is not a directory")
    if any(one in files and files[one].seen.kind != "dir" for one in tar.parents(name)):
        raise refused(f"{name[:200]!r} is below a file")
    target = files.get(seen.link)
    if seen.kind == "hardlink" and (target is None or target.seen.kind in {"dir", "hardlink"}):
        raise refused(f"{name[:200]!r} links to {seen.link[:200]!r}, which is not a file")


def _file(name: str, rows: Sequence[Row]) -> TableFile:
    row = rows[0]
    kind = _text(row, "type")
    link = _name(row, "linkName") if kind == "hardlink" else whole_text(_text(row, "linkName"))
    if kind == "symlink" and not link:
        raise refused(f"{name[:200]!r} is a link to nothing")
    size = _number(row, "size")
    device = _number(row, "devMajor"), _number(row, "devMinor")
    seen = VisibleFile(
        kind=kind,
        mode=_number(row, "mode") & 0o7777,
        uid=_number(row, "uid"),
        gid=_number(row, "gid"),
        mtime=_time(row),
        size=size if kind == "reg" else 0,
        link=link if kind in _LINKS else "",
        device=device if kind in _DEVICES else (0, 0),
        xattrs=_xattrs(row),
        digest=_digest(row, "digest"),
    )
    return TableFile(seen, _chunks(name, seen, rows))


def _chunks(name: str, seen: VisibleFile, rows: Sequence[Row]) -> tuple[ChunkPlace, ...]:
    """The parts of a content; each has a digest, of its own or of the whole file."""
    chunks = []
    at = 0
    for row in rows if seen.size else ():
        begin = _number(row, "chunkOffset")
        length = _number(row, "chunkSize") or seen.size - begin
        if begin != at or not 0 < length <= seen.size - at:
            raise refused(f"the chunks of {name[:200]!r} do not follow each other")
        digest = _digest(row, "chunkDigest") or (seen.digest if len(rows) == 1 else "")
        if not digest:
            raise refused(f"a chunk of {name[:200]!r} has no digest")
        chunks.append(
            ChunkPlace(
                offset=_number(row, "offset"),
                size=length,
                digest=digest,
                inner=_number(row, "innerOffset"),
                is_zeros=_is_zeros(row),
            )
        )
        at += length
    if at != seen.size or (not seen.size and len(rows) > 1):
        raise refused(f"the chunks of {name[:200]!r} have {at} bytes, and it has {seen.size}")
    return tuple(chunks)


def _is_zeros(row: Row) -> bool:
    kind = _text(row, "chunkType")
    if kind not in {"", "zeros"}:
        raise refused(f"a chunk is of the unknown kind {kind[:40]!r}")
    return kind == "zeros"


def _number(row: Row, key: str) -> int:
    """A number from 0 on; null is 0, as for Go."""
    found, most = row.get(key), _NUMBERS[key]
    if found is None:
        return 0
    if type(found) is not int or not 0 <= found <= most:
        name = str(row.get("name"))[:200]
        raise refused(f"{name!r} has {key} {found!r:.40}, and at most {most} is possible")
    return found


def _text(row: Row, key: str) -> str:
    """A text; null is "", as for Go."""
    found = row.get(key)
    if found is None:
        return ""
    if not isinstance(found, str) or len(found) > _MOST_TEXT:
        name = str(row.get("name"))[:200]
        raise refused(f"{name!r} has {key} {str(found)[:40]!r}, which is not a short text")
    return found


def _digest(row: Row, key: str) -> str:
    found = _text(row, key)
    if found and not is_digest(found):
        raise refused(f"{str(row.get('name'))[:200]!r} has {key} {found[:40]!r}")
    return found


def _time(row: Row) -> float:
    """Seconds since 1970; no time is 0, as in a tar."""
    text = _text(row, "modtime")
    if not text:
        return 0.0
    try:
        parts = _TIME.fullmatch(text)
        if parts is None:
            raise ValueError(text)  # noqa: TRY301  as those of datetime
        when = datetime.fromisoformat(f"{parts[1]}+00:00")
    except ValueError as error:
        raise refused(f"{str(row.get('name'))[:200]!r} has modtime {text[:40]!r}") from error
    if when == _NO_TIME:
        return 0.0
    offset = timedelta(hours=int(parts[4] or 0), minutes=int(parts[5] or 0))
    seconds = (when - _EPOCH).total_seconds() + float(parts[2] or 0)
    return seconds + offset.total_seconds() * (1 if parts[3] == "-" else -1)


def _xattrs(row: Row) -> dict[str, bytes]:
    found = row.get("xattrs")
    try:
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise TypeError(found)  # noqa: TRY301
        return {
            whole_text(key): b"" if value is None else base64.b64decode(value, validate=True)
            for key, value in found.items()
        }
    except (TypeError, ValueError) as error:
        name = str(row.get("name"))[:200]
        raise refused(f"the extended attributes of {name!r} are not in base64") from error
