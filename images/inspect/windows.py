"""Parts of a file that comes in pieces and is too large to be kept.

A reader requests parts as if the whole file were there. A part that is not kept raises `NotKept`:
if it is still to come, it will be kept; if it has passed, the file must be fed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HEAD_BYTES = 64 << 20
"""This much of a file's beginning is always kept. Measured: libtorch_cuda.so 2.0.1 has its versions
at 11 MB, and the table with their location after 600 MB."""
_MOST_KEPT_BYTES = 192 << 20


class NotKept(LookupError):  # noqa: N818  control flow, handled by the readers
    """A requested part of the file is not kept."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(begin, end)
        self.begin = begin
        self.end = end


class OutsideFile(ValueError):  # noqa: N818  the caller adds the file's name
    """A requested part is outside of the file."""


@dataclass(slots=True)
class _Window:
    begin: int
    end: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def is_whole(self) -> bool:
        return len(self.data) == self.end - self.begin


class Windows:
    """The parts of a file of `size` bytes that are kept."""

    def __init__(self, size: int, *, head: int = HEAD_BYTES) -> None:
        self.size = size
        self.at = 0
        """How much of the file has arrived."""
        self._windows = [_Window(0, min(size, head))]
        self._last = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        self.at += len(piece)
        self._last = piece
        for window in self._windows:
            self._fill(window)

    def read(self, begin: int, end: int) -> bytes:
        """Return a part; `NotKept` if it is not here."""
        if not 0 <= begin <= end <= self.size:
            raise OutsideFile(f"bytes {begin} to {end} of {self.size}")
        for window in self._windows:
            if window.begin <= begin and end <= window.begin + len(window.data):
                return bytes(window.data[begin - window.begin : end - window.begin])
        raise NotKept(begin, end)

    def want(self, part: NotKept) -> int | None:
        """Keep a part from now on; returns the offset where it is complete, None: it has passed."""
        for window in self._windows:
            if window.begin <= part.begin and part.end <= window.end:
                comes = window.begin + len(window.data) >= self.at
                return part.end if comes else None
        kept = sum(window.end - window.begin for window in self._windows)
        if kept + part.end - part.begin > _MOST_KEPT_BYTES:
            raise OutsideFile(f"{kept + part.end - part.begin} bytes to be kept")
        window = _Window(part.begin, part.end)
        self._windows.append(window)
        self._fill(window)  # it may begin in the piece that has just come
        return part.end if window.begin + len(window.data) >= self.at or window.is_whole else None

    def _fill(self, window: _Window) -> None:
        """Add the last piece's part that belongs to a window."""
        begin = self.at - len(self._last)
        reached = window.begin + len(window.data)
        if begin <= reached < self.at and not window.is_whole:
            window.data += self._last[reached - begin : window.end - begin]

    def again(self) -> None:
        """Prepare for feeding the file again from its beginning; drops the data kept so far."""
        self.at = 0
        self._last = b""
        for window in self._windows:
            window.data = bytearray()
