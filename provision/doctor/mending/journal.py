"""What was done to mend a cause, in a file of one's own: enough to go back, days later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from images.printable import printable
from provision.doctor.mending.backup import Kept
from provision.errors import BadInputError
from provision.files import write_whole

SCHEMA = 1
_LARGEST_BYTES = 1 << 20
Result: TypeAlias = Literal[
    "running", "mended", "unconfirmed", "not-mended", "failed", "interrupted", "undone"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that was run; `code` is None where it did not come to its end."""

    command: str
    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One fix of one cause. `started` is a UTC time (ISO 8601)."""

    code: str
    started: str
    kept: tuple[Kept, ...] = ()
    done: tuple[Done, ...] = ()
    result: Result = "running"

    def with_command(self, command: str, code: int | None) -> Journal:
        return replace(self, done=(*self.done, Done(command=command, code=code)))


def write_journal(path: Path, journal: Journal) -> None:
    """Whole or not at all; only the user reads it. OSError where the directory takes no file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = {"schema": SCHEMA, **asdict(journal)}
    write_whole(path, f"{json.dumps(content, indent=1)}\n".encode(), mode=0o600)


def read_journal(path: Path) -> Journal:
    """A journal as written above; anything else is a BadInputError."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error
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
            Kept(path=_absolute(row["path"]), copy=row["copy"] and _absolute(row["copy"]))
            for row in content["kept"]
        ),
        done=tuple(
            Done(command=_text(row["command"]), code=row["code"]) for row in content["done"]
        ),
        result=cast("Result", content["result"]),
    )
    if not all(one.copy is None or _lies_beside(one.copy, one.path) for one in journal.kept):
        raise ValueError("a copy does not lie beside its file")
    return journal


def _lies_beside(copy: str, path: str) -> bool:
    return copy.startswith(f"{path}.before-") and "/" not in copy[len(path) :]


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
