"""Where the bytes of a wheel come from: a file on this machine, or anything like one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO, Protocol

from images.net.http import PIECE_BYTES
from images.text.suggestions import no_such, or_nearby
from images.wheels.errors import WheelUnreadableError

_FIX = "Give the path or the address of a .whl file."
Progress = Callable[[str, int, int], None]
"""Called with the name of what is read, how many bytes of it were read, and the total."""


class ByteSource(Protocol):
    """Bytes that can be read from any offset; `shown` contains no secrets."""

    shown: str
    file_name: str
    size: int
    notes: tuple[str, ...]

    @property
    def bytes_read(self) -> int:
        """The bytes that were downloaded or read from disk."""

    def stream(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """Yield `length` bytes from `offset` on, in pieces; an error if they are not there."""

    def close(self) -> None:
        """Release its resources."""


class FileSource:
    """A wheel on this machine."""

    def __init__(
        self, file: BinaryIO, *, shown: str, file_name: str, notes: tuple[str, ...] = ()
    ) -> None:
        self._file = file
        self.shown = shown
        self.file_name = file_name
        self.size = os.fstat(file.fileno()).st_size
        self.fetched: int | None = None
        """The bytes downloaded, if the file was fetched as a whole."""
        self.notes = notes
        self._read = 0

    @property
    def bytes_read(self) -> int:
        """The bytes read from it, or downloaded."""
        return self._read if self.fetched is None else self.fetched

    def stream(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """Yield `length` bytes from `offset` on, in pieces."""
        end = offset + length
        while offset < end:
            try:
                self._file.seek(offset)
                piece = self._file.read(min(PIECE_BYTES, end - offset))
            except OSError as error:
                raise _unreadable(self.shown, error.strerror or str(error)) from error
            if not piece:
                raise _unreadable(self.shown, f"it ends at byte {offset}, {end} was needed")
            offset += len(piece)
            self._read += len(piece)
            yield piece

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_file(name: str) -> FileSource:
    """Open a wheel on this machine. WheelUnreadableError: it is missing or not a regular file."""
    path = Path(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
            raise _unreadable(name, "it is not a regular file")
        file = path.open("rb")
    except FileNotFoundError as error:
        raise WheelUnreadableError(no_such("wheel", name), fix=or_nearby(name, _FIX)) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise _unreadable(name, getattr(error, "strerror", None) or str(error)) from error
    return FileSource(file, shown=name, file_name=path.name)


def _unreadable(name: str, why: str) -> WheelUnreadableError:
    return WheelUnreadableError(f"{name} cannot be read: {why}.", fix=_FIX)
