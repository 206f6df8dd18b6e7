"""Reads named files; writes requested ones: checked early, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from images.errors import Failure, refuse_full
from images.text.printable import printable
from images.text.suggestions import no_such, or_nearby
from provision.errors import BadInputError

_SHOWN = 100


def read_named(
    kind: str, path: Path, most: int, error: type[Failure], fix: str, *, option: str = ""
) -> bytes:
    """The beginning of a file that is named, at most `most` bytes. `error`: there is none, or it
    cannot be read; `kind` is what it should be, `option` what named it.
    """
    shown = printable(str(path), limit=_SHOWN)
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError as exc:
        raise error(no_such(kind, shown, option=option), fix=or_nearby(path, fix)) from exc
    except OSError as exc:
        named = f"{option} {shown}" if option else f"The {kind} {shown}"
        raise error(f"{named} cannot be read: {exc.strerror}.", fix=fix) from exc


def refuse_unwritable(option: str, path: Path) -> None:
    """Check that a file can be written, before the work for it is done. BadInputError: it
    cannot.
    """
    folder = path.parent
    if not os.path.isdir(folder):  # noqa: PTH112  Path.is_dir raises for a name that is too long
        shown = printable(str(folder), limit=_SHOWN)
        raise _unwritable(option, path, f"there is no directory {shown}")
    try:
        path.lstat()
        if path.is_dir():
            raise _unwritable(option, path, "it is a directory")
        if path.is_mount() or not path.is_file():
            raise _unwritable(option, path, "it is not a file that can be replaced")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unwritable(option, path, str(error.strerror)) from error
    try:
        number, name = tempfile.mkstemp(dir=folder, prefix=".probe-")
        os.close(number)
        Path(name).unlink()
    except OSError as error:
        raise _unwritable(option, path, str(error.strerror)) from error


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """A reader finds the old file or the whole new one, never half of one."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_named(option: str, path: Path, data: bytes) -> None:
    """Write the file that an option names, whole or not at all. BadInputError: it cannot be
    written. DiskFullError: its disk is full.
    """
    try:
        write_whole(path, data)
    except OSError as error:
        refuse_full(error, f"{option} {printable(str(path), limit=_SHOWN)}")
        raise _unwritable(option, path, str(error.strerror)) from error


def _unwritable(option: str, path: Path, reason: str) -> BadInputError:
    return BadInputError(
        f"{option} {printable(str(path), limit=_SHOWN)} cannot be written: {reason}.",
        fix=f"Name a file in a directory that you may write to: {option} DIR/FILE",
    )
