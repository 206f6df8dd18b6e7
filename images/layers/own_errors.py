"""Errors from making layers of custom files on a base."""

from __future__ import annotations

from images.errors import Failure


class BaseUnfitError(Failure):
    """An image cannot be built on this base without running something in it."""

    code = "base-unfit"
    exit_code = 3


class BytecodeError(Failure):
    """The wheels' sources cannot be compiled reproducibly on this machine."""

    code = "bytecode-not-reproducible"
    exit_code = 6


class OwnFilesError(Failure):
    """The suite's files, which each image gets, are missing or invalid."""

    code = "own-files-unreadable"
    exit_code = 2


class ProjectFilesError(Failure):
    """A file of the user's project cannot be put into an image."""

    code = "project-files-unreadable"
    exit_code = 2
