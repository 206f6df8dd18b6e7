"""Error texts as lines: of any size, encoding and hygiene, in flat memory.

A log is a file of 100 MB as well as a pasted screenful. What stands between a message and its
pattern is taken away here: colours, carriage returns of progress bars, the escapes of JSON logs,
UTF-16 of a Windows shell. Bytes stay bytes (read as Latin-1): a log may be in no encoding at all.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

CHUNK_BYTES = 1 << 14
# A line that is longer is read in pieces that share so much: no message falls between two.
OVERLAP = 1 << 10

_COLOURS = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_ESCAPED = re.compile(rb'\\+(?:n|r|t|"|/|\\|u00[0-9a-fA-F]{2}|x1b|033|e(?=\[))')
_MEANS = {b"n": b"\n", b"r": b"\n", b"t": b"\t", b'"': b'"', b"/": b"/", b"\\": b"\\"}


class LineCounter:
    """Counts the lines before places of a text. Places in ascending order read the text once."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._place = self._lines = 0

    def before(self, place: int) -> int:
        if place < self._place:
            self._place = self._lines = 0
        self._lines += self._text.count(b"\n", self._place, place)
        self._place = place
        return self._lines


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Pieces that end where a line ends, as far as lines do end; each is clean of colours."""
    reader = _decoded(stream)
    pending = b""
    while piece := next(reader, b""):
        pending += piece
        cut = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if cut:
            yield clean(pending[:cut])
            pending = pending[cut:]
        elif len(pending) >= CHUNK_BYTES:  # a line without an end
            yield clean(pending)
            pending = pending[-OVERLAP:]
    if pending:
        yield clean(pending)


def clean(piece: bytes) -> bytes:
    """Without colours and backspaces; every end of line is a newline."""
    if b"\x1b" in piece:
        piece = _COLOURS.sub(b"", piece)
    if b"\x08" in piece:
        piece = piece.replace(b"\x08", b"")
    if b"\r" in piece:
        piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return piece


def unescaped(piece: bytes) -> bytes | None:
    r"""The lines that hold escapes of a JSON log, with \n, \", \u001b and their like undone; None
    where no line does.
    """
    if b"\\" not in piece:
        return None
    escaped = b"\n".join(line for line in piece.split(b"\n") if b"\\" in line)
    plain = _ESCAPED.sub(_meaning, escaped)
    return None if plain == escaped else clean(plain)


def _meaning(found: re.Match[bytes]) -> bytes:
    name = found[0].lstrip(b"\\") or b"\\"
    if name[:1] == b"u":
        return bytes([int(name[1:], 16)])
    return _MEANS.get(name, b"\x1b")


def _decoded(stream: BinaryIO) -> Iterator[bytes]:
    first = stream.read(CHUNK_BYTES)
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        while first:
            yield decoder.decode(first).encode("utf-8", "replace")
            first = stream.read(CHUNK_BYTES)
        return
    while first:
        yield first
        first = stream.read(CHUNK_BYTES)
