"""Writes the image: its configuration, and an archive with it and the only layer."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timezone
from pathlib import Path

from images.bootstrap.layer import Layer
from images.oci.archive import ArchiveTarget
from images.oci.blobfiles import read_pieces
from images.oci.model import CONFIG, LAYER_GZIP, MANIFEST, Descriptor, to_bytes
from images.oci.sources import Stream, Unpacked

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def canonical_json(document: object) -> bytes:
    """Serialize a document so that equal ones have equal bytes, and so equal digests."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def image_config(*, suite: str, python: str, arch: str, diff_id: str, epoch: int) -> bytes:
    """Make the configuration of the image; its digest is the image ID."""
    created = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return canonical_json(
        {
            "architecture": arch,
            "os": "linux",
            "created": created,
            "config": {
                "Cmd": ["bash"],
                "Env": [f"PATH={_PATH}", "LANG=C.UTF-8"],
                "Labels": {"gpu-provision.base": f"{suite}-py{python}"},
            },
            "history": [
                {"created": created, "created_by": f"gpu-provision bootstrap {suite} {arch}"}
            ],
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }
    )


def write_archive(target: Path, *, config: bytes, layer: Layer, reference: str) -> str:
    """Write the archive that engines load and OCI tools read, and return the image ID."""
    blob = Descriptor(media_type=LAYER_GZIP, digest=layer.digest, size=layer.size)

    def stream() -> Stream:
        yield from read_pieces(layer.path.open("rb"))
        return Unpacked(diff_id="", size=0)  # the configuration has it

    with contextlib.closing(ArchiveTarget.open(target)) as archive:
        archive.write(stream, expected=blob, on_bytes=lambda _: None)
        layer.path.unlink()
        described = archive.write_bytes(config, CONFIG)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described.to_json(),
            "layers": [blob.to_json()],
        }
        archive.publish(to_bytes(manifest), MANIFEST, name=reference)
    return described.digest
