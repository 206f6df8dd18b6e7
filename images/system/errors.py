"""Errors from what this machine lacks."""

from __future__ import annotations

from images.errors import Failure


class LoaderCacheError(Failure):
    """The loader's cache cannot be written for this image."""

    code = "loader-cache-unwritable"
    exit_code = 6


class NoRunnerError(Failure):
    """Nothing on this host can run an image."""

    code = "no-runner"
    exit_code = 5


class NoProgramError(Failure):
    """The image does not have the program that was to run in it."""

    code = "no-program"
    exit_code = 5

    def __init__(self, program: str) -> None:
        super().__init__(
            f"The image has no program {program}.",
            fix=f"Check that the image is the one you mean, and that {program} is on its PATH.",
        )
