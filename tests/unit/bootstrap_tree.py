"""A root file system as mmdebstrap leaves it, in small."""

from __future__ import annotations

import io
import tarfile
from typing import Any

EPOCH = 1_700_000_000


def entry(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=0o755)


EXAMPLE = b"""# See sources.list(5)
deb http://mirror.example/debian bookworm main contrib
deb http://mirror.example/debian-security bookworm-security main
"""
STATUS = b"Package: python3\nStatus: install ok installed\nVersion: 3.11\n"


def a_tree(
    *,
    mtime: int = EPOCH + 5,
    owner: str = "root",
    shuffled: bool = False,
    python: str = "python3.11",
    gzip: str = "gzip",
    sources: bytes = b"deb http://me:secret@internal.example/debian bookworm main\n",
) -> bytes:
    """What a tool makes; the arguments vary what must not matter."""
    entries = [
        directory("./"),
        directory("./dev"),
        entry("./dev/null", type=tarfile.CHRTYPE),
        directory("./usr"),
        directory("./usr/bin"),
        entry("./usr/bin/zz", b"data", mode=0o4755),
        entry("./usr/bin/perl", type=tarfile.LNKTYPE, linkname="./usr/bin/zz"),
        entry(f"./usr/bin/{python}", b"py", mode=0o755),
        entry("./usr/bin/python3", type=tarfile.SYMTYPE, linkname=python),
        entry("./etc/hostname", b"secret-host"),
        entry("./etc/shadow", f"root:*:{mtime // 86400}:0:99999:7:::\n".encode()),
        entry("./var/lib/dpkg/status", STATUS),
        entry("./old", mtime=5),
        entry("./etc/apt/sources.list", sources, mode=0o600),
        entry("./etc/apt/sources.list.d/more.list", sources),
        entry("./usr/share/doc/apt/examples/sources.list", EXAMPLE),
        entry(f"./usr/bin/{gzip}", b"gzip", mode=0o755),
        entry("./usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", b"loader", mode=0o755),
        entry("./usr/lib/x86_64-linux-gnu/libc.so.6", b"libc", mode=0o755),
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in entries[:1] + (entries[:0:-1] if shuffled else entries[1:]):
            info.mtime = info.mtime or mtime
            info.uname = info.gname = owner
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
