"""Judges a signed statement of a build: who signed it, and is it about this image?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provision.attestation.provenance.bundle import envelope_in
from provision.attestation.provenance.statement import BUILD, BUILDER, Provenance, parse_statement
from provision.attestation.signing.envelope import unseal
from provision.attestation.signing.errors import StatementError
from provision.attestation.signing.keys import PublicKey
from provision.attestation.signing.parser import CheckedStatement, error_to_json
from provision.errors import Exit


class Origin(CheckedStatement[Provenance]):
    """Verified: stated, with a key that is trusted here, about this image."""


def read_statement(data: bytes, trusted: Mapping[str, PublicKey]) -> tuple[Provenance, str]:
    """The content of a bundle or an envelope, and the id of its key; nothing unsigned is
    trusted.
    """
    payload, keyid = unseal(envelope_in(data), trusted, BUILD)
    return parse_statement(payload), keyid


def judge(
    provenance: Provenance,
    *,
    name: str,
    images: Collection[str],
    lock: str | None = None,
    claims: Collection[str] = (),
) -> Origin:
    """Check a statement against an image.

    `images` are all digests that the image is known by (manifest, index, configuration); `lock` is
    the sha256 of the lock that it should have been built from, if known; `claims` are digests that
    a file only says it has, which proves nothing.
    """
    again, stated = "provision build", set(provenance.images)

    def no(code: str, said: str, fix: str) -> Origin:
        return Origin(code=code, message=said, fix=fix, statement=provenance)

    if stated.isdisjoint(images) and not stated.isdisjoint(claims):
        said = (
            f"The statement is of {provenance.images[0]}. {name} says that it is the same image, "
            f"but the file is {_listed(images)}."
        )
        fix = f"Build the file again to get its provenance: {again} --lock FILE --output {name}"
        return no(code="provenance-not-of-file", said=said, fix=fix)
    if stated.isdisjoint(images):
        said = f"The statement is of {provenance.images[0]}, but {name} is {_listed(images)}."
        fix = f"Build this image to get its provenance: {again}"
        return no(code="provenance-other-image", said=said, fix=fix)
    if lock is not None and provenance.lock != lock:
        said = f"{name} was built from lock {provenance.lock[:12]}, not from {lock[:12]}."
        fix = f"Build it from that lock: {again} --lock FILE"
        return no(code="provenance-other-lock", said=said, fix=fix)
    builder = provenance.builder.removeprefix(BUILDER)
    said = (
        f"Built from lock {provenance.lock[:12]} by gpu-provision {provenance.version} "
        f"({builder}), {provenance.finished}."
    )
    return Origin(code=None, message=said, exit_code=Exit.DONE, statement=provenance)


def missing(name: str, path: Path | None = None) -> Origin:
    """There is no statement about this image: attached to it, or in the file beside it."""
    return Origin(
        code="provenance-missing",
        message=f"No provenance is attached to {name}."
        if path is None
        else f"{name} has no provenance: there is no {path}.",
        fix="Build it with one: provision build --push REF"
        if path is None
        else "Name the FILE.sigstore.json of its build, or build it again: "
        f"provision build --output {name}",
    )


def check_to_json(
    image: str, outcome: Origin | StatementError, keyid: str | None
) -> dict[str, Any]:
    """The result of a check; the format is always the same."""
    provenance = outcome.statement if isinstance(outcome, Origin) else None
    error = error_to_json(outcome)
    return {
        "schema": 1,
        "stated": error is None,
        "image": image,
        "lock": provenance.lock if provenance else None,
        "builder": provenance.builder if provenance else None,
        "when": provenance.finished if provenance else None,
        "sbom": provenance.bom if provenance else None,
        "key": keyid,
        "message": outcome.message,
        "error": error,
    }


def _listed(images: Collection[str]) -> str:
    return " or ".join(sorted(set(images))) or "not known by any digest"
