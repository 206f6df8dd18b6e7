"""Which images this machine can run: those for its processor, and those that it can emulate.

An emulator (qemu-user) is registered with the kernel, which then runs foreign programs with it:
https://docs.kernel.org/admin-guide/binfmt-misc.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.errors import Failure
from images.oci.model import Platform, host_platform

_REGISTRY = "proc/sys/fs/binfmt_misc"
_ALSO_RUNS = {"amd64": {"386"}, "arm64": {"arm"}}
_ELF_MACHINES = {"amd64": 62, "arm64": 183}
_ELF_KINDS = (2, 3)  # executables, position-independent or not


class OtherMachineError(Failure):
    """The image is for a processor that this machine neither has nor emulates."""

    code = "other-machine"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Emulator:
    """One registration. `fixed` (flag F): the kernel opened the interpreter at registration, so
    that it works inside an image, too.
    """

    name: str
    fixed: bool
    offset: int
    magic: bytes
    mask: bytes

    def starts(self, program: bytes) -> bool:
        """Whether the kernel uses it for a program that begins with these bytes."""
        seen = program[self.offset : self.offset + len(self.magic)]
        masked = bytes(byte & mask for byte, mask in zip(seen, self.mask, strict=False))
        return masked == self.magic


def runs_natively(platform: Platform) -> bool:
    """Whether this machine's processor runs such programs."""
    here, wanted = host_platform().architecture, platform.architecture
    return platform.os == "linux" and wanted in {here, *_ALSO_RUNS.get(here, ())}


def emulator_of(platform: Platform, root: Path = Path("/")) -> str:
    """The emulator for this platform ("qemu-aarch64"); "" if none is needed or none is there."""
    if runs_natively(platform):
        return ""
    return next((one.name for one in _emulators(platform, root) if one.fixed), "")


def check_runs(platform: Platform, shown: str, root: Path = Path("/")) -> None:
    """Check that this machine can run a platform's programs, natively or with an emulator.
    OtherMachineError: it cannot.
    """
    if runs_natively(platform) or emulator_of(platform, root):
        return
    why = "it has no emulator for that"
    fix = "Run it on such a machine"
    if platform.os == "linux" and platform.architecture in _ELF_MACHINES:
        fix += (
            ", or install an emulator: sudo apt-get install -y qemu-user-static binfmt-support "
            "(without apt: docker run --privileged --rm tonistiigi/binfmt --install "
            f"{platform.architecture})"
        )
        unfit = next(_emulators(platform, root), None)
        if unfit is not None:
            why = f"its emulator {unfit.name} is not found from inside an image (no flag F)"
    raise OtherMachineError(
        f"{shown} is for {platform}; this machine is {host_platform()}, and {why}.", fix=f"{fix}."
    )


def _emulators(platform: Platform, root: Path) -> Iterator[_Emulator]:
    """The emulators that are registered and enabled for this platform's programs."""
    machine = _ELF_MACHINES.get(platform.architecture)
    registry = root / _REGISTRY
    if platform.os != "linux" or machine is None or _text(registry / "status") != "enabled":
        return
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # of 64 bits, little-endian
    programs = [struct.pack("<16sHH", ident, kind, machine) for kind in _ELF_KINDS]
    for file in sorted(registry.iterdir()):
        found = _read(file)
        if found is not None and all(map(found.starts, programs)):
            yield found


def _read(file: Path) -> _Emulator | None:
    state, *lines = _text(file).splitlines() or [""]
    fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
    if state != "enabled":
        return None
    try:
        magic = bytes.fromhex(fields["magic"])
        mask = bytes.fromhex(fields.get("mask", "ff" * len(magic)))
        offset = int(fields["offset"])
    except (KeyError, ValueError):  # a registration by file extension, or an invalid one
        return None
    fixed = "F" in fields.get("flags:", "")
    return _Emulator(name=file.name, fixed=fixed, offset=offset, magic=magic, mask=mask)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # "register" can only be written
        return ""
