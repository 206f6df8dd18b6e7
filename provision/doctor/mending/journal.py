"""The journal of a fix, in a separate file: enough to undo it days later."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from images.text.printable import printable
from provision.doctor.mending.backup import KeptFile
from provision.errors import BadInputError
from provision.output.files import write_whole

SCHEMA = 1
_LARGEST_BYTES = 1 << 20
_COPY = re.compile(r"\.before-\d{8}T\d{6}Z(?:\.\d{1,9})?")
Result: TypeAlias = Literal[
    "running", "mended", "unconfirmed", "not-mended", "failed", "interrupted", "undone"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that was run; `code` is None if it did not finish."""

    command: str
    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One fix of one cause. `started` is a UTC time (ISO 8601)."""

    code: str
    started: str
    kept: tuple[KeptFile, ...] = ()
    done: tuple[Done, ...] = ()
    result: Result = "running"

    def with_command(self, command: str, code: int | None) -> Journal:
        return replace(self, done=(*self.done, Done(command=command, code=code)))


def write_journal(path: Path, journal: Journal) -> None:
    """Writes all or nothing; only the user can read it. OSError if the directory is not
    writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = {"schema": SCHEMA, **asdict(journal)}
    write_whole(path, f"{json.dumps(content, indent=1)}\n".encode(), mode=0o600)


def read_journal(path: Path) -> Journal:
    """Read a journal written by `write_journal`, which only the user (or root) can have written;
    anything else is a BadInputError. It may have been moved to another directory.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            foreign = _foreign(os.fstat(file))
            data = b"" if foreign else os.read(file, _LARGEST_BYTES + 1)
        finally:
            os.close(file)
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        why = "it is a symbolic link" if is_link else str(error.strerror)
        raise _unreadable(path, why) from error
    if foreign:
        raise _unreadable(path, foreign)
    try:
        if len(data) > _LARGEST_BYTES:
            raise ValueError("it is too large")  # noqa: TRY301  one sentence for all reasons
        return _parsed(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unreadable(path, "it is no journal of --fix, or not whole") from error


def _parsed(content: Any) -> Journal:  # noqa: ANN401  JSON values are Any until they are rows
    if content["schema"] != SCHEMA or content["result"] not in get_args(Result):
        raise ValueError("another schema")
    journal = Journal(
        code=_text(content["code"]),
        started=_text(content["started"]),
        kept=tuple(
            KeptFile(
                path=_absolute(row["path"]),
                copy=row["copy"] and _absolute(row["copy"]),
                real=row.get("real") and _absolute(row["real"]),
            )
            for row in content["kept"]
        ),
        done=tuple(
            Done(command=_text(row["command"]), code=row["code"]) for row in content["done"]
        ),
        result=cast("Result", content["result"]),
    )
    if not all(one.copy is None or _is_copy(one.copy, one.path) for one in journal.kept):
        raise ValueError("a copy is not named as ours are")
    if not all(one.code is None or isinstance(one.code, int) for one in journal.done):
        raise TypeError("an exit code is not a number")
    return journal


def _foreign(status: os.stat_result) -> str:
    """Why another user may have written a file; "" if nobody can have."""
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid not in {os.geteuid(), 0}:
        return "it belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write to it"
    return ""


def _is_copy(copy: str, path: str) -> bool:
    return copy.startswith(path) and _COPY.fullmatch(copy[len(path) :]) is not None


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _absolute(value: Any) -> str:  # noqa: ANN401
    if not _text(value).startswith("/") or "\0" in value:
        raise ValueError("no path")
    return str(value)


def _unreadable(path: Path, why: str) -> BadInputError:
    shown = printable(str(path))
    return BadInputError(
        f"The journal {shown} cannot be read: {why}.",
        fix=f"Name one of the files that --fix wrote: ls {shown.rpartition('/')[0] or '.'}",
    )
