"""Reads the loader's cache (ld.so.cache): where this host's libraries are, by their names.

https://sourceware.org/git/?p=glibc.git;a=blob;f=sysdeps/generic/dl-cache.h
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("=20sIIB3xI12x")
_ENTRY = struct.Struct("=iIIIQ")
_MOST_LIBRARIES = 1_000_000


def cached_libraries(content: bytes) -> Iterator[tuple[str, str]]:
    """Give (name, path) in the cache's order, which is not that of the loader's choice for equal
    names: first is first. What is damaged gives nothing.
    """
    start = content.find(_MAGIC)
    if start < 0 or len(content) < start + _HEADER.size:
        return
    _, count, _, _, _ = _HEADER.unpack_from(content, start)
    table = start + _HEADER.size
    if count > _MOST_LIBRARIES or table + count * _ENTRY.size > len(content):
        return
    for number in range(count):
        _, key, value, _, _ = _ENTRY.unpack_from(content, table + number * _ENTRY.size)
        name, path = _text(content, start + key), _text(content, start + value)
        if name and path.startswith("/"):
            yield name, path


def _text(content: bytes, at: int) -> str:
    end = content.find(b"\0", at) if 0 <= at < len(content) else -1
    return content[at:end].decode("utf-8", "replace") if end >= 0 else ""
