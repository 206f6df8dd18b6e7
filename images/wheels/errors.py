"""How reading a wheel can fail."""

from __future__ import annotations

from images.errors import Failure

ANEW_FIX = "Download the wheel again and compare its sha256 with the index's."


class WheelUnreadableError(Failure):
    """What is there is no wheel that can be measured: damaged, lying about itself, or not one."""

    code = "wheel-unreadable"
    exit_code = 2


class WheelUnreachableError(Failure):
    """A server did not hand the wheel over: out of reach, silent, refusing, or inconsistent."""

    code = "wheel-unreachable"
    exit_code = 5
