"""Reads a Debian package: its control files, and the files that it installs.

https://manpages.debian.org/bookworm/dpkg-dev/deb.5.en.html
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from images.bootstrap.errors import BootstrapError, BootstrapToolError
from images.errors import Failure
from images.oci.tarstream import scan

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60
_MOST_PLAIN_BYTES = 4 << 30
"""More than any package unpacks to: the limit for a damaged one."""


@dataclass(frozen=True, slots=True)
class ControlFile:
    """A file of a package's control part: "postinst", "md5sums"."""

    mode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Deb:
    """A package. `control` has its control files by name, `data` is a plain tar."""

    control: Mapping[str, ControlFile]
    data: bytes


def read_deb(path: Path, *, shown: str) -> Deb:
    """Read a package. BootstrapError: it is damaged, or in a format that Debian does not use."""
    try:
        members = _members(path.read_bytes())
        control = _control(_plain("control.tar", members), shown)
        return Deb(control, _plain("data.tar", members))
    except (ValueError, EOFError, zlib.error) as error:
        raise BootstrapError(
            f"The package {shown} could not be read: {error}.",
            fix="Remove the stored packages, then try again: provision store gc --all",
        ) from error


def _members(archive: bytes) -> Mapping[str, memoryview]:
    """Read a package's ar archive."""
    if not archive.startswith(_MAGIC):
        raise ValueError("it is not an ar archive")
    view = memoryview(archive)
    members = {}
    at = len(_MAGIC)
    while at + _HEADER_BYTES <= len(archive):
        header = archive[at : at + _HEADER_BYTES]
        size = int(header[48:58])
        begin = at + _HEADER_BYTES
        if header[58:] != b"`\n" or size < 0 or begin + size > len(archive):
            raise ValueError("a member's header is damaged")
        members[header[:16].decode("ascii").rstrip().rstrip("/")] = view[begin : begin + size]
        at = begin + size + size % 2
    return members


def _plain(name: str, members: Mapping[str, memoryview]) -> bytes:
    for member, content in members.items():
        stem, dot, kind = member.rpartition(".")
        if member == name:
            return bytes(content)
        if stem == name and dot:
            return _decompressed(content, kind)
    raise ValueError(f"it has no {name}")


def _decompressed(content: memoryview, kind: str) -> bytes:
    if kind == "xz":
        return decompress_xz(content)
    if kind == "gz":
        from isal import isal_zlib

        return bytes(isal_zlib.decompress(content, 31))
    raise ValueError(f"it is compressed with {kind}, which Debian's packages are not")


def decompress_xz(content: bytes | memoryview) -> bytes:
    """Decompress one xz stream. ValueError: it is damaged. BootstrapToolError: no lzma module."""
    try:
        import lzma
    except ImportError as error:  # built without the library's headers
        raise BootstrapToolError(
            "This Python was built without the lzma module, which Debian's packages need.",
            fix="Use another Python: PYTHON=/usr/bin/python3 ./run ..., or build it again after"
            " installing the headers of liblzma (liblzma-dev, xz-devel)",
        ) from error
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        plain = decompressor.decompress(content, _MOST_PLAIN_BYTES)
    except lzma.LZMAError as error:
        raise ValueError(str(error).lower()) from error
    if not decompressor.eof:
        raise ValueError("its xz stream is cut off, or too large")
    return plain


def _control(tar: bytes, shown: str) -> Mapping[str, ControlFile]:
    found = {}
    try:
        for member in scan(io.BytesIO(tar), f"The control part of {shown}"):
            if member.isreg():
                begin = member.offset_data
                content = tar[begin : begin + member.size]
                found[member.name.removeprefix("./")] = ControlFile(member.mode, content)
    except Failure as failure:
        raise ValueError(failure.message) from failure
    if "control" not in found:
        raise ValueError("it has no control file")
    return found
