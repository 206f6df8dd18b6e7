"""What this machine has for the making of a base, and what it lacks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from images import process
from images.bootstrap.errors import (
    BootstrapToolError,
    BootstrapUnfitError,
    MirrorError,
    NoSpaceError,
)
from images.bootstrap.mirrors import Source, parse_deb822, parse_one_line, snapshot_address
from images.errors import Failure

NEEDED_BYTES = 1_500_000_000
"""Free space that the making takes at its peak: a tree, its tar, and the archive."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
INSTALL = "sudo apt-get update && sudo apt-get install -y --no-install-recommends"

SNAPSHOT_VARIABLE = "PROVISION_SNAPSHOT_MIRROR"
_SNAPSHOT_FIX = (
    f"Name it: {SNAPSHOT_VARIABLE}=http://HOST/archive, which has debian/ and debian-security/,"
    " each with folders such as 20260301T000000Z"
)

_DEBIAN_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def debian_arch(machine: str) -> str:
    """Give Debian's name of an architecture, which is also the one that images use."""
    return _DEBIAN_ARCH.get(machine, machine)


def read_sources(root: Path = Path("/")) -> tuple[Source, ...]:
    """Read the host's apt sources."""
    apt = root / "etc/apt"
    found: list[Source] = []
    parts = sorted(apt.glob("sources.list.d/*"))
    for file in (apt / "sources.list", *parts):
        parse = {".list": parse_one_line, ".sources": parse_deb822}.get(file.suffix)
        if parse is not None:
            with contextlib.suppress(OSError):
                found += parse(file.read_text(encoding="utf-8", errors="replace"))
    return tuple(found)


def snapshot_service(root: Path = Path("/")) -> str:
    """Say where the snapshot service is: what the user set, else what apt's sources speak of."""
    named = os.environ.get(SNAPSHOT_VARIABLE, "").strip().rstrip("/")
    if named:
        if not re.fullmatch(r"(https?|file)://[^\s\[\]]+", named):
            raise BootstrapUnfitError(
                f"{SNAPSHOT_VARIABLE} is {named!r}, which is no address.", fix=_SNAPSHOT_FIX
            )
        return named
    apt = root / "etc/apt"
    for file in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))):
        with contextlib.suppress(OSError):
            found = snapshot_address(file.read_text(encoding="utf-8", errors="replace"))
            if found is not None:
                return found
    raise MirrorError(
        "A base of a given time is asked for, and this host's apt sources name no service that"
        " keeps Debian's past.",
        fix=_SNAPSHOT_FIX,
    )


def read_apt_options(on_line: Callable[[str], None]) -> tuple[str, ...]:
    """Read the host's proxies and certificates for apt: mmdebstrap's apt does not read them."""
    try:
        dump = process.run(
            ["apt-config", "dump", "--format", '%F "%v";%n', "Acquire::http", "Acquire::https"],
            timeout_s=30,
            apart=True,
        )
    except Failure as failure:  # not a Debian host, then: there is nothing to read
        on_line(f"apt's settings were not read: {failure.message}")
        return ()
    return tuple(
        line
        for line in dump.stdout.splitlines()
        if re.match(r"Acquire::https?::\S+ \".+\";$", line) and "User-Agent" not in line
    )


def check_arch(arch: str) -> None:
    """Refuse another machine's architecture: a package's scripts run while it is installed."""
    here = debian_arch(os.uname().machine)
    if arch != here:
        raise BootstrapUnfitError(
            f"A base for {arch} is asked for and this machine is {here}.",
            fix=f"Make it on an {arch} machine, or give a base from a registry: --base IMAGE",
        )


def check_tools() -> None:
    """Refuse a host without the programs and keys that the making needs."""
    # debootstrap unpacks into a directory, with owners and devices that only root may make
    if not shutil.which("mmdebstrap") and not (os.geteuid() == 0 and shutil.which("debootstrap")):
        raise BootstrapToolError(
            "A base is made by mmdebstrap (or, as root, debootstrap); this host has neither.",
            fix=f"{INSTALL} mmdebstrap debian-archive-keyring",
        )
    if not KEYRING.is_file():
        raise BootstrapToolError(
            f"Debian's keys are needed to trust its packages; {KEYRING} is not there.",
            fix=f"{INSTALL} debian-archive-keyring",
        )


def scratch_directory(work: Path) -> Path:
    """Say where a tool unpacks.

    Root's leftovers shall go with the work directory. For others it is the one directory that is
    open to the user ids of an unshared namespace: a home or a TMPDIR of theirs may be closed.
    """
    return work if os.geteuid() == 0 else Path("/tmp")  # noqa: S108  the tool makes its own in it


def check_space(bases: Path) -> None:
    """Refuse a disk that would fill up during the work."""
    for directory in dict.fromkeys((bases, scratch_directory(bases))):
        if shutil.disk_usage(directory).free < NEEDED_BYTES:
            raise no_space(directory)


def no_space(directory: Path) -> NoSpaceError:
    """Say how full a directory's disk is."""
    free = shutil.disk_usage(directory).free
    return NoSpaceError(
        f"{directory} has {free / 1e9:.1f} GB free; making a base needs {NEEDED_BYTES / 1e9:.1f}"
        " GB.",
        fix=f"Make room (df -h {directory}), or keep the store on another disk: XDG_CACHE_HOME.",
    )
