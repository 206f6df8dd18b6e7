"""What `provision doctor` is given: which of its words are logs, files, images or error texts."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from images.text.printable import printable
from images.text.suggestions import no_such, or_nearby
from provision.doctor.reasons import reads_like_a_reason
from provision.errors import BadInputError

STDIN = "-"
_LOGS = frozenset({".log", ".out", ".err"})
_WORDS_OF_A_NAME = 2
# ModuleNotFoundError, torch.OutOfMemoryError:, cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
_ERROR_NAME = re.compile(r"(?:\w+\.)*\w*(?:[a-z]Error|Exception|_ERROR_)\w*(?::.*)?", re.ASCII)
# torch.cuda.is_available() is False, x == None: parts of a program or of what it printed
_CODE = re.compile(r"\w\(|[=!]=|\bis (?:True|False|None)\b|\n")
_TEXTS = _LOGS | {".txt"}  # endings that no image's name has


class UnreadableLogError(BadInputError):
    """A log that cannot be opened."""

    code = "unreadable-log"


def meant_by(text: str) -> Literal["image", "file", "log"]:
    """What an argument names. Images can be directories and archives, too."""
    from provision.doctor.commands.stdin import kind_of_stdin
    from provision.doctor.lint import is_of_a_kind, kind_of

    path = Path(text)
    if text == STDIN:
        return "file" if kind_of_stdin() else "log"
    if text.startswith(("oci:", "oci-archive:", "docker-archive:", "docker-daemon:", "docker://")):
        return "image"
    if os.path.isfile(path):  # noqa: PTH113  Path's raises for a name that is too long
        if text.endswith((".tar", ".tar.gz", ".tgz")):
            return "image"
        # one line of a log may read like a requirement
        return "log" if path.suffix in _LOGS or not is_of_a_kind(path) else "file"
    if os.path.isdir(path):  # noqa: PTH112
        return "image"
    if is_error_text(text):
        return "log"
    if kind_of(path) or path.suffix in _TEXTS or text.startswith(("/", "./", "../")):
        raise no_file(text, "Name a file, - for standard input, or an image.")
    return "image"


def is_error_text(text: str) -> bool:
    """Whether an argument that names no file is an error message itself: of several words, which
    no image's name has, or one that only programs that fail print.
    """
    if len(text.split()) < _WORDS_OF_A_NAME:
        is_shouted = text[:1].isupper() and reads_like_a_reason(text)  # "Killed"
        return is_shouted or _ERROR_NAME.fullmatch(text) is not None
    if Path(text).suffix in _TEXTS:
        return False
    return ": " in text or _CODE.search(text) is not None or reads_like_a_reason(text)


def no_file(text: str, otherwise: str) -> UnreadableLogError:
    """The error that there is no such file, with one that has nearly its name, or a fix."""
    shown = printable(text, limit=200)
    return UnreadableLogError(no_such("file", shown), fix=or_nearby(text, otherwise))


def name_of_log(log: str) -> str:
    """What a log is called in an answer."""
    if log == STDIN:
        return "stdin"
    return "the text" if _is_given_itself(log) else log


def _is_given_itself(log: str) -> bool:
    return not os.path.exists(log) and is_error_text(log)  # noqa: PTH110  as above


@contextlib.contextmanager
def opened(log: str) -> Iterator[BinaryIO]:
    """The bytes of a log. UnreadableLogError: it cannot be opened."""
    if log == STDIN:
        yield sys.stdin.buffer
        return
    if _is_given_itself(log):
        yield io.BytesIO(log.encode("utf-8", "surrogateescape"))
        return
    try:
        stream = Path(log).open("rb")  # noqa: SIM115  closed below
    except FileNotFoundError as error:
        raise no_file(log, "Name a file, or - for standard input.") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableLogError(
            f"{log[:200]!r} cannot be read: {why}.", fix="Name a file, or - for stdin."
        ) from error
    with stream:
        try:
            yield stream
        except IsADirectoryError as error:
            raise UnreadableLogError(
                f"{log[:200]!r} is a directory.", fix="Name a file in it."
            ) from error
