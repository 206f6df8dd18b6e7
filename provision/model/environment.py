"""The environment of an image, as the markers of requirements see it (PEP 508)."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def is_wheel_url(url: str) -> bool:
    """Whether a URL is that of a wheel on a server."""
    from images.net.address import origin_of, shown_url, usable_url

    shown = shown_url(url)
    named = shown.startswith(("http://", "https://")) and re.fullmatch(r"\S+\.whl", shown)
    return bool(named) and origin_of(usable_url(url)) is not None


def is_git_url(url: str) -> bool:
    """Whether a URL is that of a git repository, as requirements name one."""
    return re.fullmatch(r"git\+(https?|ssh|git|file)://\S+", url) is not None


def shown_place(url: str) -> str:
    """What may be shown and stored of the address of a wheel or a repository: without a login and a
    query. SSH's user name is no secret, and a repository has the directory of the package, too.
    """
    from images.net.address import shown_url

    shown = shown_url(url)
    if not is_git_url(url):
        return shown
    if user := re.match(r"git\+ssh://([A-Za-z0-9_-]{1,32})@", url):
        shown = shown.replace("://", f"://{user[1]}@", 1)
    directory = re.search(r"[#&](subdirectory=[^&#]+)", url)
    return f"{shown}#{directory[1]}" if directory else shown


def public_requirement(requirement: Requirement) -> tuple[str, str]:
    """A requirement as it may be shown and stored, and the whole address of its wheel; "" if that
    has no more in it, or there is none. Only downloads use the whole one (`with_addresses`).
    """
    if requirement.url is None:
        return str(requirement), ""
    from images.net.address import usable_url

    whole, requirement.url = usable_url(requirement.url), shown_place(requirement.url)
    return str(requirement), whole if whole != requirement.url else ""


def with_addresses(lines: Iterable[str], addresses: Iterable[str]) -> list[str]:
    """Requirement lines with whole addresses, for the program that downloads the wheels."""
    known = {shown_place(one): one for one in addresses}
    found = []
    for line in lines:
        name, sign, rest = line.partition(" @ ")
        url, blank, marker = rest.partition(" ")
        found.append(f"{name}{sign}{known.get(url, url)}{blank}{marker}")
    return found


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
