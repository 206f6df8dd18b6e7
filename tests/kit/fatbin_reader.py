"""Reads all fatbins of a whole file and selects code as the driver does: simple, slow, independent.

It shares nothing with `images.inspect`: it is what the cut of libraries is compared with.

"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

MAGIC = b"\x50\xed\x55\xba\x01\x00\x10\x00"
TEGRA = {32, 53, 62, 72, 87, 101, 110}
Entry = tuple[int, int, str, int, bytes]
"""Kind, architecture (86), "a", "f" or "", the payload's offset, the payload."""


def fatbins(data: bytes) -> Iterator[tuple[int, list[Entry]]]:
    """Yield the offset of each fatbin in a file, and its entries."""
    at = data.find(MAGIC)
    while at >= 0:
        (size,) = struct.unpack_from("<Q", data, at + 8)
        end = at + 16 + size
        entries: list[Entry] = []
        here = at + 16
        while at % 8 == 0 and end <= len(data) and here + 64 <= end:
            kind, version, header, payload = struct.unpack_from("<HHIQ", data, here)
            (arch,) = struct.unpack_from("<I", data, here + 28)
            (flags,) = struct.unpack_from("<Q", data, here + 40)
            if version != 257 or header < 64 or here + header + payload > end:
                break
            first = here + header
            letter = "a" if flags >> 20 & 1 else "f" if flags >> 21 & 1 else ""
            entries.append((kind, arch, letter, first, data[first : first + payload]))
            here += header + payload
        if entries and here == end:
            yield at, entries
            at = end
        else:
            at += 1
        at = data.find(MAGIC, at)


def driver_selects(entries: list[Entry], gpu: int) -> list[bytes]:
    """The code that the driver's rule selects: the best binary code, else the newest PTX."""
    binaries = [e for e in entries if e[0] == 2 and runs_binary(e, gpu)]
    codes = [e for e in entries if e[0] == 1 and runs_ptx(e, gpu)]
    for found in (binaries, codes):
        if found:
            best = max(e[1] for e in found)
            return [e[4] for e in found if e[1] == best]
    return []


def runs_binary(entry: Entry, gpu: int) -> bool:
    """The same major and an equal or lower minor; "a" exactly; Tegra's only on itself."""
    _, arch, letter, _, _ = entry
    if letter == "a" or arch in TEGRA or gpu in TEGRA:
        return arch == gpu
    return arch // 10 == gpu // 10 and arch <= gpu


def runs_ptx(entry: Entry, gpu: int) -> bool:
    """An equal or lower capability; "a" exactly, "f" in the same major."""
    _, arch, letter, _, _ = entry
    if letter == "a":
        return arch == gpu
    return arch <= gpu and (letter != "f" or arch // 10 == gpu // 10)


def digest_of_selection(data: bytes, gpu: int) -> tuple[int, int, str]:
    """How many fatbins, how many bytes are selected of them, and the digest of these with their
    fatbins' offsets.
    """
    digest, count, size = hashlib.sha256(), 0, 0
    for at, entries in fatbins(data):
        count += 1
        digest.update(b"fatbin %d" % at)
        for payload in driver_selects(entries, gpu):
            digest.update(payload)
            size += len(payload)
    return count, size, digest.hexdigest()
