"""Which CUDA runtime the libraries of a wheel need, from the beginning of each.

A package of PyPI is compiled for one CUDA, whatever the framework beside it has: vLLM 0.33 needs
libcudart.so.13, and PyTorch for CUDA 12.6 brings libcudart.so.12. No metadata says so. The names
that a library needs are in its table of texts, which linkers put near its beginning: a megabyte of
each library is read, some ten of a wheel of 600 MB.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from images.errors import Failure
from provision.lock.lockfile import parse_lock

if TYPE_CHECKING:
    from images.inspect.archive import WheelArchive
    from images.wheels.directory import Member

_RUNTIME = re.compile(rb"\0libcudart\.so\.(\d+(?:\.\d+)?)(?=\0)")
_RUNTIME_PACKAGE = re.compile(r"nvidia-cuda-runtime(?:-cu(\d+))?")
_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_BROUGHT = re.compile(r"^nvidia/|\.libs/|/?[^/]*-[0-9a-f]{8}[^/]*\.so")  # libraries of others
READ_BYTES = 1 << 20
"""How much of a library is read to find the names of those that it needs."""
MOST_LIBRARIES, FEW_LIBRARIES = 16, 3
WAIT_S = 15.0


class NeededRuntime(NamedTuple):
    """`file` of a wheel needs libcudart.so.`version` ("13", "11.0")."""

    version: str
    file: str

    @property
    def cuda(self) -> str:
        """The major version of CUDA that it belongs to."""
        return self.version.partition(".")[0]


def runtime_of(cuda: str) -> str:
    """The version in the name of a CUDA's runtime: "12" of 12.6, "11.0" of 11.7."""
    major = cuda.partition(".")[0]
    return major if int(major) >= 12 else f"{major}.0"


def runtimes_in(text: str) -> frozenset[str]:
    """The runtimes that NVIDIA's packages in a lock by uv bring: {"12", "13"}."""
    found = set()
    for package in parse_lock(text).packages:
        if match := _RUNTIME_PACKAGE.fullmatch(str(package.name)):
            found.add(runtime_of(match[1] or str(package.version).partition(".")[0]))
    return frozenset(found)


def needed_runtimes(
    address: str, *, ca_bundle: Path | None, most: int = MOST_LIBRARIES
) -> tuple[NeededRuntime, ...]:
    """The runtimes that a wheel's libraries need; two at most, since a package with a library for
    each CUDA takes the right one. (): they need none, or it cannot be read in parts. `most`: how
    many libraries are read, the smallest first.
    """
    from images.inspect.archive import WheelArchive
    from images.inspect.remote import is_url, open_url

    if not is_url(address):
        return ()
    try:
        source = open_url(address, ca_bundle=ca_bundle, patience_s=WAIT_S, parts_only=True)
    except Failure:
        return ()
    try:
        return _needed(WheelArchive(source), most)
    except Failure:
        return ()
    finally:
        source.close()


def is_own_library(name: str) -> bool:
    """Whether a member of a wheel is a library that was compiled with the package."""
    return _LIBRARY.search(name) is not None and _BROUGHT.search(name) is None


def versions_in(start: bytes) -> set[str]:
    """The versions of the runtimes that a library needs, from its first MiB: {"12"}."""
    return {found.decode() for found in _RUNTIME.findall(start)}


def _needed(archive: WheelArchive, most: int) -> tuple[NeededRuntime, ...]:
    libraries = [member for name, member in archive.members.items() if is_own_library(name)]
    found: dict[str, NeededRuntime] = {}
    for member in sorted(libraries, key=lambda member: member.compressed)[:most]:
        for version in versions_in(_start(archive, member)):
            found.setdefault(version, NeededRuntime(version, member.name))
        if len(found) > 1:
            break
    return tuple(found.values())[:2]


def _start(archive: WheelArchive, member: Member) -> bytes:
    """The first MiB of a library; b"" for another file."""
    start = b""
    with contextlib.closing(archive.stream(member)) as pieces:  # type: ignore[type-var]
        for piece in pieces:
            start += piece
            if len(start) >= READ_BYTES or not start.startswith(b"\x7fELF"):
                break
    return start if start.startswith(b"\x7fELF") else b""
