"""Resolves a tag to its digest, and checks that the image exists for the architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from images.oci.errors import DigestMismatchError
from images.oci.model import INDEXES, MANIFESTS, platform_of
from images.oci.reference import DIGEST, Reference, parse_reference
from images.registry.answers import parse_json_object
from images.registry.auth import Login
from images.registry.errors import CONNECT_FIX, ImageNotFoundError, RegistryAnswerError
from images.registry.reader import has_digest, read_manifest
from images.registry.session import RepositorySession, ask_within


def resolve_digest(
    reference: str | Reference,
    *,
    arch: str,
    ca_bundle: Path | None = None,
    timeout_s: float = 10.0,
    login: Callable[[], Login] | None = None,
) -> str:
    """Return the digest ("sha256:...") of an image's tag, after checking that it exists for `arch`.

    It is the index's digest if there is an index, so that one pin works for every architecture.
    `timeout_s` limits the whole call; `login` replaces docker's configuration.
    """
    parsed = parse_reference(reference) if isinstance(reference, str) else reference
    return ask_within(
        timeout_s,
        parsed,
        lambda session: _resolve(session, platform_of(arch).architecture),
        what=f"answer about {parsed}",
        ca_bundle=ca_bundle,
        login=login,
    )


def platforms_of(index: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """List the (operating system, architecture) pairs that an index offers."""
    found = []
    entries = index.get("manifests")
    for entry in entries if isinstance(entries, list) else []:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if isinstance(platform, dict):
            pair = (str(platform.get("os")), str(platform.get("architecture")))
            if pair != ("unknown", "unknown"):  # attestations
                found.append(pair)
    return tuple(dict.fromkeys(found))


def _resolve(session: RepositorySession, arch: str) -> str:
    where = str(session.reference)
    try:
        content, kind, digest = read_manifest(session, session.reference.pinned)
    except DigestMismatchError as error:
        raise RegistryAnswerError(error.message, fix=CONNECT_FIX) from error
    manifest = parse_json_object(content, where)
    if kind in INDEXES or (kind not in MANIFESTS and "manifests" in manifest):
        offered = platforms_of(manifest)
    else:
        offered = (_platform_of_image(session, manifest, kind),)
    if ("linux", arch) not in offered:
        listed = ", ".join("/".join(pair) for pair in offered) or "none"
        raise ImageNotFoundError(
            f"{where} does not exist for linux/{arch}; it exists for: {listed}.",
            fix="Name an image that exists for this architecture.",
        )
    return session.reference.digest or digest


def _platform_of_image(
    session: RepositorySession, manifest: Mapping[str, Any], kind: str
) -> tuple[str, str]:
    """Read a single image's platform, which only its configuration has."""
    where = str(session.reference)
    descriptor = manifest.get("config")
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise RegistryAnswerError(
            f"{where} is of an unsupported type ({kind or 'no media type'}); "
            "an OCI or Docker version 2 image was needed.",
            fix="Name another image.",
        )
    what = f"give its configuration {digest}"
    reply = session.request("GET", f"blobs/{digest}", what=what)
    if reply.status != 200:
        raise session.refusal(reply, what)
    if not has_digest(reply.body, digest):
        raise RegistryAnswerError(
            f"{where} has another configuration than {digest}: "
            "it was damaged in transit, or a proxy changed it.",
            fix=CONNECT_FIX,
        )
    config = parse_json_object(reply.body, where)
    return str(config.get("os", "linux")), str(config.get("architecture"))
