"""`provision verify IMAGE --check-record`: what an earlier record is worth here and now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from images.oci.model import MANIFEST, Descriptor
from provision.labels import LOCK_SHA256
from provision.model import HostFacts
from provision.record.errors import RecordError
from provision.record.judge import Judgement, judge, missing
from provision.record.keys import PublicKey
from provision.record.store import elsewhere, host_now, read_record, record_path, trusted_keys
from provision.subject import Places, Subject, engine_name, find_subject

if TYPE_CHECKING:
    from provision.provenance.attach import Referrers


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of a record: a judgement, or why it is not believed. `keyid`: who signed it."""

    image: str
    path: Path
    outcome: Judgement | RecordError
    keyid: str | None = None


def check_record(
    name: str,
    *,
    places: Places,
    facts: HostFacts,
    home: Path,
    path: Path | None,
    trust: Sequence[Path],
    level: str | None,
) -> Checked:
    """Judge the record of an image: the one named, or this user's own of this kind of machine.
    No container runs.
    """
    subject = find_subject(name, places)
    image, lock = subject.image_id, subject.labels.get(LOCK_SHA256)
    host = host_now(facts, engine_name(subject, places))
    found = path or record_path(home, image, host)
    try:
        trusted = trusted_keys(home, trust)
        if not found.exists() and path is None and subject.registry is not None:
            attached = _attached(subject, places, trusted, host=host, lock=lock, level=level)
            if attached is not None:
                return attached
        if not found.exists():
            known = path is None and elsewhere(home, image)
            absent = missing(name=name, image=image, host=host, elsewhere=known)
            return Checked(image=image, path=found, outcome=absent)
        statement, keyid = read_record(found, trusted)
    except RecordError as error:
        return Checked(image=image, path=found, outcome=error)
    judgement = judge(statement, image=image, name=name, lock=lock, host=host, level=level)
    return Checked(image=image, path=found, outcome=judgement, keyid=keyid)


def _attached(
    subject: Subject,
    places: Places,
    trusted: Mapping[str, PublicKey],
    *,
    host: Mapping[str, Any],
    lock: str | None,
    level: str | None,
) -> Checked | None:
    """What is attached to the image in its registry, by a machine like this one."""
    from images.registry.reader import RepositoryReader
    from provision.provenance.attach import find_record

    assert subject.registry is not None
    assert subject.digest is not None
    # a subject is looked up by its digest alone
    manifest = Descriptor(media_type=MANIFEST, digest=subject.digest, size=0)
    with closing(RepositoryReader.open(subject.registry, ca_bundle=places.ca)) as registry:
        outcome, keyid = find_record(
            cast("Referrers", registry),  # which only reads
            [manifest],
            trusted=trusted,
            judged=lambda statement: judge(
                statement,
                image=subject.image_id,
                also=(subject.digest or "",),
                name=subject.name,
                lock=lock,
                host=host,
                level=level,
            ),
        )
    if outcome is None:
        return None
    place = Path(f"{subject.registry} (attached)")
    return Checked(image=subject.image_id, path=place, outcome=outcome, keyid=keyid)


def check_to_json(checked: Checked) -> dict[str, Any]:
    """The result of the command, of the same shape whatever was found."""
    outcome = checked.outcome
    sound = outcome if isinstance(outcome, Judgement) else None
    statement = sound.statement if sound else None
    wrong = None if sound and sound.proven else outcome
    return {
        "schema": 1,
        "proven": wrong is None,
        "verdict": statement.verdict if statement else None,
        "level": statement.level if statement else None,
        "when": statement.time if statement else None,
        "image": checked.image,
        "record": str(checked.path),
        "key": checked.keyid,
        "message": outcome.message,
        "changed": [asdict(change) for change in sound.changed] if sound else [],
        "error": {"code": wrong.code, "message": wrong.message, "fix": wrong.fix}
        if wrong
        else None,
    }
