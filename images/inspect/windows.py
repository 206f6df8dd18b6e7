"""Parts of a file that comes in pieces and is too large to be kept.

A reader requests parts as if the whole file were there. A part that is not kept raises `NotKept`:
if it is still to come, it will be kept; if it has passed, the file must be fed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

HEAD_BYTES = 128 << 20
"""At most this much of a file's beginning is kept at first. Measured: libtensorflow_cc.so.2 2.21
has names and relocations up to 120 MB, and the table with their location after 580 MB.
"""
_SHORTEST_HEAD_BYTES = 16 << 20
_MOST_KEPT_BYTES = 256 << 20


class NotKept(LookupError):  # noqa: N818  control flow, handled by the readers
    """A requested part of the file is not kept. `soon` are parts that are needed next: if they are
    kept as well, the file need not come again for each of them.
    """

    def __init__(self, begin: int, end: int, soon: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(begin, end)
        self.begin = begin
        self.end = end
        self.soon = soon


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
        for begin, end in part.soon:
            if self._window(begin, end) is None and self._kept() + end - begin <= _MOST_KEPT_BYTES:
                self._keep(begin, end)
        window = self._window(part.begin, part.end)
        if window is None:
            kept = self._kept() + part.end - part.begin
            if kept > _MOST_KEPT_BYTES:
                raise OutsideFile(f"{kept} bytes to be kept")
            window = self._keep(part.begin, part.end)
        comes = window.is_whole or window.begin + len(window.data) >= self.at
        return part.end if comes else None

    def _kept(self) -> int:
        return sum(window.end - window.begin for window in self._windows)

    def _window(self, begin: int, end: int) -> _Window | None:
        return next((w for w in self._windows if w.begin <= begin and end <= w.end), None)

    def _keep(self, begin: int, end: int) -> _Window:
        window = _Window(begin, end)
        self._windows.append(window)
        self._fill(window)  # it may begin in the piece that has just come
        return window

    def shorten_head(self, end: int) -> None:
        """Keep less of the beginning: only what ends here, or a little more."""
        head = self._windows[0]
        head.end = min(head.end, max(end, _SHORTEST_HEAD_BYTES))
        del head.data[head.end :]

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
