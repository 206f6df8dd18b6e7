"""`provision verify IMAGE --check-record`: judges an earlier record for this image and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from images.oci.model import MANIFEST, Descriptor
from provision.attestation.record.host import RecordedHost
from provision.attestation.record.statement import Statement, lock_digest
from provision.attestation.record.store import (
    RECORDS,
    elsewhere,
    host_now,
    is_there,
    read_record,
    record_path,
    trusted_keys,
)
from provision.attestation.record.verdict import Judgement, judge, missing
from provision.attestation.signing.errors import StatementError
from provision.attestation.signing.keys import PublicKey
from provision.attestation.signing.parser import error_to_json
from provision.lock.labels import LOCK_SHA256
from provision.model.plan import HostFacts
from provision.verification.subject import ImagePlaces, Subject, engine_name, find_subject
from provision.verification.suite import BadReportError, recompute

if TYPE_CHECKING:
    from provision.attestation.provenance.attach import Referrers


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result for a record: a judgement, or why it is not trusted. `keyid`: the signer's key."""

    image: str
    path: Path
    outcome: Judgement | StatementError
    keyid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCase:
    """What a record has to be of: this image, on this machine."""

    name: str
    subject: Subject
    places: ImagePlaces
    host: RecordedHost


def find_case(name: str, *, places: ImagePlaces, facts: HostFacts) -> RecordCase:
    """The named image on this machine; a failure says where the image was looked for."""
    subject = find_subject(name, places)
    host = host_now(facts, engine_name(subject, places))
    return RecordCase(name=name, subject=subject, places=places, host=host)


def check_record(
    case: RecordCase,
    *,
    home: Path,
    path: Path | None,
    trust: Sequence[Path],
    level: str | None,
    folder: str = RECORDS,
    attached: bool = True,
) -> Checked:
    """Judge the record of an image: the named one, or this user's own in `folder` for this kind of
    machine; if there is none and `attached`, one that is attached to the image in its registry. No
    container runs.
    """
    subject, host = case.subject, case.host
    image = subject.image_id
    held = partial(
        judge,
        image=image,
        name=case.name,
        lock=lock_digest(subject.labels.get(LOCK_SHA256)),
        host=host,
        level=level,
        now=datetime.now(timezone.utc),
        contradiction=contradiction,
        manifest=subject.manifest,
        claims=subject.claims,
    )
    # a record of what a file says it is does not prove the file, and the judgement says why
    own = [record_path(home, one, host, folder) for one in (image, *subject.claims)]
    found = path or own[0]
    try:
        trusted = trusted_keys(home, trust)
        found = path or next(filter(is_there, own), own[0])
        absent_here = not is_there(found)
        if attached and absent_here and path is None and subject.registry is not None:
            manifest = (subject.digest or "",)
            there = _attached(subject, case.places, trusted, partial(held, also=manifest))
            if there is not None:
                return there
        if absent_here:
            known = path is None and elsewhere(home, image)
            absent = missing(name=case.name, image=image, host=host, elsewhere=known)
            return Checked(image=image, path=found, outcome=absent)
        statement, keyid = read_record(found, trusted)
    except StatementError as error:
        return Checked(image=image, path=found, outcome=error)
    return Checked(image=image, path=found, outcome=held(statement), keyid=keyid)


def contradiction(statement: Statement) -> str | None:
    """Says if the verdict of a record differs from what its checks add up to, by the suite's rules.

    They are checked against the suite of this version: a record of fewer checks proves less.
    """
    try:
        found = recompute(_as_report(statement), _words(statement), _given(statement))
    except BadReportError as error:
        return f"The record is not that of a whole run: {error.why}."
    if found.verdict == statement.verdict:
        return None
    return (
        f"The record says {statement.verdict}, but its checks add up to {found.verdict}: "
        f"{found.why}."
    )


def _words(statement: Statement) -> list[str]:
    """The suite's options; every check that ran counts as required, whatever the level."""
    ran = ",".join(row["id"] for row in statement.checks if row["status"] != "skip")
    return ["--level", statement.level, *(["--require", ran] if ran else [])]


def _given(statement: Statement) -> dict[str, Any]:
    """The expectations of the run for its GPUs: none is not the same as not known."""
    gpus = statement.host.gpus
    return {"schema": 1, "gpus": None if gpus is None else [{} for _ in gpus]}


def _as_report(statement: Statement) -> dict[str, Any]:
    """The report of the run, as far as the record keeps it; nothing else is judged."""
    gpus = statement.host.gpus or ()
    absent = ("glibc", "shm_bytes", "container", "visible_devices", "cuda_driver", "driver_error")
    environment = {
        "started": statement.time,
        "image": statement.image,
        "python": "3.0",
        "framework": {"name": statement.framework, "version": None},
        "kernel": statement.host.kernel or "",
        "arch": statement.host.arch or "",
        "cpus": 1,
        "device_nodes": 0,
        "driver": None,
        "gpus": [dict.fromkeys(("name", "uuid", "compute_capability", "mig")) for _ in gpus],
        **dict.fromkeys(absent),
    }
    return {
        "schema": 1,
        "verdict": statement.verdict,
        "level": statement.level,
        "environment": environment,
        "checks": [_as_row(check) for check in statement.checks],
    }


def _as_row(check: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": check["id"],
        "title": check["id"],
        "status": check["status"],
        "seconds": 0,
        "message": check["id"],
        "cause": "not kept" if check["status"] == "fail" else None,
        "fix": None,
        "measured": {"device": "cpu"} if check["on_cpu"] else {},
        "expected": {},
    }


def _attached(
    subject: Subject,
    places: ImagePlaces,
    trusted: Mapping[str, PublicKey],
    held: Callable[[Statement], Judgement],
) -> Checked | None:
    """Records attached to the image in its registry, by a machine like this one."""
    from images.registry.reader import RepositoryReader
    from provision.attestation.provenance.attach import find_record

    assert subject.registry is not None
    assert subject.digest is not None
    # attachments are looked up by the image's digest only
    manifest = Descriptor(media_type=MANIFEST, digest=subject.digest, size=0)
    with closing(RepositoryReader.open(subject.registry, ca_bundle=places.ca)) as registry:
        outcome, keyid = find_record(
            cast("Referrers", registry),  # which only reads
            [manifest],
            trusted=trusted,
            judged=held,
        )
    if outcome is None:
        return None
    place = Path(f"{subject.registry} (attached)")
    return Checked(image=subject.image_id, path=place, outcome=outcome, keyid=keyid)


def check_to_json(checked: Checked) -> dict[str, Any]:
    """The result of the command; the format is always the same."""
    outcome = checked.outcome
    sound = outcome if isinstance(outcome, Judgement) else None
    statement = sound.statement if sound else None
    error = error_to_json(outcome)
    return {
        "schema": 1,
        "proven": error is None,
        "verdict": statement.verdict if statement else None,
        "level": statement.level if statement else None,
        "when": statement.time if statement else None,
        "image": checked.image,
        "record": str(checked.path),
        "key": checked.keyid,
        "message": outcome.message,
        "changed": [asdict(change) for change in sound.changed] if sound else [],
        "error": error,
    }
