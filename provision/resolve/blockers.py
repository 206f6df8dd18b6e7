"""What blocks a build: its code, its sentence, and its fix on the hosts."""

from __future__ import annotations

from typing import NamedTuple


class Blocker(NamedTuple):
    """Why one build does not fit. `fix`: what to change on the hosts; "" where only another request
    helps, which is found by trying.
    """

    code: str
    message: str
    fix: str = ""
    source: str = ""
