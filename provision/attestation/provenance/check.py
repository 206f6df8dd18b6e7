"""Judges a signed statement of a build: who signed it, and is it about this image?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.attestation.provenance.bundle import envelope_in
from provision.attestation.provenance.statement import BUILD, BUILDER, Provenance, parse_statement
from provision.attestation.signing.envelope import unseal
from provision.attestation.signing.errors import StatementError
from provision.attestation.signing.keys import PublicKey
from provision.errors import Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`code` None: stated, with a key that is trusted here, about this image."""

    code: str | None
    message: str
    fix: str | None = None
    exit_code: Exit = Exit.NO_VERDICT
    provenance: Provenance | None = None

    @property
    def verified(self) -> bool:
        return self.code is None


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
    again = "provision build"

    if set(provenance.images).isdisjoint(images) and not set(provenance.images).isdisjoint(claims):
        said = (
            f"The statement is of {provenance.images[0]}. {name} says that it is the same image, "
            f"but the file is {_listed(images)}."
        )
        return Origin(
            code="provenance-not-of-file",
            message=said,
            fix=f"Build the file again to get its provenance: {again} --lock FILE --output {name}",
            provenance=provenance,
        )
    if not set(provenance.images) & set(images):
        said = f"The statement is of {provenance.images[0]}, but {name} is {_listed(images)}."
        return Origin(
            code="provenance-other-image",
            message=said,
            fix=f"Build this image to get its provenance: {again}",
            provenance=provenance,
        )
    if lock is not None and provenance.lock != lock:
        said = f"{name} was built from lock {provenance.lock[:12]}, not from {lock[:12]}."
        return Origin(
            code="provenance-other-lock",
            message=said,
            fix=f"Build it from that lock: {again} --lock FILE",
            provenance=provenance,
        )
    builder = provenance.builder.removeprefix(BUILDER)
    said = (
        f"Built from lock {provenance.lock[:12]} by gpu-provision {provenance.version} "
        f"({builder}), {provenance.finished}."
    )
    return Origin(code=None, message=said, exit_code=Exit.DONE, provenance=provenance)


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
    provenance = outcome.provenance if isinstance(outcome, Origin) else None
    wrong = None if isinstance(outcome, Origin) and outcome.verified else outcome
    return {
        "schema": 1,
        "stated": wrong is None,
        "image": image,
        "lock": provenance.lock if provenance else None,
        "builder": provenance.builder if provenance else None,
        "when": provenance.finished if provenance else None,
        "sbom": provenance.bom if provenance else None,
        "key": keyid,
        "message": outcome.message,
        "error": {"code": wrong.code, "message": wrong.message, "fix": wrong.fix}
        if wrong
        else None,
    }


def _listed(images: Collection[str]) -> str:
    return " or ".join(sorted(set(images))) or "not known by any digest"
