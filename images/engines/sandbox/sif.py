"""Apptainer's and Singularity's image format: a header, descriptors, and here one squashfs.

    header        32 bytes "#!/usr/bin/env run-singularity\\n", 10 "SIF_MAGIC", 3 version "01",
                  3 CPU ("02"), 16 UUID, then eight i64: created, modified, free and all
                  descriptors, offset and size of these, offset and size of the data
    descriptor    i32 type, u8 used, u32 number, u32 group, u32 link, seven i64: offset, size, size
                  with padding, created, modified, user, group; 128 bytes name, 384 of its type
    a file system i32 kind (1: squashfs), i32 role (2: the system), 3 CPU

All numbers are little-endian. Times are zero and the UUID is the image's, so that equal images are
equal files.
https://github.com/apptainer/sif/blob/v2.20.2/pkg/sif/sif.go, descriptor.go, arch.go
"""

from __future__ import annotations

import struct
import uuid
from pathlib import Path
from typing import IO

from images.oci.errors import ImageUnreadableError
from images.oci.inflate import ANEW_FIX

ENDING = ".sif"
DATA_OFFSET = 32768
"""Where the squashfs begins in a file that we write."""

SQUASHFS_MAGIC = b"hsqs"  # https://docs.kernel.org/filesystems/squashfs.html
_LAUNCH = b"#!/usr/bin/env run-singularity\n"
_MAGIC, _VERSION = b"SIF_MAGIC\0", b"01\0"
_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<iBIIIqqqqqqq128s384s")
_FILE_SYSTEM = struct.Struct("<ii3s")
_DESCRIPTORS, _DESCRIPTORS_OFFSET = 48, 4096
_MOST_DESCRIPTORS = 10_000
_PARTITION, _GROUP = 0x4004, 0xF0000001
_SQUASHFS, _SYSTEM = 1, 2
_CPUS = {"amd64": b"02\0", "arm64": b"04\0", "ppc64le": b"06\0", "s390x": b"11\0"}


def sif_header(digest: str, architecture: str, size: int) -> bytes:
    """What precedes a squashfs of `size` bytes. `architecture` is in Go's names; `digest` is the
    image's.
    """
    cpu = _CPUS.get(architecture, b"00\0")
    used = _DESCRIPTOR.pack(
        *(_PARTITION, 1, 1, _GROUP, 0),
        *(DATA_OFFSET, size, size, 0, 0, 0, 0),
        *(b"image.sqfs", _FILE_SYSTEM.pack(_SQUASHFS, _SYSTEM, cpu)),
    )
    descriptors = used.ljust(_DESCRIPTORS * _DESCRIPTOR.size, b"\0")
    header = _HEADER.pack(
        *(_LAUNCH, _MAGIC, _VERSION, cpu, uuid.uuid5(uuid.NAMESPACE_OID, digest).bytes),
        *(0, 0, _DESCRIPTORS - 1, _DESCRIPTORS),
        *(_DESCRIPTORS_OFFSET, len(descriptors), DATA_OFFSET, size),
    )
    return (header.ljust(_DESCRIPTORS_OFFSET, b"\0") + descriptors).ljust(DATA_OFFSET, b"\0")


def squashfs_offset(path: Path) -> int | None:
    """Where the squashfs of a file begins: 0, or behind the header of a SIF; None: it has none.
    ImageUnreadableError: it is a SIF whose system is no squashfs, or which is damaged.
    """
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
        if start.startswith(SQUASHFS_MAGIC):
            return 0
        if start[len(_LAUNCH) + 1 :][: len(_MAGIC)] != _MAGIC:
            return None
        if len(start) < _HEADER.size:
            raise _damaged(path)
        *_, number, at, _, _, _ = _HEADER.unpack(start)
        return _offset_in(file, path, number=number, at=at)


def _offset_in(file: IO[bytes], path: Path, *, number: int, at: int) -> int:
    if not 0 < number <= _MOST_DESCRIPTORS or at < _HEADER.size:
        raise _damaged(path)
    try:
        file.seek(at)
        table = file.read(number * _DESCRIPTOR.size)
    except (OSError, ValueError, OverflowError) as error:
        raise _damaged(path) from error
    if len(table) < number * _DESCRIPTOR.size:
        raise _damaged(path)
    for kind, used, *_, offset, size, _, _, _, _, _, _, more in _DESCRIPTOR.iter_unpack(table):
        system, role, _ = _FILE_SYSTEM.unpack_from(more)
        if kind == _PARTITION and used and role == _SYSTEM:
            return _checked(file, path, system=system, offset=offset, size=size)
    raise ImageUnreadableError(f"{path} has no file system of an image.", fix=ANEW_FIX)


def _checked(file: IO[bytes], path: Path, *, system: int, offset: int, size: int) -> int:
    end = path.stat().st_size
    if system != _SQUASHFS:
        raise ImageUnreadableError(
            f"The file system in {path} is of another kind than squashfs, or encrypted.",
            fix="Build it again (provision build --output FILE.sif), or run it with apptainer.",
        )
    if not 0 < offset < end or not 0 < size <= end - offset:
        raise _damaged(path)
    file.seek(offset)
    if file.read(len(SQUASHFS_MAGIC)) != SQUASHFS_MAGIC:
        raise _damaged(path)
    return offset


def _damaged(path: Path) -> ImageUnreadableError:
    return ImageUnreadableError(f"The SIF {path} is damaged.", fix=ANEW_FIX)
