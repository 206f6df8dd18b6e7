"""The documents of a build: a bill of materials, and a signed statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from images.errors import Failure
from images.oci.model import Descriptor
from provision.attestation.provenance.attach import attach_bom, attach_provenance, registry_manifest
from provision.attestation.provenance.bom import ChangedFiles
from provision.attestation.provenance.documents import (
    Documents,
    beside,
    make_documents,
    write_document,
)
from provision.attestation.provenance.statement import BuildRun
from provision.attestation.record.store import signer_of
from provision.attestation.signing.errors import StatementError
from provision.attestation.signing.keys import Signer
from provision.build.base import BuildSettings
from provision.build.cut import CutReport
from provision.build.destination import Choice
from provision.errors import BadInputError
from provision.lock.labels import targets_of
from provision.lock.lockfile import Lock
from provision.model.plan import Plan, Request
from provision.output.console import Console
from provision.output.files import refuse_unwritable


@dataclass(frozen=True, slots=True, kw_only=True)
class Documenting:
    """Whether documents are made, and where they are kept; `home` has this user's key."""

    home: Path
    enabled: bool = True
    bom: Path | None = None
    statement: Path | None = None
    key: Path | None = None

    @property
    def by_name(self) -> bool:
        """Whether the user named a path for them, so that failing to write them is a failure."""
        return bool(self.bom or self.statement or self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneImage:
    """An image with its name: what it was made from, where its lock is kept, and what was removed
    from its libraries.
    """

    lock: Lock
    image_id: str
    manifest: Descriptor | None
    kept_lock: Path | None
    cut: CutReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDone:
    """One finished build, as its documents describe it. `images`: one for each platform; `whole` is
    the manifest or the index that has the name (None: an engine has the image).
    """

    name: str
    choice: Choice
    place: str
    images: Sequence[OneImage]
    whole: Descriptor | None
    started: datetime
    request: Request | None
    options: Mapping[str, object] = field(default_factory=dict)


def refuse_documents(documenting: Documenting, locks: int) -> None:
    """Check before the build which documents could not be written after it."""
    for option, path in (("--sbom", documenting.bom), ("--provenance", documenting.statement)):
        if path is None:
            continue
        if not documenting.enabled:
            raise BadInputError(
                f"--no-provenance writes no documents, but {option} names one.",
                fix="Remove one of them.",
            )
        if locks > 1:
            raise BadInputError(
                f"{option} names one file, but several locks make several documents.",
                fix="Remove it: documents are written next to each kept lock.",
            )
        refuse_unwritable(option, path)


def signer_for(documenting: Documenting, console: Console) -> Signer | None:
    """The signer; None if nothing is to be signed, or no key can be stored."""
    if not documenting.enabled:
        return None
    try:
        return signer_of(documenting.home, documenting.key)
    except (StatementError, OSError) as error:
        if documenting.by_name and isinstance(error, StatementError):
            raise
        fix = error.fix if isinstance(error, StatementError) else "Make that directory writable"
        console.warn(
            f"No SBOM and provenance were written: {error}", f"{fix}, or use --no-provenance."
        )
        return None


def keep_documents(
    done: BuildDone,
    documenting: Documenting,
    signer: Signer,
    settings: BuildSettings,
    console: Console,
) -> dict[str, object]:
    """Write them, and attach them if the image is in a registry. Returns the result for the
    account.

    Optional documents that fail are reported as warnings: the requested image exists.
    """
    account: dict[str, object] = {"sbom": None, "provenance": None, "attached": False}
    for one in done.images:
        documents = _make(one, done, signer, settings)
        bom, statement = _write(one, documents, done, documenting, console)
        if one is done.images[0]:
            account |= {"sbom": bom and str(bom), "provenance": statement and str(statement)}
        if done.choice.destination.kind == "registry":
            account["attached"] = _attach(one, documents, done, signer, settings, console)
    return account


def _make(one: OneImage, done: BuildDone, signer: Signer, settings: BuildSettings) -> Documents:
    digests = [d.digest for d in (one.manifest, done.whole) if d is not None]
    return make_documents(
        one.lock,
        BuildRun(
            builder=done.choice.builder,
            started=done.started,
            finished=datetime.now(timezone.utc),
            request=done.request,
            options=done.options,
        ),
        signer,
        name=done.name,
        # a squashfs is known by the digest of its file alone
        images=[one.image_id, *digests]
        if done.choice.destination.kind == "squashfs"
        else [*digests, one.image_id],
        debian=_debian(one.lock.plan, settings),
        changed=None
        if one.cut is None
        else ChangedFiles(
            why=f"--cut {','.join(targets_of(one.cut.gpus))}",
            files=[(row.package, row.path, row.sha256 or "") for row in one.cut.changed],
        ),
    )


def _debian(plan: Plan, settings: BuildSettings) -> Sequence[str]:
    """The packages of a base that was made here."""
    from images.bootstrap.store import find

    base = plan.base
    if base is None or base.kind != "bootstrap" or base.digest is None:
        return ()
    found = find(settings.state, base.digest)
    return found.packages if found else ()


def _write(
    one: OneImage,
    documents: Documents,
    done: BuildDone,
    documenting: Documenting,
    console: Console,
) -> tuple[Path | None, Path | None]:
    near: Path | None = one.kept_lock
    if done.choice.destination.kind in {"layout", "archive", "squashfs"} and len(done.images) == 1:
        near = Path(done.place)
    bom, statement = beside(near) if near else (None, None)
    found: list[Path | None] = []
    for option, named, usual, content in (
        ("--sbom", documenting.bom, bom, documents.bom),
        ("--provenance", documenting.statement, statement, documents.bundle),
    ):
        path = named or usual
        try:
            if path is not None:
                write_document(option, path, content)
        except Failure as failure:
            if named is not None:
                raise
            console.warn(failure.message, failure.fix)
            path = None
        found.append(path)
    return found[0], found[1]


def _attach(
    one: OneImage,
    documents: Documents,
    done: BuildDone,
    signer: Signer,
    settings: BuildSettings,
    console: Console,
) -> bool:
    """To the image of one platform, which is what scanners read."""
    from images.registry.target import RegistryTarget

    where = done.choice.destination.where
    try:
        subject = one.manifest or registry_manifest(where, settings.ca)
        with closing(RegistryTarget.open(where, ca_bundle=settings.ca)) as registry:
            attach_bom(registry, subject, documents.bom)
            attach_provenance(registry, subject, documents.envelope, signer.public)
    except Failure as failure:
        console.warn(f"The documents could not be attached: {failure.message}", failure.fix)
        return False
    return True
