"""What of a build may be told to everybody: no login, no path, no name of a machine or a user.

Documents are attached to images and outlive the machine that made them. So what goes into them is
taken by rules of what is known to be public, and whatever fits no rule stays out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from images.oci.errors import BadReference
from images.oci.reference import DIGEST, Reference, parse_reference
from images.wheels.locked import Wheel
from provision.model.plan import Base, Request

_LONGEST = 2048
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,45}")
_WHEEL_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
# Skopeo's and podman's words for places on this machine: what follows is a path, or a private name.
_LOCAL = ("oci", "oci-archive", "docker-archive", "docker-daemon", "containers-storage", "dir")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"


def public_url(url: str) -> str | None:
    """The address without login, query and fragment, where tokens are; None for what is no web
    address: a file's tells of this machine, and helps nobody else.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or not _HOST.fullmatch(host):
        return None
    place = f"[{host}]" if ":" in host else host
    path = quote(parts.path, safe=_PATH_CHARACTERS)
    # A lone % would begin an escape that is none.
    path = re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", path)
    found = f"{parts.scheme}://{place}{f':{port}' if port is not None else ''}{path}"
    return found if len(found) <= _LONGEST else None


def public_reference(text: str) -> Reference | None:
    """The name of an image in a registry; None for one that only means something here."""
    if text.partition(":")[0] in _LOCAL:
        return None
    try:
        return parse_reference(text)
    except BadReference:
        return None


def public_name(text: str) -> str | None:
    """What an image is called, as it was typed, unless that is a place on this machine."""
    return text if public_reference(text) is not None else None


def wheel_file(wheel: Wheel) -> str | None:
    """The name of a wheel's file, which its address ends in."""
    try:
        name = unquote(urlsplit(wheel.url).path).rpartition("/")[2]
    except ValueError:
        return None
    return name if _WHEEL_FILE.fullmatch(name) else None


def public_base(base: Base | None) -> dict[str, str]:
    """A base by what identifies it everywhere: name and digest, or suite and digest."""
    if base is None:
        return {}
    reference = public_reference(base.reference) if base.kind == "registry" else None
    digest = base.digest or (reference.digest if reference else None) or ""
    found = {
        "kind": base.kind,
        "name": _base_name(base, reference),
        "digest": digest if DIGEST.fullmatch(digest) else None,
    }
    return {key: value for key, value in found.items() if value}


def _base_name(base: Base, reference: Reference | None) -> str | None:
    if base.kind == "bootstrap":
        return f"debian:{base.suite}" if base.suite else "debian"
    if reference is None:
        return None
    tag = f":{reference.tag}" if reference.tag else ""
    return f"{reference.registry}/{reference.repository}{tag}"


def public_request(request: Request) -> dict[str, Any]:
    """What was asked for, without what was not."""
    asked: dict[str, Any] = {
        "cuda": request.cuda,
        "framework": request.framework,
        "framework_version": request.framework_version,
        "python": request.python,
        "flavour": request.flavour,
        "with": public_requirements(request.companions),
        "base": _asked_base(request.base),
        "index": public_url(request.index) if request.index else None,
    }
    return {key: value for key, value in asked.items() if value not in (None, [])}


def _asked_base(base: str | None) -> str | None:
    return base if base is None or base == "bootstrap" else public_name(base)


def public_requirements(texts: Sequence[str]) -> list[str]:
    """Requirement lines; of one that names an address what is public of it, else its name alone."""
    from packaging.requirements import InvalidRequirement, Requirement

    found = []
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.url is not None:
            requirement.url = public_url(requirement.url)
        if _NAME.fullmatch(requirement.name):
            found.append(str(requirement))
    return found


def public_options(options: Mapping[str, object]) -> dict[str, str | int | bool]:
    """Options whose values are a switch, a number or a word; a path or an address is none."""
    return {
        key: value
        for key, value in sorted(options.items())
        if isinstance(value, bool | int) or (isinstance(value, str) and _NAME.fullmatch(value))
    }
