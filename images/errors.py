"""The base class of every failure that a user can see.

It is in the lowest package, so that every package can raise it and `provision.cli.main` catches it.
"""

from __future__ import annotations

import errno

from images.text.printable import printable_lines


class Failure(Exception):  # noqa: N818  users see a failure, and the subclasses end in Error
    """A failure and its fix: what was found, what was needed and what to type.

    `code` is stable and kebab-case; `docs/codes.md` lists it with the first sentence of the class's
    docstring. `exit_code` is the process's.
    Message and fix go to terminals, logs and reports, so control characters are removed from them.
    `detail` holds raw output of a failed command; it is shown below the message.
    `log` is all of that output that was kept; the doctor looks for the root cause in it.
    """

    code: str = "failure"
    exit_code: int = 70

    def __init__(self, message: str, *, fix: str, detail: str = "", log: str = "") -> None:
        self.message = printable_lines(message)
        self.fix = printable_lines(fix)
        super().__init__(self.message)
        self.detail = detail
        self.log = log


class DiskFullError(Failure):
    """A disk has too little space for what is to be written; the message names the disk."""

    code = "disk-full"
    exit_code = 4


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""How the system says that a disk is full, or that this user may not use more of it."""


def full_disk(error: OSError, what: str) -> DiskFullError | None:
    """The error if a full disk is why `what` could not be written."""
    if error.errno not in FULL:
        return None
    return DiskFullError(
        f"{what} cannot be written: {error.strerror}.",
        fix="Free some space there, or name a place on another disk.",
    )


def refuse_full(error: OSError, what: str) -> None:
    """Raise DiskFullError if a full disk is why `what` could not be written."""
    if (full := full_disk(error, what)) is not None:
        raise full from error
