"""Failures of the `provision` package. Each class has one code; the exit codes are documented.

0 done or fit, 1 unfit, 2 wrong usage or bad input, 3 nothing compatible, 4 the host is unfit, 5 an
engine, registry or index refused or was unreachable, 6 the build failed, 7 no verdict, 70 our own
bug, 130 interrupted.
"""

from __future__ import annotations

from enum import IntEnum

from images.errors import Failure


class Exit(IntEnum):
    """Exit codes of every command, as documented."""

    DONE = 0
    UNFIT = 1
    USAGE = 2
    NOTHING_COMPATIBLE = 3
    HOST_UNFIT = 4
    UNREACHABLE = 5
    BUILD_FAILED = 6
    NO_VERDICT = 7
    BUG = 70
    INTERRUPTED = 130


class BadInputError(Failure):
    """Invalid input: a word, a file or a value."""

    code = "bad-input"
    exit_code = Exit.USAGE


class ImageNotPullableError(BadInputError):
    """An image that other machines cannot pull, for a consumer that pulls it."""

    code = "image-not-pullable"


class HostFileError(BadInputError):
    """A host facts file that is unreadable, malformed or not in the documented format."""

    code = "bad-host-file"


class LockFileError(BadInputError):
    """A lock that is unreadable, not a valid PEP 751 file, or not from gpu-provision."""

    code = "bad-lock-file"


class CatalogError(Failure):
    """A row of the shipped catalog is invalid: a bug of gpu-provision."""

    code = "bad-catalog"
    exit_code = Exit.BUG


class NothingCompatibleError(Failure):
    """No combination satisfies host and request, and no rule has a code for it."""

    code = "nothing-compatible"
    exit_code = Exit.NOTHING_COMPATIBLE


HOST_UNFIT_CODES = frozenset({"gpu-not-driven", "gpu-not-nvidia"})
"""Refusals of the resolver that another request cannot avoid: the host itself must change."""


def exit_of_refusal(code: str) -> Exit:
    """The exit code of a plan that was refused with this code."""
    return Exit.HOST_UNFIT if code in HOST_UNFIT_CODES else Exit.NOTHING_COMPATIBLE


class IndexUnreachableError(Failure):
    """No index that could hold the wheels answered or had them."""

    code = "index-unreachable"
    exit_code = Exit.UNREACHABLE
