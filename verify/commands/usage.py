"""Shared by the commands: a parser that raises, and writing files atomically."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from typing import Any, NoReturn, Optional

from verify.model.check import UsageError

CALLED = "GPU_PROVISION_CALLED"


def as_typed(text: str) -> str:
    """A help text whose commands begin as they were typed: `provision` runs some of them, and says
    so in the environment.
    """
    words = os.environ.get(CALLED)
    return (
        re.sub(r"\bverify (?=batch|compare|monitor)", lambda _: words + " ", text)
        if words
        else text
    )


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError for wrong usage."""

    def __init__(self, *, prog: str, epilog: Optional[str] = None, **options: Any) -> None:
        epilog = None if epilog is None else as_typed(epilog)
        super().__init__(prog=as_typed(prog), epilog=epilog, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def check_writable(option: str, path: str) -> None:
    """Check before the work is done that the file can be written."""
    if os.path.lexists(path) and (os.path.ismount(path) or not os.path.isfile(path)):
        said = "{} {}: not a regular file; choose another name"
        raise UsageError(said.format(option, path))
    probe = _partial(path)
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
        os.unlink(probe)
    except OSError as error:
        raise UsageError("{} {}: {}".format(option, path, error.strerror or error)) from error


def write_whole(path: str, text: str) -> None:
    """Write a file atomically: a reader never sees half of it."""
    partial = _partial(path)
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def columns() -> int:
    """The columns of a line on standard output: those of its terminal, from 80 to 120 (longer lines
    are hard to read); 80 elsewhere, so that a file has the same lines everywhere.
    """
    found = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    return min(max(found, 80), 120)


_COLOURS = {"PASS": "32", "FAIL": "31", "ERROR": "31", "SKIP": "33", "Yes": "32;1", "No": "31;1"}


def show(text: str, *, colour: bool = False) -> None:
    """Write to standard output, with "?" for characters that are not printable or not in its
    encoding: names in reports are untrusted and must not control a terminal. On a terminal the
    words that lines begin with are coloured, unless NO_COLOR is set (no-color.org).
    """
    encoding = sys.stdout.encoding or "utf-8"
    safe = printable(text).encode(encoding, "replace").decode(encoding)
    if colour and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        words = "|".join(_COLOURS)
        safe = re.sub("(?m)^({})\\b".format(words), _coloured, safe)
    sys.stdout.write(safe)
    sys.stdout.flush()


def _coloured(match: "re.Match[str]") -> str:
    return "\x1b[{}m{}\x1b[0m".format(_COLOURS[match.group()], match.group())


def printable(text: str) -> str:
    """The text with "?" for unprintable characters except newlines, tabs and no-break spaces."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


def _partial(path: str) -> str:
    """A temporary path in the file's folder, so that the rename is atomic. It does not end in a
    suffix that a collector of *.prom or *.xml would pick up.
    """
    return "{}.{}.partial".format(path, os.getpid())
