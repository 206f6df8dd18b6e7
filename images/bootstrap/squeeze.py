"""Compresses the layer, such that equal trees give equal bytes on every host.

What a compressor writes is its own affair: zlib and zlib-ng differ, ISA-L's output depends on the
processor, and which of them a Python has depends on who built it. So the base's own gzip does it,
taken out of the tree: it is one of the packages that the base consists of, so what pins the
packages pins the compressor with them. It runs with the C library of the tree, in no other way
than the scripts of its packages did.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from images import process
from images.bootstrap.errors import BootstrapError
from images.bootstrap.tools import Job
from images.errors import Failure
from images.oci.blobfiles import read_pieces
from images.oci.inflate import inflate

LEVEL = "-6"
_NEEDED = {
    "gzip": re.compile(r"(usr/)?bin/gzip"),
    "ld.so": re.compile(r"(usr/)?lib(64)?/([^/]+/)?ld-linux-[^/]+\.so\.\d+"),
    "libc.so.6": re.compile(r"(usr/)?lib(64)?/([^/]+/)?libc\.so\.6"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Squeezed:
    """A compressed layer: its file, and what describes it."""

    path: Path
    digest: str
    size: int


def squeeze(layer: Path, diff_id: str, job: Job) -> Squeezed:
    """Replace a layer by its compressed form, which is seen to hold the very same bytes."""
    programs = job.work / "gzip"
    _take_out(layer, programs)
    completed = job.run(
        [
            str(programs / "ld.so"),
            "--library-path",
            str(programs),
            str(programs / "gzip"),
            "--no-name",  # nor its time
            LEVEL,
            str(layer),
        ],
        unset=("GZIP",),  # it would add options
    )
    if not completed.ok:
        raise _failure(completed)
    compressed = layer.with_name(f"{layer.name}.gz")
    if _inflated_digest(compressed) != diff_id:
        raise BootstrapError(
            "The base's own gzip changed the layer while it compressed it.",
            fix="See that this machine's memory and disk are sound. Another way: --base IMAGE",
        )
    digest = hashlib.sha256()
    for piece in read_pieces(compressed.open("rb")):
        digest.update(piece)
    return Squeezed(
        path=compressed,
        digest=f"sha256:{digest.hexdigest()}",
        size=compressed.stat().st_size,
    )


def _take_out(layer: Path, target: Path) -> None:
    """Copy gzip and what it needs out of the layer."""
    target.mkdir()
    wanted = dict(_NEEDED)
    with tarfile.open(layer, "r:") as archive:
        for member in archive:
            for name, pattern in list(wanted.items()):
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None and pattern.fullmatch(member.name):
                    (target / name).write_bytes(content.read())
                    (target / name).chmod(0o755)
                    del wanted[name]
    if wanted:
        raise BootstrapError(
            f"The tree has no {' and no '.join(wanted)}, of which every Debian has one.",
            fix="Another way: --base IMAGE",
        )


def _inflated_digest(compressed: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        for piece in inflate(read_pieces(compressed.open("rb")), "The layer"):
            digest.update(piece)
    except Failure:
        return None
    return f"sha256:{digest.hexdigest()}"


def _failure(completed: process.Completed) -> BootstrapError:
    return BootstrapError(
        f"The base's own gzip {process.describe_exit(completed.code)}.",
        fix="See that programs may be run from the store's disk (mount option noexec), or keep the"
        " store elsewhere: XDG_CACHE_HOME. Another way: --base IMAGE",
        detail=completed.last_lines(),
    )
