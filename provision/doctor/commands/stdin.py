"""Standard input, of which the beginning is looked at before a command reads all of it."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, BinaryIO, TextIO

from provision.doctor.lint import LIMIT_BYTES, Kind, kind_of_text

if TYPE_CHECKING:
    from typing_extensions import Buffer

NAME = "standard input"


class _Again(io.RawIOBase):
    """A stream of which the beginning was read: that, and then the rest. `owner` closes the stream
    when it goes.
    """

    def __init__(self, head: bytes, rest: BinaryIO, owner: object) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest
        self._owner = owner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        with memoryview(buffer) as into:
            piece = self._head.read(len(into)) or self._rest.read(len(into))
            into[: len(piece)] = piece
        return len(piece)


def begun(source: BinaryIO, most: int, owner: object = None) -> tuple[bytes, TextIO]:
    """At most so many bytes of a stream, and a text stream of the whole. A stream that has ended is
    not read again: a terminal would wait.
    """
    head = source.read(most)
    rest = source if len(head) == most else io.BytesIO()
    return head, io.TextIOWrapper(io.BufferedReader(_Again(head, rest, owner)))


def kind_of_stdin() -> Kind | None:
    """The kind of file that standard input is, from its content; None: a log. It can still be read
    from where it was.
    """
    stream = sys.stdin.buffer
    if stream.seekable():
        place = stream.tell()
        head = stream.read(LIMIT_BYTES + 1)
        stream.seek(place)
    else:
        head, sys.stdin = begun(stream, LIMIT_BYTES + 1, sys.stdin)
    return kind_of_text(head.decode("utf-8-sig", "replace")) if len(head) <= LIMIT_BYTES else None
