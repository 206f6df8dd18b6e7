"""What blocks a build: its code, its sentence and its fix."""

from __future__ import annotations

from typing import NamedTuple

SEE_ALTERNATIVES = " (see the alternatives)"
"""The reference from a fix to the alternatives; removed if there are none."""


class Blocker(NamedTuple):
    """Why one build does not fit: stable code, sentence, fix."""

    code: str
    message: str
    fix: str
    source: str = ""
