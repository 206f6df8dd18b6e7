"""Which bytes a file has: its sha256, remembered only where nobody can change the file unseen.

A digest is remembered by device, inode, size and times until the next boot, in this user's own
store. The file must be one that only its owner and root can write, as far as its mode and its
access list say, on a file system whose modes and times are the kernel's or the file server's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from images.engines.sandbox.roots import boot_id
from images.oci.model import is_digest
from images.store.errors import in_units
from images.store.store import Store
from images.system.hashed_file import HashedFile, hash_open_file, state_of
from images.system.ownership import written_by_others

_NAMESPACE = "file-digests"
_TRUSTED = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "erofs"}
    | {"lustre", "nfs", "nfs4", "ceph"}
)
"""Not FUSE and CIFS, whose servers show any mode and time; not tmpfs, where a write through a
mapping changes no time; not GPFS, whose access lists are not shown.
"""
_SETTLED_S = 10.0
"""Two changes within one tick of a clock have one time: of a disk 10 ms, of old file systems 2 s.
"""
_LARGE_BYTES = 10**9
_NFS4_WRITES = 0x2 | 0x4 | 0x40000 | 0x80000
"""To write, to append, to change the list, to change the owner (RFC 7530, 6.2.1.3.1)."""


def identify(path: Path, cache: Path | None, tell: Callable[[str], None]) -> HashedFile:
    """The digest of a file, hashed or remembered. `cache` has this user's store; None: it is always
    hashed. `tell` is called before that takes seconds. FileChangedError: it was changed meanwhile;
    OSError: it cannot be read.
    """

    def hashed() -> HashedFile:
        if state_of(file).size >= _LARGE_BYTES:
            tell(f"hashing {path} ({in_units(state_of(file).size)})")
        return hash_open_file(file, path)

    with path.open("rb", buffering=0) as file, contextlib.ExitStack() as held:
        store = None
        if cache is not None and _is_settled(file) and not _written_by_others(file, path):
            store = Store.private(cache)
        if store is None:
            return hashed()
        held.enter_context(store)
        state = state_of(file)
        key = json.dumps([boot_id(), *state])
        known = (store.facts(_NAMESPACE, key) or {}).get("digest")
        if isinstance(known, str) and is_digest(known):
            return HashedFile(path, known, state)
        found = hashed()
        if found.state == state:
            store.remember_facts(_NAMESPACE, key, {"digest": found.digest})
        return found


def _is_settled(file: FileIO) -> bool:
    return 0 <= state_of(file).changed <= time.time_ns() - int(_SETTLED_S * 1e9)


def _written_by_others(file: FileIO, path: Path) -> bool:
    """Whether others than root and its owner may write a file, or nobody can say who may."""
    try:
        if _file_system(file) not in _TRUSTED:
            return True
        if written_by_others(Path(os.path.realpath(path)), os.fstat(file.fileno())):
            return True
        with contextlib.suppress(OSError):
            return _nfs4_list_lets_others(os.getxattr(file.fileno(), "system.nfs4_acl"))
    except (OSError, ValueError):
        return True
    return False


def _file_system(file: FileIO) -> str:
    """The kind of file system that an open file is on; "": not known.

    https://docs.kernel.org/filesystems/proc.html (mountinfo; mnt_id in fdinfo)
    """
    about = Path(f"/proc/self/fdinfo/{file.fileno()}").read_text(encoding="ascii")
    found = re.search(r"^mnt_id:\s*(\d+)$", about, re.MULTILINE)
    mounts = Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "replace")
    for line in mounts.split("\n"):
        mount, _, kind = line.partition(" - ")
        if found is not None and mount.partition(" ")[0] == found[1]:
            return kind.partition(" ")[0]
    return ""


def _nfs4_list_lets_others(packed: bytes) -> bool:
    """Whether an access list of NFSv4 lets anybody but the owner write; its mode does not show it.
    ValueError: it is malformed.

    Big-endian: the number of entries; of each type, flags, rights, and the length of a name, which
    is padded to four bytes (RFC 7530, 6.2.1).
    """
    try:
        (count,) = struct.unpack_from(">I", packed)
        at = 4
        for _ in range(count):
            kind, _, rights, length = struct.unpack_from(">IIII", packed, at)
            name = packed[at + 16 : at + 16 + length]
            at += 16 + length + -length % 4
            if kind == 0 and rights & _NFS4_WRITES and name != b"OWNER@":
                return True
    except struct.error as error:
        raise ValueError(packed[:16]) from error
    return False
