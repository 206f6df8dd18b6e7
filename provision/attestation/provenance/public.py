"""Decides which data of a build may be published: no login, no path, no name of a machine or a
user.

Documents are attached to images and outlive the machine that made them. So only data that is known
to be public goes into them; anything that matches no rule is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from images.oci.errors import BadReference
from images.oci.reference import DIGEST, Reference, parse_reference
from images.wheels.remote_file import Wheel
from provision.model.plan import Base, Request

_LONGEST = 2048
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,45}")
_WHEEL_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
# Skopeo's and podman's transports of this machine: a path, or a private name, follows.
_LOCAL = ("oci", "oci-archive", "docker-archive", "docker-daemon", "containers-storage", "dir")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"


def public_url(url: str) -> str | None:
    """The URL without login, query and fragment, which may have tokens; None for other URLs: a file
    URL reveals paths of this machine, and is useless elsewhere.
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
    # A lone % is not a valid escape.
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
    """The name of an image as typed, unless that is a place on this machine."""
    return text if public_reference(text) is not None else None


def wheel_file(wheel: Wheel) -> str | None:
    """The file name of a wheel, from the end of its URL."""
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
    """The request, without options that were not used."""
    asked: dict[str, Any] = {
        "cuda": request.cuda,
        "framework": request.framework,
        "framework_version": request.framework_version,
        "python": request.python,
        "flavour": request.flavour,
        "with": public_requirements(request.companions),
        "base": _asked_base(request.base),
        "apt": list(request.apt),
        "index": public_url(request.index_url) if request.index_url else None,
    }
    return {key: value for key, value in asked.items() if value not in (None, [])}


def _asked_base(base: str | None) -> str | None:
    return base if base is None or base == "bootstrap" else public_name(base)


def public_requirements(texts: Sequence[str]) -> list[str]:
    """Requirement lines; for one with a URL the public part of it, else only its name."""
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
    """Options whose values are a switch, a number or a word; paths and URLs are left out."""
    return {
        key: value
        for key, value in sorted(options.items())
        if isinstance(value, bool | int) or (isinstance(value, str) and _NAME.fullmatch(value))
    }
