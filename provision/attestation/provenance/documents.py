"""The documents of one build: made together, and kept as files.

By default they are beside what they describe: `pylock.X.cdx.json` and `pylock.X.sigstore.json`
beside a kept lock, `IMAGE.cdx.json` and `IMAGE.sigstore.json` beside a layout or an archive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from images.engines.squashfs import ENDINGS
from images.errors import refuse_full
from provision.attestation.provenance.bom import ChangedFiles, bill_of_materials
from provision.attestation.provenance.bundle import bundle
from provision.attestation.provenance.errors import DocumentNotWrittenError
from provision.attestation.provenance.statement import BuildRun, make_statement
from provision.attestation.signing.envelope import seal
from provision.attestation.signing.keys import Signer
from provision.lock.lockfile import Lock
from provision.output.files import write_whole

BOM_SUFFIX = ".cdx.json"
STATEMENT_SUFFIX = ".sigstore.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The documents to keep and attach: the bill of materials, and the signed statement, which
    names it. `bundle` is the envelope in the format of Sigstore's tools.
    """

    bom: bytes
    envelope: bytes

    @property
    def bundle(self) -> bytes:
        return bundle(self.envelope)


def make_documents(
    lock: Lock,
    build: BuildRun,
    signer: Signer,
    *,
    name: str,
    images: Sequence[str],
    debian: Sequence[str] = (),
    changed: ChangedFiles | None = None,
) -> Documents:
    """Describe a build and make its statement; `name` and `images` as for `make_statement`, the
    others as for `bill_of_materials`.
    """
    bom = bill_of_materials(lock, debian=debian, changed=changed)
    statement = make_statement(lock, build, name=name, images=images, bom=bom)
    return Documents(bom=bom, envelope=seal(statement, signer))


def beside(path: Path) -> tuple[Path, Path]:
    """The default paths of the two documents of a lock, a layout, an archive or a squashfs."""
    stem = path.name
    for suffix in (".toml", ".tar", *ENDINGS):
        stem = stem.removesuffix(suffix) or stem
    return path.with_name(stem + BOM_SUFFIX), path.with_name(stem + STATEMENT_SUFFIX)


def write_document(option: str, path: Path, content: bytes) -> None:
    """Write a whole document, or leave the old one. `option` is the option that named the path.
    DocumentNotWrittenError: it cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        refuse_full(error, f"{option} {path}")
        raise DocumentNotWrittenError(
            f"{option} {path} could not be written: {error.strerror}.",
            fix=f"Choose another place: {option} FILE",
        ) from error
