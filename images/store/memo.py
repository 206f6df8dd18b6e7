"""Memos: small cached results in JSON files with a checksum.

They save work and are never required, so an unreadable one counts as missing. They are claims of
this machine: the code that uses one checks it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from images.oci.model import LAYER, LAYER_GZIP, LAYER_ZSTD, TABLE_ANNOTATIONS, is_digest
from images.oci.sources import KnownLayer, Unpacked

MOST_BYTES = 16 << 20
_NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,39}")
_LAYERS = frozenset({LAYER, LAYER_GZIP, LAYER_ZSTD})


def memo_path(directory: Path, namespace: str, key: str) -> Path:
    """The path of a memo: the key is hashed, as it may be any text and a file name may not."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise ValueError(namespace)
    return directory / namespace / f"{_name(key)}.json"


def write_memo(path: Path, temporary: Path, key: str, value: Mapping[str, Any]) -> None:
    """Write a memo atomically; `temporary` is a directory on the same disk.

    It is not synced: the checksum shows one that a power cut truncated.
    """
    document = {"key": key, "value": value, "sha256": _checksum(key, value)}
    written = temporary / f"memo-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(document, file, sort_keys=True)
        written.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            written.unlink()
        raise


def read_memo(path: Path, key: str | None = None) -> dict[str, Any] | None:
    """Return a memo's value; None if it is damaged, missing or, with a key, for another one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            document = json.loads(file.read(MOST_BYTES))
        found, value = document["key"], document["value"]
        right = document["sha256"] == _checksum(found, value) and isinstance(value, dict)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not right or (key is not None and found != key):
        return None
    if _name(str(found)) != path.stem:
        return None
    return dict(value)


def known_to_json(known: KnownLayer) -> dict[str, Any]:
    """Convert the facts about a layer to JSON."""
    return {
        "digest": known.digest,
        "size": known.size,
        "media_type": known.media_type,
        "diff_id": known.unpacked.diff_id,
        "unpacked_size": known.unpacked.size,
        **({"annotations": dict(known.unpacked.annotations)} if known.unpacked.annotations else {}),
    }


def known_from_json(found: Mapping[str, Any]) -> KnownLayer | None:
    """Read the facts about a layer from JSON; None if they are invalid."""
    digest, diff_id = found.get("digest"), found.get("diff_id")
    size, unpacked_size = found.get("size"), found.get("unpacked_size")
    media_type = found.get("media_type")
    if not isinstance(digest, str) or not isinstance(diff_id, str):
        return None
    if not is_digest(digest) or not is_digest(diff_id):
        return None
    if not isinstance(size, int) or not isinstance(unpacked_size, int):
        return None
    if not all(type(one) is int and 0 < one < 1 << 53 for one in (size, unpacked_size)):
        return None
    if not isinstance(media_type, str) or media_type not in _LAYERS:
        return None
    annotations = found.get("annotations", {})
    if not isinstance(annotations, dict) or annotations.keys() - TABLE_ANNOTATIONS:
        return None
    if not all(isinstance(text, str) for text in annotations.values()):
        return None
    unpacked = Unpacked(diff_id=diff_id, size=unpacked_size, annotations=annotations)
    return KnownLayer(digest=digest, size=size, unpacked=unpacked, media_type=media_type)


def _name(key: str) -> str:
    # a path may contain bytes that are not text
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _checksum(key: object, value: object) -> str:
    text = json.dumps([key, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
