"""Installed packages of interest, from dpkg, rpm or pacman: their names and versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from provision.doctor.probes import commands
from provision.host.machine import INDEX_LIMIT_BYTES, ProbedMachine

_DPKG_STATUS = "/var/lib/dpkg/status"
_PACMAN = "/var/lib/pacman/local"
_DRIVER = re.compile(
    r"(?:lib(?:nvidia|xnvctrl)-?(?:compute|gl|decode|encode|fbc1|cfg1|extra|common|ml|ptxjit)\S*"
    r"|libcuda1(?:-\d+)?|libnvidia-ml1|cuda-drivers(?:-\d+)?"
    r"|nvidia-(?:driver|dkms|kernel|compute|utils|headless|open|lts|\d+xx|smi|alternative)(?:-\S+)?"
    r"|nvidia|nvidia-firmware-\S+|linux-modules-nvidia-\S+|xserver-xorg-video-nvidia\S*"
    r"|(?:k|ak)mod-nvidia\S*|xorg-x11-drv-nvidia\S*|nvidia-x11-drv\S*|dkms-nvidia"
    r"|nvidia-(?:open-)?(?:driver-)?(?:compute-)?G0\d\S*|nvidia-gl-G0\d)"
)
# Their versions differ from the driver's, or they serve containers.
_OTHER = re.compile(
    r"nvidia-(?:container|docker|cuda|cudnn|fabricmanager|settings|prime|modprobe|persistenced"
    r"|visual|installer-cleanup|kernel-common|support|egl|texture|imex|fs|gds)\S*"
    r"|libnvidia-(?:container|nscq|egl)\S*"
)
_STANZA = re.compile(r"^(Package|Status|Version): (.*)$", re.MULTILINE)
_ARCH_NAME = re.compile(r"(.+)-((?:\d+:)?[^-]+-[^-]+)")


class InstalledPackage(NamedTuple):
    name: str
    version: str


class InstalledPackages(NamedTuple):
    """What is installed, and the source of that."""

    where: str
    found: tuple[InstalledPackage, ...]

    def version(self, pattern: str) -> str | None:
        """The version of the first package whose whole name the pattern matches, without the
        packaging's epoch and revision.
        """
        wanted = re.compile(pattern)
        return next((upstream(p.version) for p in self.found if wanted.fullmatch(p.name)), None)


def read_packages(machine: ProbedMachine) -> InstalledPackages | None:
    """None if no package manager can be queried."""
    for command, parse in ((commands.DPKG, parse_dpkg), (commands.RPM, parse_rpm)):
        done = commands.ask(machine, command)
        # dpkg-query fails if one of its patterns matches nothing, and lists the others
        if done is not None and done.problem is None and (done.out or done.ok):
            return InstalledPackages(where=command.program, found=tuple(parse(done.out)))
    names = machine.names(_PACMAN)
    if names is not None:
        return InstalledPackages(where=_PACMAN, found=tuple(parse_pacman(names)))
    text = machine.text(_DPKG_STATUS, INDEX_LIMIT_BYTES)
    if text is None:
        return None
    return InstalledPackages(where=_DPKG_STATUS, found=tuple(parse_status(text)))


def parse_dpkg(text: str) -> Iterator[InstalledPackage]:
    """Lines of "ii\\tname\\tversion"; what was removed and left its configuration is no package."""
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) == 3 and parts[0][1:2] in {"i", "U", "F", "W", "t", "H"} and parts[2]:
            yield InstalledPackage(parts[1], parts[2])


def parse_rpm(text: str) -> Iterator[InstalledPackage]:
    for line in text.splitlines():
        name, tab, version = line.partition("\t")
        if tab and version:
            yield InstalledPackage(name, version)


def parse_pacman(names: Iterable[str]) -> Iterator[InstalledPackage]:
    """Directories of its database: "nvidia-utils-570.86.16-1"."""
    for name in names:
        found = _ARCH_NAME.fullmatch(name)
        if found:
            yield InstalledPackage(found[1], found[2])


def parse_status(text: str) -> Iterator[InstalledPackage]:
    """dpkg's own file, if dpkg-query may not be run."""
    for stanza in text.split("\n\n"):
        fields = dict(_STANZA.findall(stanza))
        if fields.get("Status", "").endswith(" installed") and "Version" in fields:
            yield InstalledPackage(fields.get("Package", ""), fields["Version"])


def is_driver(name: str) -> bool:
    """Whether a package is a part of the driver that must have the driver's version."""
    return _DRIVER.fullmatch(name) is not None and _OTHER.fullmatch(name) is None


def upstream(version: str) -> str:
    """ "1:570.86.15-0ubuntu1" -> "570.86.15"."""
    return re.split(r"[-+~]", version.partition(":")[2] or version, maxsplit=1)[0]


def driver_branch(version: str) -> int | None:
    """The driver's branch in a package's version; None if it is another version (a kernel's)."""
    found = re.match(r"(\d{3,4})(?:\.\d+)+$", upstream(version))
    return int(found[1]) if found else None


def branches_mixed(packages: Iterable[InstalledPackage]) -> bool | None:
    """Whether parts of the driver are from two branches; None if there are no parts."""
    found = {driver_branch(p.version) for p in packages if is_driver(p.name)} - {None}
    return len(found) > 1 if found else None
