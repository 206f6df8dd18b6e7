"""How the making of a base can fail."""

from __future__ import annotations

from images.errors import Failure


class BootstrapError(Failure):
    """The base could not be made, or is not what was asked for."""

    code = "bootstrap-failed"
    exit_code = 6


class BootstrapUnfitError(Failure):
    """What is asked for does not exist: a suite, a package, or a base for another architecture."""

    code = "bootstrap-unfit"
    exit_code = 3


class BootstrapToolError(Failure):
    """Something that the making needs is missing on this host."""

    code = "bootstrap-tool-missing"
    exit_code = 5


class MirrorError(Failure):
    """The Debian mirror is out of reach, or cannot be trusted."""

    code = "mirror-unreachable"
    exit_code = 5


class NoSpaceError(Failure):
    """A disk is too full."""

    code = "no-space"
    exit_code = 6
