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
