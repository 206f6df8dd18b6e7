"""What package rules need besides the packages: the Pythons, the GPUs, the index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.rows import Arch
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.installs import Install
from provision.sources.packages import RequestedPackage

CUDA_PACKAGE = re.compile(r"nvidia-[a-z-]+-cu(?P<major>\d\d)")
_CPUS = re.compile(r"cpu|rocm|xpu|hpu|(?<![a-z])amd(?![a-z\d])")
_GPUS = re.compile(r"gpu|cuda|nvidia")
_NO_PROGRAM = re.compile(r"(?<![a-z])(?:ci|docs?|lint|tests?|github|gitlab)(?![a-z])")

NO_GPUS = frozenset(["void", "none"])
"""Values of NVIDIA_VISIBLE_DEVICES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known besides the packages. `pythons`: those that it may be installed for ("3.12"),
    empty: unknown; `for_tests`: nothing that is run for its own sake, such as CI or
    documents. `whole`: no other file or flag is involved, so what is missing here is missing.
    `is_pip`: pip reads it, not uv; `is_command`: one command of several. `cudas`: those of the
    image and of the torch in it ("12.4"), None: they cannot be known; `torch`: the release in it.
    """

    for_gpus: bool = False
    for_cpus: bool = False
    for_tests: bool = False
    whole: bool = False
    pythons: tuple[str, ...] = ()
    arch: Arch = "x86_64"
    is_pip: bool = False
    is_command: bool = False
    cudas: tuple[str, ...] | None = ()
    torch: str | None = None


def setting_by_name(*names: str) -> Setting:
    """What the names of a file and of a stage say of the hardware that it is for. Of a path only
    the file and its directory count.
    """
    said = " ".join("/".join(name.lower().split("/")[-2:]) for name in names)
    for_cpus = _CPUS.search(said) is not None
    return Setting(
        for_cpus=for_cpus,
        for_gpus=not for_cpus and _GPUS.search(said) is not None,
        for_tests=_NO_PROGRAM.search(said) is not None,
    )


PackageRule = Callable[[Install, Setting, "Catalog"], Iterator[RuleHit]]


def needs_gpu(install: Install) -> bool:
    names = frozenset(table("known.toml")["python"]["gpu_only"])
    return any(
        package.name in names or CUDA_PACKAGE.fullmatch(package.name)
        for package in install.packages
    )


def lower_bound(package: RequestedPackage) -> Version | None:
    bounds = [
        Version(one.version.removesuffix(".*"))
        for one in package.specifier
        if one.operator in {">=", ">", "~="} or one.version.endswith(".*")
        if one.operator != "!="
    ]
    return max(bounds, default=None)


def python_tags(catalog: Catalog, name: str, version: str) -> frozenset[str]:
    """The Pythons of a release on any machine: {"cp310", "cp311"}."""
    if name == "torch":
        groups = [row.python_tags for row in catalog.torch_builds(version)]
    elif name == "tensorflow":
        groups = [row.python_tags for row in catalog.tensorflow_wheels if row.version == version]
    else:
        groups = [row.python_tags for row in catalog.jax_releases if row.version == version]
    found = {tag.partition("-")[0] for tags in groups for tag in tags}
    return frozenset(tag for tag in found if re.fullmatch(r"cp3\d+", tag))


def pythons_of_marker(package: RequestedPackage, catalog: Catalog) -> tuple[str, ...]:
    """The Pythons that the line's own marker allows; empty if it does not mention Python."""
    marker = package.requirement.marker if package.requirement else None
    if marker is None or "python_" not in str(marker):
        return ()
    return tuple(one for one in known_pythons(catalog) if holds(package, one, "x86_64"))


def known_pythons(catalog: Catalog) -> list[str]:
    """The Pythons that any torch was ever built for: ["3.6", ..., "3.14"]."""
    tags = {tag.partition("-")[0] for row in catalog.torch for tag in row.python_tags}
    minors = sorted(int(tag[3:]) for tag in tags if re.fullmatch(r"cp3\d+", tag))
    return [f"3.{minor}" for minor in minors]


def holds(package: RequestedPackage, python: str, machine: str) -> bool:
    """Whether a line applies on Linux with this Python."""
    marker = package.requirement.marker if package.requirement else None
    if marker is None:
        return True
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    return marker.evaluate(environment)


def applies_on_linux(package: RequestedPackage, catalog: Catalog) -> bool:
    """Whether a line applies on x86_64 Linux with any known Python."""
    if package.requirement is None or package.requirement.marker is None:
        return True
    return any(holds(package, python, "x86_64") for python in known_pythons(catalog))


def capped(package: RequestedPackage, last: Version) -> bool:
    """Whether it allows neither the next patch nor the next major release after `last`."""
    next_releases = (f"{last.major}.{last.minor}.{last.micro + 1}", f"{last.major + 1}.0")
    return not any(package.specifier.contains(version) for version in next_releases)
