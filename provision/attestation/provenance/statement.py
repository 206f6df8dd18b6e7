"""What was built, from which lock, by what: an in-toto statement with SLSA's build provenance.

https://slsa.dev/spec/v1.1/provenance
It is made from the lock and read back strictly, after its signature was found right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from images.oci.model import digest_of, is_digest
from provision.attestation.provenance.bom import MEDIA_TYPE, base_purl, distinct, wheel_purl
from provision.attestation.provenance.errors import ProvenanceUnreadableError
from provision.attestation.provenance.public import (
    public_base,
    public_name,
    public_options,
    public_request,
    public_url,
    wheel_file,
)
from provision.attestation.record.errors import RecordError
from provision.attestation.record.statement import STATEMENT_TYPE, read_json
from provision.lock.lockfile import Lock
from provision.model.plan import Plan, Request
from provision.version import VERSION

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:gpu-provision:image-build:1"
BUILDER = "urn:gpu-provision:builder:"
LOCK_NAME = "pylock.toml"
BOM_NAME = "sbom.cdx.json"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_MOST_DIGESTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One run of a builder ("oci", "docker"). `options` are what the user chose of how to build;
    `formats` are ours, such as the version of how layers are written.
    """

    builder: str
    started: datetime
    finished: datetime
    request: Request | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    formats: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """A statement's content, as far as it is judged. `images` are the digests that it speaks of
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
    lock: Lock, build: Build, *, name: str, images: Sequence[str], bom: bytes | None
) -> dict[str, Any]:
    """The statement on one build.

    `images` are all digests of what was built, the one that a registry knows it by first: of the
    manifest or index, of each platform's manifest, of a configuration (what engines call its id).
    """
    subject = public_name(name) or "image"
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": subject, "digest": {"sha256": image.removeprefix("sha256:")}}
            for image in dict.fromkeys(images)
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": build_definition(lock, build),
            "runDetails": {
                "builder": {
                    "id": f"{BUILDER}{build.builder}",
                    "version": {"gpu-provision": VERSION},
                },
                "metadata": {
                    "startedOn": _in_words(build.started),
                    "finishedOn": _in_words(build.finished),
                },
                "byproducts": [_bom(bom)] if bom is not None else [],
            },
        },
    }


def build_definition(lock: Lock, build: Build) -> dict[str, Any]:
    """What went in: equal definitions by one builder give equal images."""
    request = {"request": public_request(build.request)} if build.request else {}
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "lock": {"sha256": lock.sha256},
            "options": public_options(build.options),
            **request,
        },
        "internalParameters": {"formats": public_options(build.formats)},
        "resolvedDependencies": [_lock(lock), *_base(lock.plan), *_wheels(lock)],
    }


def _lock(lock: Lock) -> dict[str, Any]:
    return {"name": LOCK_NAME, "digest": {"sha256": lock.sha256}, "mediaType": "application/toml"}


def _base(plan: Plan) -> list[dict[str, Any]]:
    """A base without a digest is no resolved one; the lock still says what was asked for."""
    base = public_base(plan.base)
    if not is_digest(base.get("digest")):
        return []
    purl = base_purl(base, plan.arch)
    uri = {"uri": str(purl)} if purl else {}
    digest = {"sha256": base["digest"].removeprefix("sha256:")}
    return [{"name": base.get("name", "base"), **uri, "digest": digest}]


def _wheels(lock: Lock) -> list[dict[str, Any]]:
    rows = []
    for wheel in distinct(lock.wheels):
        address = public_url(wheel.url)
        rows.append(
            {
                "name": wheel_file(wheel) or f"{wheel.name}-{wheel.version}.whl",
                "uri": str(wheel_purl(wheel)),
                "digest": {"sha256": wheel.sha256},
                **({"downloadLocation": address} if address else {}),
            }
        )
    return rows


def _bom(content: bytes) -> dict[str, Any]:
    digest = {"sha256": digest_of(content).removeprefix("sha256:")}
    return {"name": BOM_NAME, "mediaType": MEDIA_TYPE, "digest": digest}


def _in_words(time: datetime) -> str:
    return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_statement(payload: bytes) -> Provenance:
    """The statement in a payload whose signature was found right."""
    try:
        data = _object(read_json(payload), "the statement")
    except RecordError as error:
        raise unlike("it is not JSON, or not whole") from error
    if data.get("_type") != STATEMENT_TYPE or data.get("predicateType") != PREDICATE_TYPE:
        raise unlike("its type is another")
    predicate = _object(data.get("predicate"), "predicate")
    definition = _object(predicate.get("buildDefinition"), "buildDefinition")
    if definition.get("buildType") != BUILD_TYPE:
        raise unlike("it is of another kind of build")
    external = _object(definition.get("externalParameters"), "externalParameters")
    details = _object(predicate.get("runDetails"), "runDetails")
    builder = _object(details.get("builder"), "builder")
    times = _object(details.get("metadata"), "metadata")
    name, images = _subjects(data.get("subject"))
    return Provenance(
        name=name,
        images=images,
        lock=_sha256(external.get("lock"), "externalParameters.lock"),
        bom=_bom_of(details.get("byproducts", [])),
        builder=_text(builder.get("id"), "builder.id"),
        version=_text(
            _object(builder.get("version"), "builder.version").get("gpu-provision"),
            "builder.version",
        ),
        started=_text(times.get("startedOn"), "startedOn", _TIME),
        finished=_text(times.get("finishedOn"), "finishedOn", _TIME),
        definition=definition,
    )


def _subjects(found: object) -> tuple[str, tuple[str, ...]]:
    rows = [_object(row, "subject") for row in _list(found, "subject")]
    if not 0 < len(rows) <= _MOST_DIGESTS:
        raise unlike("it speaks of no image, or of very many")
    names = {_text(row.get("name"), "subject.name") for row in rows}
    if len(names) != 1:
        raise unlike("it speaks of several images")
    digests = tuple(f"sha256:{_sha256(row.get('digest'), 'subject.digest')}" for row in rows)
    return names.pop(), digests


def _bom_of(found: object) -> str | None:
    for row in _list(found, "byproducts"):
        entry = _object(row, "byproducts")
        if entry.get("name") == BOM_NAME:
            return _sha256(entry.get("digest"), "byproducts.digest")
    return None


def unlike(what: str) -> ProvenanceUnreadableError:
    return ProvenanceUnreadableError(
        f"This is no statement of a build as this version writes it: {what}.",
        fix="Build the image anew, which states its build: provision build",
    )


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise unlike(f"{path} is no object")
    return value


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise unlike(f"{path} is no list")
    return value


def _text(value: object, path: str, pattern: re.Pattern[str] | None = None) -> str:
    if isinstance(value, str) and value and (pattern is None or pattern.fullmatch(value)):
        return value
    raise unlike(f"{path} is not as it should be")


def _sha256(value: object, path: str) -> str:
    return _text(_object(value, path).get("sha256"), path, _SHA256)
