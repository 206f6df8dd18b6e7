"""Inspects an image or a wheel, and returns all results in one value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.inspect.contents import Contents, OnBytes, read_image, read_wheel
from images.inspect.coverage import Coverage, cover, cover_flags
from images.inspect.dynamic import Machine
from images.inspect.model import Capability, LibraryCode
from images.inspect.needs import Needs, python_version, survey
from images.inspect.packages import (
    Damage,
    Distribution,
    ImagePackages,
    Share,
    distinct_files,
    find_damage,
    find_twins,
    read_packages,
    shares,
    toolkits,
)
from images.inspect.remote import is_url, open_url
from images.inspect.source import open_file
from images.inspect.tree import ImageFile
from images.oci.sources import Image
from images.system.ldcache import FLAGS, read_cache

FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "pytorch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "jax": ("jaxlib", "jax"),
}
_JAX_PLUGIN = re.compile(r"jax-cuda\d+-(plugin|pjrt)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The results. `needs` is None if there is no program or library for a supported machine.
    `coded` are the libraries with device code; `must_run` has the names of those that must run.
    """

    contents: Contents
    packages: ImagePackages
    python: str | None
    framework: str | None
    framework_package: Distribution | None
    machine: Machine | None
    needs: Needs | None
    shares: tuple[Share, ...]
    hidden_bytes: int
    damage: tuple[Damage, ...]
    left_out: int
    twins: tuple[tuple[Distribution, Distribution], ...]
    toolkits: tuple[str, ...]
    coded: tuple[LibraryCode, ...]
    must_run: frozenset[str]
    flags: tuple[str, ...]

    def owner(self, path: str) -> Distribution | None:
        """The package that a file is of."""
        file = self.contents.tree.file(path)
        return self.packages.owners.get(file) if file is not None else None

    def coverage(self, gpu: Capability) -> tuple[Coverage, ...]:
        """For each library with device code, what of it runs on a GPU."""
        return tuple(cover(code, gpu) for code in self.coded)

    def by_flags(self, gpu: Capability) -> str | None:
        """What runs on a GPU according to the framework's build flags; None if it has none."""
        return cover_flags(self.flags, gpu) if self.flags else None


def inspect_image(image: Image, *, on_bytes: OnBytes | None = None) -> Inspection:
    """Inspect an image."""
    return conclude(read_image(image, on_bytes=on_bytes))


def inspect_wheel(
    source: str, *, ca_bundle: Path | None = None, on_bytes: OnBytes | None = None
) -> Inspection:
    """Inspect a wheel: a path, or an http(s) URL."""
    opened = (
        open_url(source, ca_bundle=ca_bundle, on_progress=lambda *_: None)
        if is_url(source)
        else open_file(source)
    )
    try:
        return conclude(read_wheel(opened, on_bytes=on_bytes))
    finally:
        opened.close()


def conclude(contents: Contents) -> Inspection:
    """Derive all results from what was read."""
    packages = read_packages(contents)
    machine = contents.machine or _machine(contents)
    damage, left_out = find_damage(contents, packages)
    name, package = _framework(packages)
    files = list(distinct_files(contents.tree))
    coded = [(file, file.code) for _, file in files if file.code and file.code.fatbins]
    return Inspection(
        contents=contents,
        packages=packages,
        python=python_version(contents),
        framework=name,
        framework_package=package,
        machine=machine,
        needs=None
        if machine is None
        else survey(
            contents,
            packages,
            machine=machine,
            cache=_cache(contents, machine),
            framework=package,
        ),
        shares=tuple(shares(contents, packages)),
        hidden_bytes=sum(layer.unpacked for layer in contents.layers)
        - sum(file.size for _, file in files)
        if contents.layers
        else 0,
        damage=tuple(damage),
        left_out=left_out,
        twins=tuple(find_twins(packages)),
        toolkits=toolkits(contents.tree, packages),
        coded=tuple(code for _, code in coded),
        must_run=frozenset(
            code.name for file, code in coded if _must_run(packages, package, file, contents)
        ),
        flags=next((file.flags for _, file in files if file.flags), ()),
    )


def _framework(packages: ImagePackages) -> tuple[str | None, Distribution | None]:
    for framework, names in FRAMEWORKS.items():
        if (found := packages.named(*names)) is not None:
            return framework, found
    return None, None


def _must_run(
    packages: ImagePackages, framework: Distribution | None, file: ImageFile, contents: Contents
) -> bool:
    """Whether a library must have code for every GPU that the image is to run on.

    These are the framework's libraries, and those of packages that depend on it or extend it. The
    framework's dependencies may be for some GPUs only (cuSPARSELt), and the framework handles that.
    In an image without a framework, and in a wheel, all libraries count, except NVIDIA's without
    kernels: they still have a fatbin for the compiler's default target (libnvblas, libcufftw).
    """
    owner = packages.owners.get(file)
    if framework is None or contents.kind == "wheel":
        return not (owner is not None and owner.name.startswith("nvidia-") and _is_stub(file.code))
    if owner is None:
        return False
    return (
        owner.name == framework.name
        or framework.name in packages.reach(owner.name)
        or _JAX_PLUGIN.search(owner.name) is not None
    )


def _is_stub(code: LibraryCode | None) -> bool:
    return code is not None and code.fatbins == 1 and len(code.sass) + len(code.ptx) == 1


def _machine(contents: Contents) -> Machine | None:
    """The machine that all libraries are for, if it is only one."""
    found = {
        file.elf.machine
        for _, file in distinct_files(contents.tree)
        if file.elf is not None and file.elf.machine is not None
    }
    return found.pop() if len(found) == 1 else None


def _cache(contents: Contents, machine: Machine) -> dict[str, Sequence[str]]:
    """Read the loader's cache: name -> paths, for programs of this machine."""
    file = contents.tree.file("/etc/ld.so.cache")
    found: dict[str, list[str]] = {}
    for entry in read_cache(file.text) or () if file is not None and file.text else ():
        if entry.flags == FLAGS[machine] and not entry.subdirectory:
            found.setdefault(entry.name, []).append(entry.path)
    return dict(found)
