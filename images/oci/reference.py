"""Parses image references by docker's rules."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass

from images.net.address import is_loopback
from images.oci.errors import BadReference

_DOCKER_HUB = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_MAX_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The full name of an image; omitted parts have docker's defaults."""

    registry: str
    """The registry's host, such as "docker.io" or "localhost:5000"."""
    repository: str
    """Its path there, such as "library/debian"."""
    tag: str | None
    """None only if just a digest was given."""
    digest: str | None

    @property
    def host(self) -> str:
        """The host that answers for the registry."""
        return "registry-1.docker.io" if self.registry == "docker.io" else self.registry

    @property
    def hostname(self) -> str:
        return urllib.parse.urlsplit(f"//{self.host}").hostname or self.host

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.hostname)

    @property
    def pinned(self) -> str:
        """The digest if there is one, else the tag: what to request from the registry."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def _bad(text: str, why: str) -> BadReference:
    return BadReference(
        f"{text!r} does not name an image: {why}.",
        fix="Write it as REGISTRY/PATH:TAG or REGISTRY/PATH@sha256:..., for example debian:12-slim",
    )


def parse_reference(text: str) -> Reference:
    """Parse an image reference by docker's rules, and add docker's defaults. BadReference: it is
    malformed.
    """
    if "://" in text:
        raise _bad(text, "an image reference has no scheme such as https://")
    rest, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise _bad(text, "after @ a digest is expected, sha256: and 64 hexadecimal digits")
    first, slash, path = rest.partition("/")
    # docker's rule: what looks like a host is one; anything else is a path on Docker Hub
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry = first
    else:
        registry, path = "docker.io", rest
    if not _HOST.fullmatch(registry):
        raise _bad(text, f"{registry!r} is not a registry's host")
    repository, colon, tag = path.partition(":")
    if colon and not TAG.fullmatch(tag):
        raise _bad(text, f"{tag!r} is not a tag")
    if not _REPOSITORY.fullmatch(repository):
        upper = " (upper-case letters are not allowed)" if repository != repository.lower() else ""
        raise _bad(text, f"{repository!r} is not an image's path{upper}")
    if len(registry) + 1 + len(repository) > _MAX_NAME:
        raise _bad(text, f"its name is longer than {_MAX_NAME} characters")
    if registry in _DOCKER_HUB:
        registry = "docker.io"
        repository = repository if "/" in repository else f"library/{repository}"
    return Reference(
        registry=registry,
        repository=repository,
        tag=tag or (None if at else "latest"),
        digest=digest or None,
    )
