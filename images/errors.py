"""The one base of every failure a user can meet.

It lives in the lowest room, so that each room can raise it and `provision.cli` can catch it.
"""

from __future__ import annotations


class Failure(Exception):  # noqa: N818  a user meets it as a failure, and the subclasses say Error
    """A failure with its way out: what was found and needed, and what to type.

    `code` is stable, kebab-case and documented in `docs/errors.md`; `exit_code` is the process's.
    `detail` holds raw output of a failed command; it is shown below the sentence. `log` is all that
    was kept of that output, for whoever looks for the root cause in it.
    """

    code: str = "failure"
    exit_code: int = 70

    def __init__(self, message: str, *, fix: str, detail: str = "", log: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.detail = detail
        self.log = log
