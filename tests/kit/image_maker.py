"""Makes small images in memory: files, links and whiteouts as layers, without any tool."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from images.oci.model import LAYER_GZIP, Descriptor, Platform
from images.oci.sources import Image, ImageLayer

Files = Mapping[str, bytes | str | None]
"""Path -> content; a text is a symbolic link's target, None a directory."""


def tar_of(files: Files, *, hard_links: Mapping[str, str] | None = None) -> bytes:
    """A layer's plain tar; what has no dot in its name, or ends in .so, can be started."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = 0o644 if "." in PurePosixPath(path).name else 0o755
            if content is None:
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        for path, target in (hard_links or {}).items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.type, member.linkname = tarfile.LNKTYPE, target.lstrip("/")
            tar.addfile(member)
    return buffer.getvalue()


def layer_of(tar: bytes) -> ImageLayer:
    packed = gzip.compress(tar, 1, mtime=0)

    def stream() -> Generator[bytes, None, None]:
        for at in range(0, len(packed), 50_000):
            yield packed[at : at + 50_000]

    return ImageLayer(
        blob=Descriptor(
            media_type=LAYER_GZIP,
            digest=f"sha256:{hashlib.sha256(packed).hexdigest()}",
            size=len(packed),
        ),
        diff_id=f"sha256:{hashlib.sha256(tar).hexdigest()}",
        stream=stream,
    )


def image_of(
    *layers: Files | bytes,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    architecture: str = "amd64",
) -> Image:
    """An image of these layers, each given as files or as a tar."""
    made = [layer_of(one if isinstance(one, bytes) else tar_of(one)) for one in layers]
    listed = [f"{name}={value}" for name, value in (env or {}).items()]
    return Image(
        shown="oci:somewhere",
        digest=f"sha256:{'1' * 64}",
        image_id=f"sha256:{'2' * 64}",
        platform=Platform(architecture=architecture),
        layers=tuple(made),
        config={"config": {"Env": listed, "Labels": dict(labels or {})}, "history": list(history)},
    )


def installed(
    name: str, version: str, files: Files, *, site: str, requires: Sequence[str] = ()
) -> dict[str, bytes | str | None]:
    """A Python package as pip leaves it in a site directory."""
    info = f"{name}-{version}.dist-info"
    metadata = "\n".join(
        ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        + [f"Requires-Dist: {one}" for one in requires]
    )
    record = "".join(
        f"{path},sha256=x,{len(content)}\n"
        for path, content in files.items()
        if isinstance(content, bytes)
    )
    return {
        **{f"{site}/{path}": content for path, content in files.items()},
        f"{site}/{info}/METADATA": metadata.encode() + b"\n\n",
        f"{site}/{info}/RECORD": record.encode() + f"{info}/RECORD,,\n".encode(),
    }
