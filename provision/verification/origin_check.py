"""`provision verify IMAGE --check-provenance`: checks the statements of how an image was built."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from images.oci.model import MANIFEST, Descriptor
from provision.attestation.provenance.attach import Referrers, find_provenance
from provision.attestation.provenance.check import Origin, judge, missing, read_statement
from provision.attestation.provenance.documents import beside
from provision.attestation.record.store import trusted_keys
from provision.attestation.signing.errors import StatementError
from provision.attestation.signing.keys import PublicKey
from provision.errors import BadInputError
from provision.lock.lockfile import read_lock_file
from provision.output.files import read_named
from provision.verification.subject import ImagePlaces, Subject, find_subject

_MOST_BYTES = 4 << 20
_NAME_IT = "Name the FILE.sigstore.json that the build left, or push the image with it."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOrigin:
    """The result. `image`: the digest that the statement was checked against."""

    image: str
    outcome: Origin | StatementError
    keyid: str | None = None


def check_origin(
    name: str,
    *,
    places: ImagePlaces,
    home: Path,
    path: Path | None,
    trust: Sequence[Path],
    lock: Path | None,
) -> CheckedOrigin:
    """Check the statement in a file, or those attached in the image's registry, against the image;
    for a squashfs, by default that in the file beside it.

    `lock`: the lock that the image should have been built from. Nothing is run, and nothing is
    loaded.
    """
    wanted = read_lock_file(lock).sha256 if lock is not None else None
    subject = find_subject(name, places)
    known = (subject.manifest,) if subject.manifest else (subject.digest, subject.image_id)
    images = [digest for digest in known if digest]
    near = _beside(subject)
    try:
        trusted = trusted_keys(home, trust)
        if path is None and near is not None:
            if not near.exists():
                return CheckedOrigin(image=images[0], outcome=missing(name, near))
            path = near
        if path is not None:
            provenance, keyid = read_statement(
                read_named(
                    "file", path, _MOST_BYTES, BadInputError, _NAME_IT, option="--check-provenance"
                ),
                trusted,
            )
            outcome: Origin | StatementError = judge(
                provenance, name=name, images=images, lock=wanted, claims=subject.claims
            )
        else:
            outcome, keyid_ = _attached(subject, places, trusted, images, wanted)
            return CheckedOrigin(image=images[0], outcome=outcome, keyid=keyid_)
    except StatementError as error:
        return CheckedOrigin(image=images[0], outcome=error)
    return CheckedOrigin(image=images[0], outcome=outcome, keyid=keyid)


def _attached(
    subject: Subject,
    places: ImagePlaces,
    trusted: dict[str, PublicKey],
    images: Sequence[str],
    lock: str | None,
) -> tuple[Origin | StatementError, str | None]:
    if subject.registry is None or subject.digest is None:
        return missing(subject.name), None
    from images.registry.reader import RepositoryReader

    # attachments are looked up by the image's digest only
    manifest = Descriptor(media_type=MANIFEST, digest=subject.digest, size=0)
    with closing(RepositoryReader.open(subject.registry, ca_bundle=places.ca)) as registry:
        return find_provenance(
            cast("Referrers", registry),  # which only reads
            [manifest],
            name=subject.name,
            images=images,
            trusted=trusted,
            lock=lock,
        )


def _beside(subject: Subject) -> Path | None:
    """Where the build of a squashfs leaves its statement; None: the image is not a squashfs."""
    if subject.image is None or subject.image.squashfs is None:
        return None
    return beside(subject.image.squashfs.path)[1]
