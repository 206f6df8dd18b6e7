"""A place of podman's own, and a small Debian image for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from images.oci.archive_reader import open_archive
from images.oci.sources import Image, ImageLayer
from tests import need
from tests.engines.lab import debian
from tests.kit.sandbox_images import image

CONF = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def debian_base(settings: Mapping[str, Any], *more: ImageLayer) -> Image:
    """The Debian base of all tests with these settings; `more` are layers on it."""
    return image((*open_archive(debian().archive).layers, *more), settings)


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
