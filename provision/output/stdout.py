"""Results on stdout: complete, flushed, and without an error if the reader has gone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TextIO

from images.errors import FULL, DiskFullError, Failure
from images.text.printable import printable_json, printable_lines
from provision.errors import Exit
from provision.output.invocation import as_called
from provision.output.style import painted


class OutputError(Failure):
    """The result cannot be written to stdout."""

    code = "output-unwritable"
    exit_code = Exit.USAGE


def open_closed_streams() -> None:
    """With `>&-` a stream is None at start, and the next opened file would get its number."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def flush(stream: TextIO) -> None:
    """Write out what is buffered; discard it if nobody reads any more."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Discard whatever is still written to this stream."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_json(value: object) -> None:
    """A result for programs on stdout: JSON, with every character preserved. It may be read on a
    terminal, too, so unprintable characters are escaped.
    """
    _print(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_result(text: str) -> None:
    """A result for people on stdout, with its commands as they are typed, and on a terminal with
    colours. Control characters are removed: names in it come from images, logs and registries.
    """
    _print(painted(printable_lines(as_called(text))))


def print_either(as_json: bool, value: object, text: Callable[[], str]) -> None:  # noqa: FBT001
    """A result for programs, or for people."""
    if as_json:
        print_json(value)
    else:
        print_result(text())


def print_document(text: str) -> None:
    """A file's text on stdout, which other machines may read. Control characters are removed."""
    _print(printable_lines(text))


def _print(text: str) -> None:
    """A closed reader (| head) is not an error; a full disk is."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        unwritable = OutputError(
            f"The result cannot be written to standard output: {error.strerror}.",
            fix="Free space where it is written, or write it elsewhere.",
        )
        if error.errno in FULL:
            unwritable.code, unwritable.exit_code = DiskFullError.code, Exit.HOST_UNFIT
        raise unwritable from error
