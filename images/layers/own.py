"""The layers of custom files: an empty environment, the suite, and the lock.

They contain what `Dockerfile.cuda` creates by running commands: the same paths, and an interpreter
that finds the same packages. Each has a few small files, so a layer's key is its content's digest.
"""

from __future__ import annotations

import hashlib
import posixpath
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from images.layers.base_facts import BaseFacts, search_path
from images.layers.own_errors import OwnFilesError
from images.layers.tar import TarEntry, file_layer, sort_key
from images.oci.assemble import ContainerSettings
from images.oci.model import LAYER_GZIP
from images.oci.sources import Stream, Unpacked
from images.wheels.remote_file import Wheel

FORMAT = 1
"""Part of every key here: raise it when the bytes for the same files change."""

PREFIX = "opt/venv"
LIBRARY = "opt/gpu-provision/lib"
"""Where the suite is. It is not on Python's path, so no other program imports its modules."""
SUITE = f"/{LIBRARY}/verify"
"""The path that starts the suite: python3 SUITE."""
_MOST_FILE_BYTES = 16 << 20
_ACTIVATE = """\
# Puts this environment's programs first: `. /{prefix}/bin/activate`; `deactivate` undoes it.
deactivate() {{
    PATH="$_GPU_PROVISION_PATH"
    export PATH
    unset VIRTUAL_ENV _GPU_PROVISION_PATH
    unset -f deactivate
    hash -r 2>/dev/null || :
}}
_GPU_PROVISION_PATH="$PATH"
VIRTUAL_ENV=/{prefix}
PATH="/{prefix}/bin:$PATH"
export VIRTUAL_ENV PATH
unset PYTHONHOME
hash -r 2>/dev/null || :
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesLayer:
    """A layer of a few small files, all in memory."""

    media_type: ClassVar[str] = LAYER_GZIP
    title: str
    created_by: str
    entries: tuple[TarEntry, ...]
    wheels: tuple[Wheel, ...] = ()

    @property
    def key(self) -> str:
        """A digest of all that the layer's bytes depend on."""
        return key_of(
            "files",
            FORMAT,
            *(
                (one.path, one.kind, one.mode, one.target, hashlib.sha256(one.content).hexdigest())
                for one in self.entries
            ),
        )

    @property
    def about_bytes(self) -> int:
        """The size of the contents; compressed, it is less."""
        return sum(len(one.content) for one in self.entries)

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it; it is so small that `known` saves nothing."""
        del known
        return file_layer(self.entries)


def key_of(*parts: object) -> str:
    """The digest of a layer's inputs; parts are texts, numbers and tuples of them."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


def site_of(python: str) -> str:
    """The site directory of a Python: "opt/venv/lib/python3.11/site-packages"."""
    return f"{PREFIX}/lib/python{python}/site-packages"


def ordered(entries: Iterable[TarEntry]) -> tuple[TarEntry, ...]:
    """Sort entries as in a layer."""
    return tuple(sorted(entries, key=lambda one: sort_key(one.path)))


def skeleton_layer(facts: BaseFacts, *, python: str) -> FilesLayer:
    """The environment without packages, as `uv venv` creates it for the base's interpreter."""
    version = f"version_info = {facts.python_full}\n" if facts.python_full else ""
    configuration = (
        f"home = {posixpath.dirname(facts.python)}\n"
        "implementation = CPython\n"
        f"{version}"
        "include-system-site-packages = false\n"
    )
    entries = [
        TarEntry(path=f"{PREFIX}/pyvenv.cfg", content=configuration.encode()),
        TarEntry(path=f"{PREFIX}/lib64", kind="symlink", target="lib"),
        TarEntry(path=f"{PREFIX}/bin/python", kind="symlink", target=facts.python),
        *(
            TarEntry(path=f"{PREFIX}/bin/{name}", kind="symlink", target="python")
            for name in ("python3", f"python{python}")
        ),
        TarEntry(path=f"{PREFIX}/bin/activate", content=_ACTIVATE.format(prefix=PREFIX).encode()),
        TarEntry(path=site_of(python), kind="dir"),
        TarEntry(
            path="usr/local/bin/verify",
            mode=0o755,
            content=f'#!/bin/sh\nexec python3 {SUITE} "$@"\n'.encode(),
        ),
        TarEntry(path="workspace", kind="dir"),
    ]
    return FilesLayer(
        title=f"environment for Python {python}",
        created_by=f"gpu-provision: /{PREFIX} for {facts.python}",
        entries=ordered(entries),
    )


def suite_layer(directory: Path) -> FilesLayer:
    """The suite that tests an image: the package in `directory`, without byte code."""
    return FilesLayer(
        title="verify suite",
        created_by=f"gpu-provision: the suite in /{LIBRARY}/{directory.name}",
        entries=ordered(_package_entries(directory, f"{LIBRARY}/{directory.name}")),
    )


def _package_entries(directory: Path, target: str) -> list[TarEntry]:
    """Read a package. File modes in a checkout do not matter: no file in it is a program."""
    entries = []
    try:
        for path in sorted(directory.rglob("*")):
            inside = path.relative_to(directory)
            if path.suffix == ".pyc" or any(
                part == "__pycache__" or part.startswith(".") for part in inside.parts
            ):
                continue
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
                raise OwnFilesError(
                    f"{path} is not a file of the suite: only regular files of up to "
                    f"{_MOST_FILE_BYTES >> 20} MB are.",
                    fix="Reinstall gpu-provision, or remove the extra files.",
                )
            entries.append(
                TarEntry(path=f"{target}/{inside.as_posix()}", content=path.read_bytes())
            )
    except OSError as error:
        raise OwnFilesError(
            f"The suite in {directory} cannot be read: {error.strerror or error}.",
            fix="Reinstall gpu-provision.",
        ) from error
    if not any(entry.path == f"{target}/__main__.py" for entry in entries):
        raise OwnFilesError(
            f"{directory} holds no suite: its __main__.py is missing.",
            fix="Reinstall gpu-provision.",
        )
    return entries


def lock_layer(text: bytes, name: str = "pylock.toml") -> FilesLayer:
    """The lock that the image was built from, byte for byte; `name` is its file name.
    OwnFilesError: the name is not a valid file name.
    """
    if not name or "/" in name or name in {".", ".."} or "\0" in name:
        raise OwnFilesError(
            f"{name!r} cannot be the name of a lock in an image.",
            fix="Name the file pylock.toml or pylock.NAME.toml.",
        )
    return FilesLayer(
        title="lock",
        created_by=f"gpu-provision: the lock {name}",
        entries=(TarEntry(path=f"opt/gpu-provision/{name}", content=text),),
    )


def image_environment(
    base_config: Mapping[str, Any], *, nvcc_flags: str, labels: Mapping[str, str]
) -> ContainerSettings:
    """What a container starts with: the environment's programs first, and GPUs for computing.

    `base_config` is the base's configuration: its PATH is appended to ours.
    """
    return ContainerSettings(
        env={
            "PATH": f"/{PREFIX}/bin:/usr/local/cuda/bin:{search_path(base_config)}",
            "VIRTUAL_ENV": f"/{PREFIX}",
            "NVCC_APPEND_FLAGS": nvcc_flags,
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        working_dir="/workspace",
        command=("python3",),
        labels=labels,
    )
