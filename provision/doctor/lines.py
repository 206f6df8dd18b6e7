"""Error texts as lines: of any size, encoding and hygiene, in flat memory.

A log is a file of 100 MB as well as a pasted screenful. What stands between a message and its
pattern is taken away here: colours, carriage returns of progress bars, the escapes of JSON logs,
UTF-16 of a Windows shell, and its wrapped lines. Bytes stay bytes (read as Latin-1): a log may be
in no encoding at all.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from provision.doctor.model import PartlyRead

CHUNK_BYTES = 1 << 14
STEPS = 200_000  # for each of the first lines, the last ones, wrapped ones, and further hits
_STEP_BYTES = 1 << 11
# A line that is longer is read in pieces that share so much: no message falls between two.
OVERLAP = 1 << 10
# PowerShell prints this for what a program writes to its standard error, and wraps all of that at
# the width of its console.
_POWERSHELL = b"+ CategoryInfo "
# A text with wrapped lines was pasted, or redirected by hand, and is no longer than this.
WRAPPED_LIMIT = 1 << 20  # bytes
_LINES_BEFORE = 20  # lines of the first message that stand before the mark
_LONGEST_JOINED = 1 << 12  # bytes: a longer message stays in parts
_WIDTH_FROM = 2_000  # lines that the console's width is measured from

_WRAP_FROM, _WRAP_TO = 56, 78

_COLOURS = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_ESCAPED = re.compile(rb'\\+(?:n|r|t|"|/|\\|u00[0-9a-fA-F]{2}|x1b|033|e(?=\[))')
_MEANS = {b"n": b"\n", b"r": b"\n", b"t": b"\t", b'"': b'"', b"/": b"/", b"\\": b"\\"}


class Work:
    """How much a text may cost, in steps: about as long as it takes to try a pattern on a line. So
    the same text is always read as far. `seconds`: for a machine on which even that takes long.
    """

    def __init__(self, steps: int = STEPS, seconds: float = 120.0) -> None:
        self._steps = self._left = steps
        self._until = time.monotonic() + seconds
        self.partly: PartlyRead | None = None

    def try_on(self, text: bytes) -> None:
        self._left -= 1 + len(text) // _STEP_BYTES

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._until

    def renew(self) -> None:
        """As many steps for something else."""
        self._left = self._steps


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


def unwrap_powershell(text: bytes) -> bytes:
    """Join the lines that PowerShell wrapped. Empty lines follow each joined one, so that every
    line keeps its number. PowerShell breaks after a space, which stays, or inside a word that fills
    the width.
    """
    lines = [line.rstrip(b"\r") for line in text.split(b"\n")]
    lengths = [len(line.decode("utf-8", "replace")) for line in lines]
    first = next((i for i, line in enumerate(lines) if _POWERSHELL in line), len(lines))
    measured = slice(first, first + _WIDTH_FROM)
    width = _console_width(lines[measured], lengths[measured])
    for i in range(len(lines) - 1, max(first - _LINES_BEFORE, 0), -1):
        before, length = lines[i - 1], lengths[i - 1]
        is_wrapped = before.strip() and (before.endswith(b" ") or length == width)
        is_part = len(lines[i]) < _LONGEST_JOINED and lines[i].strip()
        if is_wrapped and is_part and length <= width:
            lines[i - 1 : i + 1] = [before + lines[i], b""]
    return b"\n".join(lines)


def unwrapped(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that a terminal or a mail may have broken, put together again, both ways: with a blank
    between them, and without. Each with the number of its first line.
    """
    longest = max(map(len, lines), default=0)
    width = min(longest, _WRAP_TO)
    for i, line in enumerate(lines[:-1]):
        together = [line.rstrip()]
        for following in lines[i + 1 : i + 4]:
            end = together[-1]
            word = following.split(maxsplit=1)[0] if following.strip() else b""
            if len(end) < _WRAP_FROM or not word or len(end) + 1 + len(word) <= width:
                break
            together.append(following.strip(b" \t|\r"))
        if len(together) > 1:
            yield i + 1, b" ".join(together)
            yield i + 1, b"".join(together)


def _console_width(lines: Sequence[bytes], lengths: Sequence[int]) -> int:
    """The width of the console, in characters, or 0: the longest line that ends in a space, unless
    the next word would have fitted on most lines up to that length.
    """
    ends = [
        (length, length + len(after.split(maxsplit=1)[0]))
        for line, length, after in zip(lines, lengths, lines[1:], strict=False)
        if line.endswith(b" ") and line.strip() and after.strip()
    ]
    for width in sorted({length for length, _ in ends}, reverse=True):
        within = [more > width for length, more in ends if length <= width]
        if 2 * sum(within) >= len(within):
            return width
    return 0


def _decoded(stream: BinaryIO) -> Iterator[bytes]:
    pieces = _in_utf8(stream)
    begun: list[bytes] = []
    for piece in pieces:
        begun.append(piece)
        if len(begun) * CHUNK_BYTES > WRAPPED_LIMIT:
            break
    else:
        text = b"".join(begun)
        if _POWERSHELL in text:
            text = unwrap_powershell(text)
            begun = [text[i : i + CHUNK_BYTES] for i in range(0, len(text), CHUNK_BYTES)]
    yield from begun
    yield from pieces


def _in_utf8(stream: BinaryIO) -> Iterator[bytes]:
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
