"""Small images, and targets' contents, for tests."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from images.oci.model import (
    CONFIG,
    LAYER,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    Platform,
    digest_of,
    to_bytes,
)
from images.oci.sources import ImageLayer, Stream, Target, Unpacked

AMD64 = Platform(architecture="amd64")


def a_tar(files: Mapping[str, bytes]) -> bytes:
    """A plain tar of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def in_members(plain: bytes, count: int = 3) -> bytes:
    """The gzip of some bytes, in several members."""
    size = len(plain) // count + 1
    return b"".join(
        gzip.compress(plain[at : at + size], mtime=0) for at in range(0, len(plain), size)
    )


TARS = (a_tar({"bin/tool": b"tool" * 5000}), a_tar({"etc/settings": b"on\n"}))


def a_stream(plain: bytes, compressed: bytes | None = None) -> Stream:
    """A layer, as a build gives it to a target."""
    packed = in_members(plain) if compressed is None else compressed
    half = len(packed) // 2
    yield packed[:half]
    yield packed[half:]
    return Unpacked(diff_id=digest_of(plain), size=len(plain))


def a_config(tars: Sequence[bytes] = TARS, **changes: Any) -> bytes:
    return to_bytes(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Cmd": ["/bin/tool"]},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
            "history": [{"created_by": "a test"} for _ in tars],
            **changes,
        }
    )


def a_manifest(config: Descriptor, layers: Sequence[Descriptor], **changes: Any) -> bytes:
    return to_bytes(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.to_json(),
            "layers": [layer.to_json() for layer in layers],
            **changes,
        }
    )


def write_image(target: Target, tars: Sequence[bytes] = TARS, **config: Any) -> bytes:
    """Write an image's blobs and give its manifest, which is still to be published."""
    layers = [
        target.write(lambda tar=tar: a_stream(tar), expected=None, on_bytes=lambda _: None)  # type: ignore[misc]
        for tar in tars
    ]
    return a_manifest(
        target.write_bytes(a_config(tars, **config), CONFIG),
        [Descriptor(media_type=LAYER_GZIP, digest=one.digest, size=one.size) for one in layers],
    )


def a_layer(packed: bytes, plain: bytes, *, pieces: int = 1000) -> ImageLayer:
    """A layer of an image that is there, whose bytes come in small pieces."""

    def stream() -> Generator[bytes, None, None]:
        for at in range(0, len(packed), pieces):
            yield packed[at : at + pieces]

    return ImageLayer(
        blob=Descriptor(media_type=LAYER, digest=digest_of(packed), size=len(packed)),
        diff_id=digest_of(plain),
        stream=stream,
    )
