"""A place of podman's own, and a small Debian image for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from images.bootstrap import bootstrap
from images.oci.archive_reading import open_archive
from images.oci.sources import Image, ImageLayer
from tests import need
from tests.kit.sandbox_images import image

EPOCH = 1_700_000_000
CONF = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def debian_base(settings: Mapping[str, Any], *more: ImageLayer) -> Image:
    """A Debian base with Python 3.11, made once for all lanes; `more` are layers on it."""
    store = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-provision"
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    made = bootstrap("bookworm", python="3.11", arch=arch, store=store, epoch=EPOCH)
    return image((*open_archive(made.archive).layers, *more), settings)


@contextlib.contextmanager
def podman_storage(place: Path) -> Iterator[dict[str, str]]:
    """The variables with which podman keeps everything in `place`, so that nothing stays on the
    machine.
    """
    need.root()
    program = need.program("podman")
    need.program("runc")
    (place / "containers.conf").write_text(CONF)
    (place / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{place}/root"\nrunroot = "{place}/run"\n'
    )
    env = {
        "CONTAINERS_CONF": str(place / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(place / "storage.conf"),
    }
    try:
        yield env
    finally:
        subprocess.run(
            [program, "rmi", "--all", "--force"],
            check=False,
            capture_output=True,
            env={**os.environ, **env},
        )
