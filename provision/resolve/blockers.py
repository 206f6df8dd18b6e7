"""What stands against a build: its code, its sentence and what would help."""

from __future__ import annotations

from typing import NamedTuple

SEE_ALTERNATIVES = " (see the alternatives)"
"""Where a fix points to them; taken out where there are none."""


class Blocker(NamedTuple):
    """Why one build does not serve: stable code, sentence, what would help."""

    code: str
    message: str
    fix: str
    source: str = ""
