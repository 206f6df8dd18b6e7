"""Attaches documents to an image in a registry, and finds them again.

Each is a small manifest whose `subject` is the image's: the OCI specification's referrers, which
are copied with the image if it is copied with its attachments. Anybody who may push to a repository
may attach anything, so each attachment is checked against trusted keys, and invalid ones do not
affect valid ones.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeVar

from images.oci.errors import DigestMismatchError, ImageUnreadableError
from images.oci.model import Descriptor, descriptor_of
from images.registry.errors import ImageNotFoundError, RegistryAnswerError
from provision.attestation.provenance.bom import MEDIA_TYPE
from provision.attestation.provenance.bundle import (
    BUNDLE,
    PREDICATE,
    bundle,
    bundle_annotations,
    envelope_in,
)
from provision.attestation.provenance.check import Origin, judge, missing, read_statement
from provision.attestation.provenance.statement import (
    BUILD,
    PREDICATE_TYPE,
    Provenance,
    parse_statement,
)
from provision.attestation.record.statement import RECORD, Statement
from provision.attestation.record.statement import parse_statement as parse_record
from provision.attestation.record.verdict import Judgement
from provision.attestation.signing.envelope import unseal
from provision.attestation.signing.errors import StatementError
from provision.attestation.signing.keys import PublicKey
from provision.attestation.signing.parser import StatementKind, read_json

MOST = 256
"""The most attachments of one image that are read: anybody who may push could attach any number."""
_LARGEST = 4 << 20
_DAMAGED = (DigestMismatchError, ImageUnreadableError, ImageNotFoundError, RegistryAnswerError)
# From the most to the least informative result about this image here.
_RECORDS = (
    "record-contradiction",
    "record-from-future",
    "record-lower-level",
    "record-no-verdict",
    "record-driver-changed",
    "record-other-host",
    "record-other-lock",
    "record-without-tables",
    "record-other-image",
)
_S = TypeVar("_S")
_F = TypeVar("_F")


class Referrers(Protocol):
    """A place where an image is, and where something may be attached to it."""

    def attach(
        self,
        subject: Descriptor,
        *,
        artifact_type: str,
        content: bytes,
        media_type: str,
        annotations: Mapping[str, str],
    ) -> Descriptor:
        """Attach it to the image; equal content is attached only once."""

    def referrers(
        self, subject: Descriptor, artifact_type: str | None = None
    ) -> tuple[Descriptor, ...]:
        """What is attached to the image."""

    def read_artifact(self, descriptor: Descriptor) -> bytes:
        """The content of an attachment, checked against its digests."""


def attach_bom(place: Referrers, subject: Descriptor, bom: bytes) -> Descriptor:
    """Attach a bill of materials, under the type that scanners look for."""
    return place.attach(
        subject, artifact_type=MEDIA_TYPE, content=bom, media_type=MEDIA_TYPE, annotations={}
    )


def attach_signed(place: Referrers, subject: Descriptor, envelope: bytes) -> Descriptor:
    """Attach a signed statement: of a build, or the record of a verification."""
    predicate, time = _of_what(envelope)
    return place.attach(
        subject,
        artifact_type=BUNDLE,
        content=bundle(envelope),
        media_type=BUNDLE,
        annotations=bundle_annotations(predicate, time),
    )


def attach_provenance(
    place: Referrers, subject: Descriptor, envelope: bytes, own: PublicKey
) -> Descriptor:
    """Attach the statement of a build, unless this key has already stated the same build: nightly
    builds from one lock attach one statement, not one a night.
    """
    trusted = {own.keyid: own}
    stated, _ = read_statement(envelope, trusted)
    for found, data in _contents(place, [subject], PREDICATE_TYPE):
        try:
            earlier, _ = read_statement(data, trusted)
        except StatementError:
            continue
        if _same_build(earlier, stated):
            return found
    return attach_signed(place, subject, envelope)


def find_provenance(
    place: Referrers,
    subjects: Sequence[Descriptor],
    *,
    name: str,
    images: Collection[str],
    trusted: Mapping[str, PublicKey],
    lock: str | None = None,
) -> tuple[Origin | StatementError, str | None]:
    """Judge the statements about an image: the latest valid one, else why there is none.

    `subjects`: the digests by which the place knows the image, such as its index and its manifest.
    Also returns the id of the key.
    """
    held, refused = _judged(
        place,
        subjects,
        (BUILD, parse_statement),
        trusted,
        lambda found: judge(found, name=name, images=images, lock=lock),
    )
    if held:
        return max(held, key=lambda found: (found[0].verified, _finished(found[0])))
    return refused or missing(name), None


def find_record(
    place: Referrers,
    subjects: Sequence[Descriptor],
    *,
    trusted: Mapping[str, PublicKey],
    judged: Callable[[Statement], Judgement],
) -> tuple[Judgement | StatementError | None, str | None]:
    """Judge the records attached to an image; None if there are none.

    Many machines may have proven it, each with its own driver. Of those about this kind of machine
    with this driver the latest decides, whatever its verdict: what was fit once may be unfit now.
    `judged` checks one record against the image and this machine.
    """
    held, refused = _judged(place, subjects, (RECORD, parse_record), trusted, judged)
    held.sort(key=_time, reverse=True)
    for found in held:
        if found[0].code not in _RECORDS:
            return found
    if held:
        return min(held, key=lambda found: _RECORDS.index(str(found[0].code)))
    return refused, None


def _judged(
    place: Referrers,
    subjects: Sequence[Descriptor],
    kind: tuple[StatementKind, Callable[[bytes], _S]],
    trusted: Mapping[str, PublicKey],
    judged: Callable[[_S], _F],
) -> tuple[list[tuple[_F, str]], StatementError | None]:
    """What the attached statements of a kind show, each with the id of its key; and the most
    informative of the errors of those that are not valid.
    """
    held: list[tuple[_F, str]] = []
    refused: list[StatementError] = []
    form, parse = kind
    for _, data in _contents(place, subjects, form.predicate_type):
        try:
            payload, keyid = unseal(envelope_in(data), trusted, form)
            statement = parse(payload)
        except StatementError as error:
            refused.append(error)
            continue
        held.append((judged(statement), keyid))
    order = (form.unknown_key, form.tampered, StatementError)
    first = (error for one in order for error in refused if isinstance(error, one))
    return held, next(first, None)


def _contents(
    place: Referrers, subjects: Sequence[Descriptor], predicate: str
) -> Iterator[tuple[Descriptor, bytes]]:
    """The readable attachments. Annotations prove nothing: they only save reading attachments that
    declare another type.
    """
    left = MOST
    for subject in {one.digest: one for one in subjects}.values():
        for found in place.referrers(subject, BUNDLE):
            if found.annotations.get(PREDICATE, predicate) != predicate:
                continue
            if left == 0:
                return
            left -= 1
            if (content := _content(place, found)) is not None:
                yield found, content


def _content(place: Referrers, found: Descriptor) -> bytes | None:
    try:
        content = place.read_artifact(found)
    except _DAMAGED:
        return None
    return content if len(content) <= _LARGEST else None


def _of_what(envelope: bytes) -> tuple[str, str]:
    """The predicate's type and time of an envelope that was sealed here."""
    sealed: Any = read_json(envelope)
    statement: Any = read_json(base64.b64decode(sealed["payload"]))
    predicate = statement["predicate"]
    time = predicate.get("time") or predicate["runDetails"]["metadata"]["finishedOn"]
    return str(statement["predicateType"]), str(time)


def _same_build(one: Provenance, other: Provenance) -> bool:
    def what(found: Provenance) -> tuple[object, ...]:
        return (
            found.name,
            found.images,
            found.definition,
            found.bom,
            found.builder,
            found.version,
        )

    return what(one) == what(other)


def _time(found: tuple[Judgement, str]) -> str:
    return found[0].statement.time if found[0].statement else ""


def _finished(origin: Origin) -> str:
    return origin.statement.finished if origin.statement else ""


def registry_manifest(reference: str, ca: Path | None) -> Descriptor:
    """What a registry has under a name."""
    from images.registry.reader import RepositoryReader

    with closing(RepositoryReader.open(reference, ca_bundle=ca)) as reader:
        found = reader.manifest()
    return descriptor_of(found.media_type, found.content)
