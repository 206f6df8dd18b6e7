"""What a probe yields: the name of a fact, its value, and where it was read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from provision.doctor.model import Fact, Value

Found: TypeAlias = tuple[str, Fact]


def fact(name: str, value: Value | None, where: str) -> Iterable[Found]:
    """The fact, or nothing if its value is not known."""
    if value is not None:
        yield name, Fact(value=value, where=where)
