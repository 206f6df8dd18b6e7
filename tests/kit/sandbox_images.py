"""Images made in a few lines, for what unpacks and runs them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from images.oci.model import (
    LAYER,
    LAYER_GZIP,
    Descriptor,
    Platform,
    digest_of,
    read_object,
    to_bytes,
)
from images.oci.sources import Image, ImageLayer

HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def entry(name: str, content: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a layer: a file with content, else what `type` says (a directory without)."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    info.mode = 0o755 if content is None else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    info.size = len(content or b"")
    return info, content or b""


def link(name: str, target: str, *, hard: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE if hard else tarfile.SYMTYPE, linkname=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes], packed: bool = False) -> ImageLayer:
    """A layer of these members, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return layer_of(buffer.getvalue(), packed=packed)


def layer_of(plain: bytes, *, packed: bool = False, diff_id: str | None = None) -> ImageLayer:
    """A layer of these bytes, whatever they are."""
    stored = gzip.compress(plain) if packed else plain

    def stream() -> Generator[bytes, None, None]:
        for at in range(0, len(stored), 1 << 16):
            yield stored[at : at + (1 << 16)]

    return ImageLayer(
        blob=Descriptor(
            media_type=LAYER_GZIP if packed else LAYER, digest=digest_of(stored), size=len(stored)
        ),
        diff_id=diff_id or f"sha256:{hashlib.sha256(plain).hexdigest()}",
        stream=stream,
    )


def image(
    layers: Iterable[ImageLayer], settings: Mapping[str, Any] | None = None, arch: str = HERE
) -> Image:
    """An image of layers, with what its containers start with."""
    layers = tuple(layers)
    config = {
        "architecture": arch,
        "os": "linux",
        "config": dict(settings or {}),
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]},
    }
    try:
        written = to_bytes(config)
    except UnicodeEncodeError:  # half a character can stand there by its number alone
        written = json.dumps(config).encode()
    image_id = digest_of(written)
    return Image(
        shown="an image of the test",
        digest=image_id,
        image_id=image_id,
        platform=Platform(architecture=arch),
        layers=layers,
        config=read_object(written, "the image"),
    )
