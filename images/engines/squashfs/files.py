"""The files that a squashfs has beside the image's own: for enroot, for Apptainer, and our record.

enroot starts a squashfs with the files that its import of a Docker image writes: /etc/environment,
/etc/fstab, /etc/rc and /etc/rc.local. pyxis replaces /etc/rc.local to run a job's command without
the entrypoint, so /etc/rc must source it.
https://github.com/NVIDIA/enroot/blob/8ea147d337da60cb1c557140f3a85cdf0d620968/src/docker.sh
(docker::configure), .../doc/image-format.md
https://github.com/NVIDIA/pyxis/blob/107519944221822ea1dace4db8e7234b2eaa4cd5/pyxis_slurmstepd.c
(enroot_create_start_config)

Apptainer sources /.singularity.d/env/*.sh in the container and runs /.singularity.d/runscript; it
writes both when it converts an image. With 99-base.sh come the variables of its command line, and
the libraries of the host's driver, which --nv binds to /.singularity.d/libs.
https://github.com/apptainer/apptainer/blob/v1.4.5/internal/pkg/util/fs/files/action_script.sh
.../internal/pkg/build/sources/conveyorPacker_oci.go, 99-base.sh

The record has the image's configuration, and says which image it is: so the file alone can be
verified.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from images.engines.sandbox.unpack import MOUNT_DIRECTORIES, MOUNT_FILES
from images.inspect.tree import Attributes, Directory, ImageFile, ImageTree
from images.oci.errors import ImageUnreadableError
from images.oci.image_reader import check_platform
from images.oci.inflate import ANEW_FIX
from images.oci.model import digest_of, is_digest, read_object, to_bytes
from images.oci.sources import Image
from images.system.hashed_file import HashedFile

RECORD = "/opt/gpu-provision/image.json"
MOST_RECORD_BYTES = 4 << 20
_SCHEMA = 1
_STICKY = frozenset({"tmp", "var/tmp"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VOLUME = re.compile(r"/[^\s$\\\x00-\x1f]*")  # enroot and libmount would expand $ and \
_RUNSCRIPT = """\
#!/bin/sh
if [ $# -gt 0 ]; then
    exec {entrypoint} "$@"
else
    exec {entrypoint} {command}
fi
"""
_LIBRARIES = """\
#!/bin/sh
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
"""
_RC_LOCAL = """\
# This file is sourced by /etc/rc when the container starts.
# It can be used to manipulate the entrypoint or the command of the container.
"""
_RC = """\
{labels}
mkdir -p {directory} 2> /dev/null
cd {directory} && unset OLDPWD || exit 1

if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi

if [ $# -gt 0 ]; then
    exec {entrypoint} "$@"
else
    exec {entrypoint} {command}
fi
"""


def add_files(tree: ImageTree, image: Image) -> None:
    """Add them to an image's tree, as a layer above its own."""
    layer = len(image.layers)
    for path in MOUNT_DIRECTORIES:
        if tree.find(path) is None:
            mode = 0o1777 if path in _STICKY else 0o755
            _add_directory(tree, path, layer, mode)
    for path in MOUNT_FILES:
        if tree.find(path) is None:
            _add_file(tree, path, layer, b"")
    directory = working_directory(_settings(image.config))
    if tree.find(directory) is None:
        _add_directory(tree, directory, layer)
    for path, content in enroot_files(image.config).items():
        _add_file(tree, path, layer, content)
    for path, content in apptainer_files(image.config).items():
        _add_file(tree, path, layer, content, mode=0o755)
    _add_file(tree, RECORD, layer, write_record(image))


def enroot_files(config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files that enroot reads, from an image's configuration."""
    settings = _settings(config)
    volumes = settings.get("Volumes")
    mounts = [
        f"${{ENROOT_ROOTFS}}{path} {path} none x-create=dir,bind,rw,nosuid,nodev\n"
        for path in (volumes if isinstance(volumes, dict) else {})
        if _VOLUME.fullmatch(path) and ".." not in path.split("/")
    ]
    environment = [f"{line}\n" for line in _texts(settings.get("Env")) if "\n" not in line]
    entrypoint, command = _texts(settings.get("Entrypoint")), _texts(settings.get("Cmd"))
    script = _RC.format(
        labels="".join(_labels(settings)),
        directory=shlex.quote(working_directory(settings)),
        entrypoint=shlex.join(entrypoint),
        command=shlex.join(command or (() if entrypoint else ("/bin/sh",))),
    )
    texts = {
        "/etc/environment": "".join(environment),
        "/etc/fstab": "".join(mounts),
        "/etc/rc": script,
        "/etc/rc.local": _RC_LOCAL,
    }
    return {path: text.encode("utf-8", "surrogateescape") for path, text in texts.items()}


def apptainer_files(config: Mapping[str, Any]) -> dict[str, bytes]:
    """The scripts that Apptainer reads, from an image's configuration. As when it converts an
    image, a variable that is set already has precedence, except PATH.
    """
    settings = _settings(config)
    variables = [line.partition("=")[::2] for line in _texts(settings.get("Env"))]
    environment = "".join(
        f"export {name}={shlex.quote(value)}\n"
        if name == "PATH"
        else f'[ -n "${{{name}:-}}" ] || export {name}={shlex.quote(value)}\n'
        for name, value in variables
        if _NAME.fullmatch(name)
    )
    entrypoint, command = _texts(settings.get("Entrypoint")), _texts(settings.get("Cmd"))
    script = _RUNSCRIPT.format(
        entrypoint=shlex.join(entrypoint),
        command=shlex.join(command or (() if entrypoint else ("/bin/sh",))),
    )
    texts = {
        "/.singularity.d/env/10-docker2singularity.sh": f"#!/bin/sh\n{environment}",
        "/.singularity.d/env/99-base.sh": _LIBRARIES,
        "/.singularity.d/runscript": script,
    }
    return {path: text.encode("utf-8", "surrogateescape") for path, text in texts.items()}


def write_record(image: Image) -> bytes:
    """The record of an image."""
    return to_bytes({"schema": _SCHEMA, "digest": image.digest, "config": dict(image.config)})


def read_record(content: bytes, file: HashedFile) -> Image:
    """The image that a file is, as its record describes it, without layers: identified by the
    file's digest, since anybody who can write the file can write any record.
    ImageUnreadableError: the record is damaged.
    """
    shown = str(file.path)
    record = read_object(content, shown)
    digest, config = record.get("digest"), record.get("config")
    fits = isinstance(digest, str) and is_digest(digest) and isinstance(config, dict)
    if record.get("schema") != _SCHEMA or not fits:
        raise ImageUnreadableError(
            f"{shown} has a damaged record of its image in {RECORD}, or one of a newer version.",
            fix=f"{ANEW_FIX[:-1]}, or update gpu-provision.",
        )
    assert isinstance(digest, str)
    assert isinstance(config, dict)
    return Image(
        shown=shown,
        digest=file.digest,
        image_id=file.digest,
        platform=check_platform(config, None, shown),
        layers=(),
        config=config,
        squashfs=file,
        claims=(digest_of(to_bytes(config)), digest),
    )


def _add_directory(tree: ImageTree, path: str, layer: int, mode: int = 0o755) -> None:
    tree.add(path, Directory(layer=layer, attributes=Attributes(tarfile.DIRTYPE, mode)))


def _add_file(tree: ImageTree, path: str, layer: int, content: bytes, mode: int = 0o644) -> None:
    attributes = Attributes(tarfile.REGTYPE, mode)
    file = ImageFile(size=len(content), layer=layer, text=content, attributes=attributes)
    tree.add(path, file)


def _labels(settings: Mapping[str, Any]) -> Iterator[str]:
    """As comments, on a line each."""
    labels = settings.get("Labels")
    for name, value in labels.items() if isinstance(labels, dict) else ():
        yield f"# {name} {value}".replace("\n", " ").replace("\r", " ") + "\n"


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = config.get("config")
    return settings if isinstance(settings, dict) else {}


def _texts(found: object) -> tuple[str, ...]:
    rows = found if isinstance(found, list) else []
    return tuple(row for row in rows if isinstance(row, str) and "\0" not in row)


def working_directory(settings: Mapping[str, Any]) -> str:
    """Where an image's command starts, by the settings of its configuration."""
    found = settings.get("WorkingDir")
    if not isinstance(found, str) or "\0" in found:
        return "/"
    return posixpath.normpath(f"/{found.lstrip('/')}")
