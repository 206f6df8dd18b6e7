"""Projects on the disk, and a base image for them: small, and written in a line."""

from __future__ import annotations

import io
import tarfile
import textwrap
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from images.oci.layout import LayoutTarget
from images.oci.model import CONFIG, MANIFEST, to_bytes
from images.oci.sources import Stream
from tests.kit.oci_images import a_stream
from tests.kit.sandbox_images import entry, link

LIBC = b"\x7fELF..GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"
BASE: Mapping[str, bytes | str] = {
    "bin": "usr/bin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "usr/bin/sh": b"",
    "usr/bin/python3.11": b"\x7fELF" + b"x" * 3_000_000 + b"\x003.40.1\x003.11.2\x00more",
    "usr/bin/python3": "python3.11",
    "usr/lib64/ld-linux-x86-64.so.2": "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": b"",
    "usr/lib/x86_64-linux-gnu/libc.so.6": LIBC,
    "usr/lib/python3.11/os.py": b"",
}


def project(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a directory, which is made; texts are dedented. Returns the directory."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, bytes) else textwrap.dedent(content).encode()
        path.write_bytes(text)
    return root


def base_layout(directory: Path) -> str:
    """A layout with a base that has Python 3.11, as --base takes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in BASE.items():
            made = (
                link(name, content)
                if isinstance(content, str)
                else entry(name, content, mode=0o755)
            )
            tar.addfile(made[0], io.BytesIO(made[1]))
    plain = buffer.getvalue()

    def stream() -> Stream:
        return a_stream(plain)

    with closing(LayoutTarget.open(directory)) as target:
        written = target.write(stream, expected=None, on_bytes=lambda _: None)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [written.unpacked.diff_id]},
        }
        described = target.write_bytes(to_bytes(config), CONFIG)
        layer = {
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": written.digest,
            "size": written.size,
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {**described.to_json(), "mediaType": CONFIG},
            "layers": [layer],
        }
        target.publish(to_bytes(manifest), MANIFEST, name="base")
    return f"oci:{directory}:base"
