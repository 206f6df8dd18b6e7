"""Links to the files of NVIDIA's wheels, and a loader's cache, without `ln` and `ldconfig`.

Two kinds of images need it. If the wheels have a compiler, it must be in the usual place
(/usr/local/cuda), with the names that a linker looks for. TensorFlow looks for NVIDIA's libraries
in a list of folders of its own, which has lacked some; the loader's cache, the last place that is
searched, has them all.

The names of a lock's wheels decide whether it needs this layer; the wheels' directories list the
files. Programs load a library by its file name: NVIDIA names them so.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from images.layers.base_facts import BaseFacts, directories_of
from images.layers.install import InstalledFile, InstallLocation, file_name, plan
from images.layers.own import PREFIX, key_of, ordered
from images.layers.tar import TarEntry, file_layer
from images.layers.wheel_file import WheelFile
from images.oci.model import LAYER_GZIP
from images.oci.sources import LayerSource, Stream, Unpacked
from images.system import ldcache
from images.wheels.directory import Member
from images.wheels.remote_file import Wheel

FORMAT = 1
"""Part of the key: raise it when the bytes for the same wheels and base change."""

_CONFIGURATION = "/etc/ld.so.conf.d/gpu-provision.conf"
_TENSORFLOW = "/etc/ld.so.conf.d/gpu-provision-tensorflow.conf"
_LIBRARY = re.compile(r"(lib|ld-)[^/]*\.so(\.[^/]+)?")
_VERSIONED = re.compile(r"(.*)\.so\..+")
_COMPILER = re.compile(r"nvidia-cuda-nvcc(-cu\d+)?")
_NVCC = re.compile(r"nvidia/cu[^/]*/bin/nvcc")
_FRAMEWORK = "tensorflow"


def toolkit_layers(
    wheels: Iterable[Wheel],
    *,
    facts: BaseFacts,
    arch: str,
    site: str,
    fetch: Callable[[Wheel], Path],
) -> tuple[LayerSource, ...]:
    """The layer of links, if these wheels need one; nothing is fetched for that.

    `arch` is the machine ("x86_64"), `site` the site directory, without a leading slash.
    """
    everything = tuple(sorted(wheels, key=lambda wheel: (wheel.name, wheel.version)))
    theirs = tuple(wheel for wheel in everything if wheel.name.startswith("nvidia-"))
    has_compiler = any(_COMPILER.fullmatch(wheel.name) for wheel in theirs)
    has_framework = any(wheel.name == _FRAMEWORK for wheel in everything)
    if not theirs or not (has_compiler or has_framework):
        return ()
    return (
        ToolkitLayer(
            wheels=theirs, facts=facts, arch=arch, site=site, all_directories=has_framework,
            fetch=fetch,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitLayer:
    """The layer that lets linkers and the loader find the libraries of NVIDIA's wheels.

    `all_directories`: all of their library directories, not only the toolkit's.
    """

    media_type: ClassVar[str] = LAYER_GZIP
    wheels: tuple[Wheel, ...]
    facts: BaseFacts
    arch: str
    site: str
    all_directories: bool
    fetch: Callable[[Wheel], Path] = field(repr=False)

    @property
    def key(self) -> str:
        return key_of(
            "toolkit",
            FORMAT,
            self.site,
            self.arch,
            self.all_directories,
            self.facts.cuda,
            hashlib.sha256(self.facts.ld_cache or b"").hexdigest(),
            tuple(sorted(self.facts.ld_conf.items())),
            tuple(wheel.sha256 for wheel in self.wheels),
        )

    @property
    def title(self) -> str:
        return "links to NVIDIA's libraries"

    @property
    def created_by(self) -> str:
        return "gpu-provision: NVIDIA's libraries in the loader's cache, and links to its compiler"

    @property
    def about_bytes(self) -> int:
        """Twice the base's cache, which is larger than all the links."""
        return 2 * len(self.facts.ld_cache or b"")

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it; it is so small that `known` saves nothing."""
        del known
        entries = toolkit_entries(
            self._files(), facts=self.facts, arch=self.arch, site=self.site,
            all_directories=self.all_directories,
        )  # fmt: skip
        return (yield from file_layer(entries))

    def _files(self) -> tuple[ToolkitFile, ...]:
        place = InstallLocation(site=self.site, prefix=PREFIX, interpreter=f"/{PREFIX}/bin/python")
        found: dict[str, ToolkitFile] = {}
        for locked in self.wheels:
            with WheelFile(self.fetch(locked), shown=file_name(locked)) as wheel:
                files = plan(locked, wheel, place, exclude_unneeded=False)
                for path, file in files.items():
                    if path.startswith(f"{self.site}/nvidia/"):
                        found[path] = ToolkitFile(
                            path=path, runs=bool(file.mode & 0o111), is_library=_is_library(file)
                        )
        return tuple(found[path] for path in sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitFile:
    """A file from NVIDIA's wheels in the image; `path` without a leading slash."""

    path: str
    runs: bool = False
    is_library: bool = False


