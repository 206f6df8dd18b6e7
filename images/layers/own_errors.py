"""How the making of our own layers on a base can fail."""

from __future__ import annotations

from images.errors import Failure


class BaseUnfitError(Failure):
    """A base that an image cannot be built on without running something in it."""

    code = "base-unfit"
    exit_code = 3


class BytecodeError(Failure):
    """The wheels' sources cannot be compiled such that every machine gets the same bytes."""

    code = "bytecode-not-reproducible"
    exit_code = 6


class OwnFilesError(Failure):
    """Our own files are not where, or not what, they should be."""

    code = "own-files-unreadable"
    exit_code = 2
