"""Whether a layout directory on this node has the image that the caller read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAYOUT = "oci:"
_MOST_BYTES = 4 << 20


def layout_has(image: str, digest: str) -> bool:
    """Whether `oci:DIRECTORY[:NAME]` names this manifest, whose bytes have this digest. What the
    manifest names by digest is checked by whatever reads it. OSError, ValueError: it is unreadable.
    """
    directory, _, name = image[len(LAYOUT) :].partition(":")
    place = Path(directory)
    rows = _manifests(json.loads(_read(place / "index.json")))
    named = [
        row
        for row in rows
        if not name or row.get("annotations", {}).get("org.opencontainers.image.ref.name") == name
    ]
    digests = {str(row.get("digest")) for row in named}
    for found in sorted(digests - {digest}):  # of several platforms
        digests |= {str(row.get("digest")) for row in _manifests(_blob(place, found))}
    return digest in digests and _blob(place, digest) is not None


def _manifests(document: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401  a stranger's JSON
    rows = document.get("manifests") if isinstance(document, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("annotations", {}), dict):
            yield row


def _blob(place: Path, digest: str) -> Any:  # noqa: ANN401  a stranger's JSON
    """A JSON blob with this digest; None: there is none."""
    kind, _, name = digest.partition(":")
    if kind != "sha256" or not name.isalnum():
        return None
    try:
        content = _read(place / "blobs" / "sha256" / name)
    except FileNotFoundError:
        return None
    return json.loads(content) if hashlib.sha256(content).hexdigest() == name else None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES)
