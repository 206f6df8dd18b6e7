"""The one base of every failure a user can meet.

It lives in the lowest room, so that each room can raise it and `provision.cli.main` can catch it.
"""

from __future__ import annotations

from images.text.printable import printable_lines


class Failure(Exception):  # noqa: N818  a user meets it as a failure, and the subclasses say Error
    """A failure with its way out: what was found and needed, and what to type.

    `code` is stable, kebab-case and documented in `docs/codes.md`; `exit_code` is the process's.
    Message and fix go to terminals, logs and reports, so no name in them can bring a control
    character along. `detail` holds raw output of a failed command; it is shown below the sentence.
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
