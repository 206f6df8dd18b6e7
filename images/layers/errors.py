"""Errors from making a layer."""

from __future__ import annotations

from images.errors import Failure
from images.text.printable import printable


class WheelRefusedError(Failure):
    """A wheel that is damaged, inconsistent, or would write where it must not."""

    code = "wheel-refused"
    exit_code = 6

    def __init__(self, wheel: str, why: str) -> None:
        """`wheel`: its file name; `why`: the rest of a sentence that begins with it."""
        super().__init__(
            printable(f"{wheel} {why}."),
            fix="Download it again and compare its sha256 with the lock's. If they are equal, the "
            "wheel was made so: lock another version of the package, or let pip install it "
            "(--builder docker).",
        )
