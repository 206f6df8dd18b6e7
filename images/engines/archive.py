"""Streams an image as the archive that engines load, without writing it to disk.

The format is that of `docker save`, with the layers as they are stored (compressed); engines have
always accepted that.
"""

from __future__ import annotations

import io
import json
import secrets
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from images.oci.model import digest_of, to_bytes
from images.oci.sources import Image

Chain = tuple[str, ...]

_RECORD = 10240
_HOLDER = "gpu-provision-in-use"


def new_holder() -> str:
    """A tag with which one run keeps an image that it loaded: others that use the image add their
    own, so that the engine deletes it with the last one.
    """
    return f"{_HOLDER}:{secrets.token_hex(8)}"


def is_holder(name: str) -> bool:
    """Whether a tag is one of these; podman writes "localhost/" in front of it."""
    return name.removeprefix("localhost/").startswith(f"{_HOLDER}:")


def files_archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of small files for a container, which any of its users may read."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def engine_image_id(image: Image) -> str:
    """The ID that the image will have in an engine.

    It is the image's ID if its configuration was serialized as we do it. Other tools' bytes are not
    preserved, and their images get another ID.
    """
    return digest_of(to_bytes(image.config))


def engine_archive(
    image: Image,
    on_bytes: Callable[[int], None],
    have: Collection[Chain] = (),
    *,
    tag: str | None = None,
) -> Iterator[bytes]:
    """Yield the archive in pieces; `on_bytes` is called with how many more layer bytes are done.
    The loaded image gets `tag`.

    `have`: the chains of layers (diffIDs from the base on) that the engine has. It does not look
    for those in an archive, so they are omitted.
    """
    config = to_bytes(image.config)
    names = {layer.diff_id: f"{layer.blob.hex}.tar" for layer in image.layers}
    diff_ids = tuple(layer.diff_id for layer in image.layers)
    about: list[dict[str, Any]] = [
        {
            "Config": f"{digest_of(config).removeprefix('sha256:')}.json",
            "RepoTags": None if tag is None else [tag],
            "Layers": [names[diff_id] for diff_id in diff_ids],
        }
    ]
    yield from _file(about[0]["Config"], config)
    yield from _file("manifest.json", json.dumps(about).encode())
    sent: set[str] = set()
    for end, layer in enumerate(image.layers, 1):
        if diff_ids[:end] in have:
            on_bytes(layer.blob.size)
            continue
        if layer.blob.digest in sent:
            continue
        sent.add(layer.blob.digest)
        yield _header(names[layer.diff_id], layer.blob.size)
        for piece in layer.stream():
            yield piece
            on_bytes(len(piece))
        yield bytes(-layer.blob.size % tarfile.BLOCKSIZE)
    yield bytes(_RECORD)


def empty_archive(tag: str) -> bytes:
    """An image without layers: loading it moves `tag` to it, away from the image that has it."""
    config: dict[str, Any] = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    about = [{"Config": "config.json", "RepoTags": [tag], "Layers": []}]
    files = (("config.json", to_bytes(config)), ("manifest.json", json.dumps(about).encode()))
    pieces = [piece for name, content in files for piece in _file(name, content)]
    return b"".join([*pieces, bytes(_RECORD)])


def _file(name: str, content: bytes) -> Iterator[bytes]:
    yield _header(name, len(content))
    yield content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)
