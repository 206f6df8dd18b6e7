"""Writes the image: its configuration, and the docker-archive around the one layer."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from datetime import datetime, timezone
from pathlib import Path

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def canonical_json(document: object) -> bytes:
    """Write a document such that equal ones have equal bytes, and so equal digests."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def image_config(*, suite: str, python: str, arch: str, diff_id: str, epoch: int) -> bytes:
    """Write the configuration of the image; its digest is the image id."""
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


def write_archive(target: Path, *, config: bytes, layer: Path, diff_id: str, reference: str) -> str:
    """Write what `docker save` would give for this image, and return the image id."""
    image_id = hashlib.sha256(config).hexdigest()
    layer_name = f"{diff_id.partition(':')[2]}.tar"
    manifest = canonical_json(
        [{"Config": f"{image_id}.json", "Layers": [layer_name], "RepoTags": [reference]}]
    )

    def member(name: str, size: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        return info

    with (
        target.open("wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in (("manifest.json", manifest), (f"{image_id}.json", config)):
            archive.addfile(member(name, len(content)), io.BytesIO(content))
        with layer.open("rb") as data:
            archive.addfile(member(layer_name, layer.stat().st_size), data)
    return f"sha256:{image_id}"
