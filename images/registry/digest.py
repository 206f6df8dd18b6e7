"""Which digest a tag stands for, seen to be what was asked for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from images.errors import Failure
from images.registry.auth import Login, read_login
from images.registry.client import RepositoryClient, parse_json_object
from images.registry.errors import (
    CONNECT_FIX,
    ImageNotFoundError,
    RegistryAnswerError,
    RegistryUnreachableError,
)
from images.registry.http import Answer, Http, open_http
from images.registry.reference import DIGEST, Reference, parse_reference

_T = TypeVar("_T")

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)

_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def resolve_digest(
    reference: str | Reference,
    *,
    arch: str,
    ca_bundle: Path | None = None,
    timeout_s: float = 10.0,
    http: Http | None = None,
    login: Callable[[], Login] | None = None,
) -> str:
    """Say which digest ("sha256:...") an image's tag stands for, once it is seen to fit `arch`.

    It is the digest of the index where there is one, so that one pin serves every architecture.
    `timeout_s` bounds the whole; `http` and `login` stand in for the network and docker's
    configuration.
    """
    parsed = parse_reference(reference) if isinstance(reference, str) else reference
    client = RepositoryClient(
        parsed,
        http or open_http(ca_bundle=ca_bundle, timeout_s=timeout_s),
        login or (lambda: read_login(parsed.registry)),
    )
    return within(
        timeout_s,
        lambda: _resolve(client, _ARCH.get(arch, arch)),
        lambda: RegistryUnreachableError(
            f"The registry {parsed.registry} gave no full answer about {parsed} "
            f"within {timeout_s:g} s.",
            fix=CONNECT_FIX,
        ),
    )


def _checked_digest(answer: Answer, expected: str | None, where: str) -> str:
    """Give the digest of a body, which must be the one that was announced and asked for."""
    announced = answer.headers.get("docker-content-digest") or None
    wanted = [digest for digest in (expected, announced) if digest is not None]
    for digest in wanted:
        algorithm, _, value = digest.partition(":")
        if algorithm not in {"sha256", "sha512"}:
            raise RegistryAnswerError(
                f"{where} announces an unknown digest, {digest!r}.", fix=CONNECT_FIX
            )
        found = hashlib.new(algorithm, answer.body).hexdigest()
        if found != value:
            raise RegistryAnswerError(
                f"{where} answered with {algorithm}:{found}, {digest} was needed: "
                "the answer was damaged on its way, or changed by something in between.",
                fix=CONNECT_FIX,
            )
    return expected or f"sha256:{hashlib.sha256(answer.body).hexdigest()}"


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


def _resolve(client: RepositoryClient, arch: str) -> str:
    reference = client.reference
    where = str(reference)
    answer = client.get(f"manifests/{reference.pinned}", _ACCEPT)
    digest = _checked_digest(answer, reference.digest, where)
    manifest = parse_json_object(answer.body, where)
    content_type = answer.headers.get("content-type", "").partition(";")[0].strip()
    kind = manifest.get("mediaType") or content_type
    if kind in INDEX_TYPES or (kind not in MANIFEST_TYPES and "manifests" in manifest):
        offered = platforms_of(manifest)
    else:
        offered = (_platform_of_image(client, manifest, kind),)
    if ("linux", arch) not in offered:
        listed = ", ".join("/".join(pair) for pair in offered) or "none"
        raise ImageNotFoundError(
            f"{where} does not exist for linux/{arch}; it exists for: {listed}.",
            fix="Name an image that exists for this architecture.",
        )
    return digest


def _platform_of_image(
    client: RepositoryClient, manifest: Mapping[str, Any], kind: str
) -> tuple[str, str]:
    """Read a single image's platform, which only its configuration tells."""
    where = str(client.reference)
    descriptor = manifest.get("config")
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise RegistryAnswerError(
            f"{where} is of a kind that cannot be read ({kind or 'no media type'}); "
            "an OCI or Docker version 2 image was needed.",
            fix="Name another image.",
        )
    blob = client.get(f"blobs/{digest}", "*/*")
    # a blob may come from a storage whose headers are not a registry's
    _checked_digest(Answer(status=blob.status, headers={}, body=blob.body), digest, where)
    config = parse_json_object(blob.body, where)
    return str(config.get("os", "linux")), str(config.get("architecture"))


def within(timeout_s: float, work: Callable[[], _T], late: Callable[[], Failure]) -> _T:
    """Do some work in a thread and wait for it no longer than this."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as exc:  # noqa: BLE001  raised again in the caller's thread
            errors.append(exc)

    thread = threading.Thread(target=body, name="registry", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if results:
        return results[0]
    raise errors[0] if errors else late()
