"""What the store caches between bases: the chosen packages, and the unpacked ones.

A base is rebuilt every week, and most of its packages are then the same. Choosing reads fifty
megabytes of indexes, unpacking decompresses and compresses hundreds; the cache avoids doing this
twice. Cached data is checked against its digest, and unreadable data is computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from images.bootstrap.deb import ControlFile
from images.bootstrap.index import SuitePackage
from images.bootstrap.unpack import UnpackedPackage
from images.layers.tar import TarEntry
from images.store.store import Store

_CHOSEN, _UNPACKED = "debian-chosen", "debian-unpacked"
_LENGTH_BYTES = 8


class BaseCache:
    """The cache for bases with one layer format (`key`: everything that determines the format)."""

    def __init__(self, store: Store, *, key: str) -> None:
        self._store = store
        self._key = key

    def chosen(self, request: str) -> tuple[SuitePackage, ...] | None:
        """Return the packages that were chosen for a request, or None."""
        found = self._store.facts(_CHOSEN, request)
        try:
            return tuple(SuitePackage(**row) for row in found["packages"]) if found else None
        except (KeyError, TypeError):
            return None

    def remember_chosen(self, request: str, packages: Iterable[SuitePackage]) -> None:
        """Store the packages that were chosen for a request."""
        self._store.remember_facts(_CHOSEN, request, {"packages": [asdict(p) for p in packages]})

    def unpacked(self, packages: Sequence[SuitePackage]) -> dict[str, UnpackedPackage]:
        """Return the packages that were unpacked before, by name."""
        places: dict[str, list[tuple[SuitePackage, int, int]]] = {}
        for package in packages:
            found = self._store.facts(_UNPACKED, self._key + package.sha256)
            if found is not None:
                place = (package, int(found["begin"]), int(found["end"]))
                places.setdefault(str(found["blob"]), []).append(place)
        known: dict[str, UnpackedPackage] = {}
        for blob, parts in places.items():
            path = self._store.blob(blob, check=True)
            content = memoryview(path.read_bytes() if path else b"")
            for package, begin, end in parts:
                if path is not None:
                    known[package.name] = _read(content[begin:end], package)
        return known

    def remember_unpacked(self, parts: Sequence[UnpackedPackage]) -> None:
        """Store unpacked packages, in one file."""
        if not parts:
            return
        pieces = [_written(part) for part in parts]
        digest = f"sha256:{hashlib.sha256(b''.join(pieces)).hexdigest()}"
        self._store.add("blob", digest, iter(pieces))
        at = 0
        for part, piece in zip(parts, pieces, strict=True):
            place = {"blob": digest, "begin": at, "end": at + len(piece)}
            at += len(piece)
            self._store.remember_facts(_UNPACKED, self._key + part.package.sha256, place)


def _written(part: UnpackedPackage) -> bytes:
    """Serialize a part: the length of its description, the description, its compressed tar."""
    described = {
        "control": {name: [one.mode, _text(one.content)] for name, one in part.control.items()},
        "listed": part.listed,
        "directories": [[one.path, one.mode, one.owner, one.mtime] for one in part.directories],
        "files": sorted(part.files),
        "links": dict(part.links),
        "texts": {path: _text(content) for path, content in part.texts.items()},
        "sonames": dict(part.sonames),
        "digests": dict(part.digests),
    }
    head = json.dumps(described, sort_keys=True).encode()
    return len(head).to_bytes(_LENGTH_BYTES, "big") + head + part.packed


def _read(piece: memoryview, package: SuitePackage) -> UnpackedPackage:
    length = int.from_bytes(piece[:_LENGTH_BYTES], "big")
    end = _LENGTH_BYTES + length
    found: Mapping[str, Any] = json.loads(bytes(piece[_LENGTH_BYTES:end]))
    return UnpackedPackage(
        package=package,
        control={
            name: ControlFile(mode, _bytes(text)) for name, (mode, text) in found["control"].items()
        },
        packed=bytes(piece[end:]),
        listed=tuple(found["listed"]),
        directories=tuple(
            TarEntry(path=path, kind="dir", mode=mode, owner=(owner[0], owner[1]), mtime=mtime)
            for path, mode, owner, mtime in found["directories"]
        ),
        files=frozenset(found["files"]),
        links=found["links"],
        texts={path: _bytes(text) for path, text in found["texts"].items()},
        sonames=found["sonames"],
        digests=found["digests"],
    )


def _text(content: bytes) -> str:
    return content.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
