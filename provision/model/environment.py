"""The environment of an image, as the markers of requirements see it (PEP 508)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.markers import Marker
    from packaging.requirements import Requirement

MOST_CHARACTERS = 4_000
"""Of one requirement or version: packaging cannot read numbers of more digits."""


def environment_of(python: str, arch: str) -> dict[str, str]:
    """The values of PEP 508's markers in an image; the kernel's version selects nothing."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": arch,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


def is_met(marker: Marker | None, environment: dict[str, str]) -> bool:
    """Whether a requirement with this marker counts in an image. One that compares what cannot be
    compared is left to the installer.
    """
    from packaging.markers import UndefinedComparison

    try:
        return marker is None or marker.evaluate({**environment, "extra": ""})
    except UndefinedComparison:
        return True


def requirement_of(text: str, most: int = MOST_CHARACTERS) -> Requirement:
    """A requirement as it is written (PEP 508). InvalidRequirement: it is malformed, longer than
    `most` characters, or its brackets are nested too deeply to be read.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    if len(text) > most:
        raise InvalidRequirement(f"it is longer than {most:,} characters")
    try:
        return Requirement(text)
    except RecursionError as error:
        raise InvalidRequirement("it is nested too deeply") from error
