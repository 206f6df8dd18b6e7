"""Errors from reading a wheel."""

from __future__ import annotations

from images.errors import Failure

ANEW_FIX = "Download the wheel again and compare its sha256 with the index's."


class WheelUnreadableError(Failure):
    """Not a readable wheel: damaged, inconsistent, or another kind of file."""

    code = "wheel-unreadable"
    exit_code = 2


class WheelUnreachableError(Failure):
    """A server did not deliver the wheel: unreachable, silent, refusing or inconsistent."""

    code = "wheel-unreachable"
    exit_code = 5
