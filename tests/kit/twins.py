"""A text with a fault and the same text without it, written as one: [-the fault-][+without it+]."""

from __future__ import annotations

import re

MARKED = re.compile(r"\[-(.*?)-\]\[\+(.*?)\+\]", re.DOTALL)


def twins(text: str) -> tuple[str, str]:
    """The text with the fault, and the one without."""
    return MARKED.sub(r"\1", text), MARKED.sub(r"\2", text)
