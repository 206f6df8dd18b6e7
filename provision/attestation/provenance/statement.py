"""What was built, from which lock, by what: an in-toto statement with SLSA's build provenance.

https://slsa.dev/spec/v1.1/provenance
It is made from the lock and read back strictly, after its signature was verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from images.oci.model import digest_of, is_digest
from images.wheels.remote_file import Wheel
from provision.attestation.provenance.bom import MEDIA_TYPE, base_purl, distinct, wheel_purl
from provision.attestation.provenance.errors import (
    ProvenanceTamperedError,
    ProvenanceUnknownKeyError,
    ProvenanceUnreadableError,
)
from provision.attestation.provenance.public import (
    public_base,
    public_name,
    public_options,
    public_request,
    public_url,
    wheel_file,
)
from provision.attestation.signing.parser import TIME, StatementKind, clock_text
from provision.lock.lockfile import Lock
from provision.lock.source_builds import GitSource
from provision.model.plan import Plan, Request
from provision.version import VERSION

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:gpu-provision:image-build:1"
BUILDER = "urn:gpu-provision:builder:"
LOCK_NAME = "pylock.toml"
BOM_NAME = "sbom.cdx.json"

_MOST_DIGESTS = 64

BUILD = StatementKind(
    predicate_type=PREDICATE_TYPE,
    name="build statement",
    renew="Rebuild the image to get a new statement: provision build",
    unreadable=ProvenanceUnreadableError,
    tampered=ProvenanceTamperedError,
    unknown_key=ProvenanceUnknownKeyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRun:
    """One run of a builder ("oci", "docker"). `options` are the user's build options; `formats` are
    ours, such as the version of the layer format.
    """

    builder: str
    started: datetime
    finished: datetime
    request: Request | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    formats: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """A statement's content, as far as it is judged. `images` are the digests that it names
    ("sha256:..."), `lock` and `bom` are sha256 in hex.
    """

    name: str
    images: tuple[str, ...]
    lock: str
    bom: str | None
    builder: str
    version: str
    started: str
    finished: str
    definition: Mapping[str, Any]


def make_statement(
    lock: Lock, build: BuildRun, *, name: str, images: Sequence[str], bom: bytes | None
) -> dict[str, Any]:
    """The statement on one build.

    `images` are all digests of what was built, the one that a registry knows it by first: of the
    manifest or index, of each platform's manifest, of a configuration (what engines call its id).
    """
    predicate = {
        "buildDefinition": build_definition(lock, build),
        "runDetails": {
            "builder": {
                "id": f"{BUILDER}{build.builder}",
                "version": {"gpu-provision": VERSION},
            },
            "metadata": {
                "startedOn": clock_text(build.started),
                "finishedOn": clock_text(build.finished),
            },
            "byproducts": [_bom(bom)] if bom is not None else [],
        },
    }
    return BUILD.statement(public_name(name) or "image", images, predicate)


def build_definition(lock: Lock, build: BuildRun) -> dict[str, Any]:
    """The inputs: equal definitions with the same builder give equal images."""
    request = {"request": public_request(build.request)} if build.request else {}
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "lock": {"sha256": lock.sha256},
            "options": public_options(build.options),
            **request,
        },
        "internalParameters": {"formats": public_options(build.formats)},
        "resolvedDependencies": [_lock(lock), *_base(lock.plan), *_wheels(lock), *_sources(lock)],
    }


def _lock(lock: Lock) -> dict[str, Any]:
    return {"name": LOCK_NAME, "digest": {"sha256": lock.sha256}, "mediaType": "application/toml"}


def _base(plan: Plan) -> list[dict[str, Any]]:
    """A base without a digest is not a resolved dependency; the lock still says what was
    requested.
    """
    base = public_base(plan.base)
    if not is_digest(base.get("digest")):
        return []
    purl = base_purl(base, plan.arch)
    uri = {"uri": str(purl)} if purl else {}
    digest = {"sha256": base["digest"].removeprefix("sha256:")}
    return [{"name": base.get("name", "base"), **uri, "digest": digest}]


def _wheels(lock: Lock) -> list[dict[str, Any]]:
    return [_wheel(wheel) for wheel in distinct(lock.wheels)]


def _wheel(wheel: Wheel) -> dict[str, Any]:
    return {
        "name": wheel_file(wheel) or f"{wheel.name}-{wheel.version}.whl",
        "uri": str(wheel_purl(wheel)),
        "digest": {"sha256": wheel.sha256},
        **_location(wheel.url),
    }


def _sources(lock: Lock) -> list[dict[str, Any]]:
    """The sources of the wheels that were built from them, and what they were built with."""
    rows = []
    for one in lock.builds:
        source = one.source
        if isinstance(source, GitSource):
            digest = {"gitCommit": source.commit, "gitTree": source.tree}
        else:
            digest = {"sha256": source.sha256}
        row = {"name": f"source of {one.wheel}", "digest": digest, **_location(source.url)}
        rows.append(row)
    with_them = distinct(wheel for one in lock.builds for wheel in one.backend)
    return [*rows, *map(_wheel, with_them)]


def _location(url: str) -> dict[str, str]:
    address = public_url(url)
    return {"downloadLocation": address} if address else {}


def _bom(content: bytes) -> dict[str, Any]:
    digest = {"sha256": digest_of(content).removeprefix("sha256:")}
    return {"name": BOM_NAME, "mediaType": MEDIA_TYPE, "digest": digest}


def parse_statement(payload: bytes) -> Provenance:
    """The statement in a payload whose signature was verified."""
    data, predicate = BUILD.predicate(payload)
    definition = BUILD.object_at("buildDefinition", predicate.get("buildDefinition"))
    if definition.get("buildType") != BUILD_TYPE:
        raise BUILD.unlike("it is of another kind of build")
    external = BUILD.object_at("externalParameters", definition.get("externalParameters"))
    details = BUILD.object_at("runDetails", predicate.get("runDetails"))
    builder = BUILD.object_at("builder", details.get("builder"))
    times = BUILD.object_at("metadata", details.get("metadata"))
    name, images = BUILD.subjects(data, most=_MOST_DIGESTS)
    return Provenance(
        name=name,
        images=images,
        lock=BUILD.sha256_at("externalParameters.lock", external.get("lock")),
        bom=_bom_of(details.get("byproducts", [])),
        builder=BUILD.text_at("builder.id", builder.get("id")),
        version=BUILD.text_at(
            "builder.version",
            BUILD.object_at("builder.version", builder.get("version")).get("gpu-provision"),
        ),
        started=BUILD.text_at("startedOn", times.get("startedOn"), TIME),
        finished=BUILD.text_at("finishedOn", times.get("finishedOn"), TIME),
        definition=definition,
    )


def _bom_of(found: object) -> str | None:
    for row in BUILD.list_at("byproducts", found):
        entry = BUILD.object_at("byproducts", row)
        if entry.get("name") == BOM_NAME:
            return BUILD.sha256_at("byproducts.digest", entry.get("digest"))
    return None
