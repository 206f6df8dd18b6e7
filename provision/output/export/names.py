"""How other tools name an image.

enroot and pyxis: `images.engines.run_arguments`, https://github.com/NVIDIA/enroot/blob/v4.1.2/doc/cmd/import.md
Apptainer: https://github.com/apptainer/apptainer/blob/v1.5.3/internal/pkg/ociimage/transport.go
"""

from __future__ import annotations

import re

from images.engines.run_arguments import enroot_source
from provision.errors import ImageNotPullableError
from provision.output.export.deployment import ImageSource

_APPTAINER = {
    "reference": "docker://",
    "engine": "docker-daemon:",
    "oci": "oci:",
    "oci-archive": "oci-archive:",
    "docker-archive": "docker-archive:",
}


def enroot_uri(image: ImageSource) -> str:
    """What `enroot import` takes. ImageNotPullableError: a layout or an archive."""
    if image.kind == "reference":
        return enroot_source(image.name)
    if image.kind == "engine":
        return f"dockerd://{image.name}"
    raise ImageNotPullableError(
        f"enroot imports images of a registry or of Docker, and {image.name} is a file or a "
        "directory.",
        fix="Push it, and name it as REGISTRY/PATH:TAG: provision build --push REGISTRY/PATH:TAG",
    )


def apptainer_uri(image: ImageSource) -> str:
    """What `apptainer build` and `exec` take."""
    return f"{_APPTAINER[image.kind]}{apptainer_from(image)}"


def apptainer_bootstrap(image: ImageSource) -> str:
    """The agent of a definition file that reads such an image."""
    return _APPTAINER[image.kind].rstrip(":/")


def apptainer_from(image: ImageSource) -> str:
    """The image as its agent names it. `docker-daemon` needs a tag."""
    name = image.name
    tagged = "@" in name or ":" in name.rpartition("/")[2]
    return f"{name}:latest" if image.kind == "engine" and not tagged else name


def squashfs_name(name: str) -> str:
    """A file name for the converted image: "registry.example+team+torch+cu128.sqsh"."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '+', name).strip('+')[-200:]}.sqsh"
