"""Errors from building a base."""

from __future__ import annotations

from images.errors import Failure


class BootstrapError(Failure):
    """The base could not be built, or does not match the request."""

    code = "bootstrap-failed"
    exit_code = 6


class BootstrapUnfitError(Failure):
    """The request cannot be met: no such suite, package, or architecture."""

    code = "bootstrap-unfit"
    exit_code = 3


class BootstrapToolError(Failure):
    """This Python lacks a module (lzma) that Debian packages need."""

    code = "bootstrap-tool-missing"
    exit_code = 5


class MirrorError(Failure):
    """The Debian mirror is unreachable, or cannot be trusted."""

    code = "mirror-unreachable"
    exit_code = 5