def _is_library(file: InstalledFile) -> bool:
    """Whether the loader can load it; linker scripts have such names, too."""
    if not _LIBRARY.fullmatch(posixpath.basename(file.path)):
        return False
    part = file.parts[0] if file.parts else b""
    return isinstance(part, Member) and file.wheel.starts_with(part, b"\x7fELF")


def toolkit_entries(
    files: Sequence[ToolkitFile], *, facts: BaseFacts, arch: str, site: str, all_directories: bool
) -> tuple[TarEntry, ...]:
    """Make the links, configuration and cache for NVIDIA's files."""
    toolkit = _toolkit(files, site)
    configuration = dict(facts.ld_conf)
    entries: list[TarEntry] = []
    if toolkit:
        entries += _links(files, toolkit)
        if not facts.cuda:
            entries.append(TarEntry(path="usr/local/cuda", kind="symlink", target=f"/{toolkit}"))
        configuration[_CONFIGURATION] = f"/{toolkit}/lib\n"
    if all_directories:
        inside = re.compile(re.escape(f"{site}/nvidia/") + r"[^/]+/lib")
        directories = sorted(
            {parent for file in files for parent in _parents(file.path) if inside.fullmatch(parent)}
        )
        configuration[_TENSORFLOW] = "".join(f"/{directory}\n" for directory in directories)
    added = {path: text for path, text in configuration.items() if path not in facts.ld_conf}
    covered = {line for text in added.values() for line in text.splitlines()}
    libraries = [
        f"/{file.path}"
        for file in files
        if file.is_library and f"/{posixpath.dirname(file.path)}" in covered
    ]
    entries += [TarEntry(path=path[1:], content=text.encode()) for path, text in added.items()]
    if added:
        cache = ldcache.with_libraries(
            facts.ld_cache, libraries, arch=arch, directories=tuple(directories_of(configuration))
        )
        entries.append(TarEntry(path="etc/ld.so.cache", content=cache))
    return ordered(entries)


def _toolkit(files: Iterable[ToolkitFile], site: str) -> str:
    """Find the directory of the compiler's toolkit; "" if there is none."""
    compilers = [
        file.path for file in files if file.runs and _NVCC.fullmatch(file.path[len(site) + 1 :])
    ]
    return posixpath.dirname(posixpath.dirname(min(compilers))) if compilers else ""


def _links(files: Iterable[ToolkitFile], toolkit: str) -> list[TarEntry]:
    """Link the names that a linker looks for ("libcudart.so") to the first file of that name."""
    paths = {file.path for file in files}
    entries = {}
    if not any(path.startswith(f"{toolkit}/lib64/") for path in paths):
        entries[f"{toolkit}/lib64"] = "lib"
    for path in sorted(paths):
        directory, name = posixpath.split(path)
        match = _VERSIONED.fullmatch(name)
        short = f"{directory}/{match[1]}.so" if match else ""
        if match and directory == f"{toolkit}/lib" and short not in paths:
            entries.setdefault(short, name)
    return [TarEntry(path=path, kind="symlink", target=to) for path, to in entries.items()]


def _parents(path: str) -> Iterable[str]:
    while path:
        path = posixpath.dirname(path)
        yield path
