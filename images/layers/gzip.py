"""Writes gzip members whose bytes are the same on every machine, without a library's compressor.

zlib, zlib-ng and ISA-L each compress differently, and change it between versions: a layer's digest
would depend on the machine's library. What we compress ourselves is small (tar headers, scripts, a
list of files), so we do it here, with deflate's fixed code: zeros as runs, and on request repeated
strings. Inflating needs no such care: every library gives the same result.

https://www.rfc-editor.org/rfc/rfc1951 https://www.rfc-editor.org/rfc/rfc1952
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from collections.abc import Iterable, Iterator

HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""A member's header: deflate, no name, no time, no system."""

_TRAILER = struct.Struct("<II")
_BLOCK = struct.Struct("<BHH")
_MOST_STORED = 0xFFFF  # bytes of a stored block
# One number for all would be copied at every shift.
_FLUSH_BITS = 1 << 13
_LONGEST, _SHORTEST = 258, 3  # of a match
_SHORTEST_FOUND = 5  # a shorter match is hardly smaller than its literals
_WINDOW = 1 << 15
_FIXED_BLOCK = (0b011, 3)  # the last block, in the fixed code
_END_OF_BLOCK = (0, 7)
_ZEROS = re.compile(rb"\0{5,4096}")

_Bits = tuple[int, int]
"""A number, and how many of its bits to write, lowest first."""


def trailer(crc: int, size: int) -> bytes:
    """The end of a member: the checksum, and the size modulo 2^32."""
    return _TRAILER.pack(crc, size & 0xFFFFFFFF)


def pack(content: bytes, *, search: bool = False) -> bytes:
    """Write bytes as one member. `search`: find repeated strings, at a second per megabyte."""
    return b"".join(
        (HEAD, deflate(content, search=search), trailer(zlib.crc32(content), len(content)))
    )


def deflate(content: bytes, *, search: bool = False) -> bytes:
    """Deflate bytes, or store them if that is smaller."""
    packed = _join(
        [_FIXED_BLOCK, *(_matched(content) if search else _runs(content)), _END_OF_BLOCK]
    )
    stored = len(content) + _BLOCK.size * max(1, -(-len(content) // _MOST_STORED))
    return packed if len(packed) < stored else b"".join(store(content, last=True))


def store(content: bytes, *, last: bool) -> Iterator[bytes]:
    """Write bytes as stored blocks; `last`: the last block ends the stream."""
    for at in range(0, max(1, len(content)), _MOST_STORED):
        piece = content[at : at + _MOST_STORED]
        final = last and at + _MOST_STORED >= len(content)
        yield _BLOCK.pack(final, len(piece), len(piece) ^ 0xFFFF)
        yield piece


def _runs(content: bytes) -> Iterator[_Bits]:
    """Encode bytes as literals and zeros as runs: tar headers consist of these."""
    at = 0
    for match in _ZEROS.finditer(content):
        begin, end = match.span()
        if begin > at:
            yield from _letters(content[at:begin])
        yield _zeros(end - begin)
        at = end
    if at < len(content):
        yield from _letters(content[at:])


def _matched(content: bytes) -> Iterator[_Bits]:
    """Encode literals, and repeated strings as matches of the last one with the same start.

    Greedy, with one candidate: it halves text, and is deterministic.
    """
    seen: dict[bytes, int] = {}
    find = seen.get
    at = since = 0
    end = len(content) - _SHORTEST_FOUND
    while at <= end:
        start = content[at : at + _SHORTEST_FOUND]
        found = find(start)
        seen[start] = at
        if found is None or at - found > _WINDOW:
            at += 1
            continue
        length = _common(content, found, at)
        if since < at:
            yield from _letters(content[since:at])
        yield _match(length, at - found)
        for skipped in range(at + 1, min(at + length, end + 1), 2):
            seen[content[skipped : skipped + _SHORTEST_FOUND]] = skipped
        at += length
        since = at
    if since < len(content):
        yield from _letters(content[since:])


def _common(content: bytes, one: int, other: int) -> int:
    """The number of equal bytes from two offsets on, up to the longest match."""
    low = _SHORTEST_FOUND
    high = min(_LONGEST, len(content) - other)
    while low < high:  # binary search for the longest equal part
        middle = (low + high + 1) // 2
        if content[one : one + middle] == content[other : other + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _letters(content: bytes) -> Iterator[_Bits]:
    """Encode literals. Those below 144 have eight bits: for ASCII a translation table is enough."""
    if content.isascii():
        yield int.from_bytes(content.translate(_EIGHT_BITS), "little"), 8 * len(content)
        return
    for byte in content:
        yield (_EIGHT_BITS[byte], 8) if byte < 144 else (_reversed(0x190 + byte - 144, 9), 9)


# The fields of tar headers leave the same few runs, thousands of times.
@functools.lru_cache(maxsize=2048)
def _zeros(count: int) -> _Bits:
    """Encode a run: one zero, and matches that repeat the byte before them."""
    parts = [(_EIGHT_BITS[0], 8)]
    left = count - 1
    while left >= _SHORTEST:
        # the rest after a match must be empty, or long enough for another
        length = left if left <= _LONGEST else min(_LONGEST, left - _SHORTEST)
        parts.append(_match(length, 1))
        left -= length
    parts += [(_EIGHT_BITS[0], 8)] * left
    value = bits = 0
    for part, width in parts:
        value |= part << bits
        bits += width
    return value, bits


def _match(length: int, distance: int) -> _Bits:
    value, bits = _LENGTHS[length]
    code, extra, more = _distance(distance)
    return value | _FIVE_BITS[code] << bits | extra << (bits + 5), bits + 5 + more


def _distance(distance: int) -> tuple[int, int, int]:
    """A distance's code, its extra bits, and their number."""
    if distance <= 4:
        return distance - 1, 0, 0
    more = (distance - 1).bit_length() - 2
    code = 2 * more + ((distance - 1) >> more)
    return code, (distance - 1) & ((1 << more) - 1), more


def _length(length: int) -> _Bits:
    """A length's code with its extra bits."""
    if length == _LONGEST:
        code, extra, more = 285, 0, 0
    elif length <= 10:
        code, extra, more = 254 + length, 0, 0
    else:
        more = (length - 3).bit_length() - 3
        code = 257 + 4 * more + ((length - 3) >> more)
        extra = (length - 3) & ((1 << more) - 1)
    bits = 7 if code < 280 else 8
    value = _reversed(code - 256 if code < 280 else 0xC0 + code - 280, bits)
    return value | extra << bits, bits + more


def _reversed(code: int, bits: int) -> int:
    """Reverse a code's bits: deflate writes Huffman codes highest bit first."""
    return int(f"{code:0{bits}b}"[::-1], 2)


def _join(parts: Iterable[_Bits]) -> bytes:
    """Concatenate numbers, lowest bits first."""
    done = []
    held = bits = 0
    for value, width in parts:
        held |= value << bits
        bits += width
        if bits >= _FLUSH_BITS:
            whole = bits >> 3
            written = held.to_bytes(whole + 1, "little")
            done.append(written[:whole])
            held = written[whole]
            bits &= 7
    done.append(held.to_bytes((bits + 7) >> 3, "little"))
    return b"".join(done)


_EIGHT_BITS = bytes(_reversed(0x30 + byte, 8) if byte < 144 else 0 for byte in range(256))
_FIVE_BITS = tuple(_reversed(code, 5) for code in range(32))
_LENGTHS = {length: _length(length) for length in range(_SHORTEST, _LONGEST + 1)}
