"""Documents beside an image: found again, judged one by one, and nobody's junk hides them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.oci.errors import DigestMismatchError
from images.oci.model import MANIFEST, Descriptor, descriptor_of
from images.registry.errors import RegistryUnreachableError
from images.registry.referrers import artifact_manifest
from provision.attestation.provenance.attach import (
    MOST,
    Referrers,
    attach_bom,
    attach_provenance,
    attach_signed,
    find_provenance,
    find_record,
)
from provision.attestation.provenance.bundle import BUNDLE, CREATED, PREDICATE, bundle
from provision.attestation.provenance.check import Origin
from provision.attestation.provenance.documents import Documents, make_documents
from provision.attestation.record.statement import Statement, parse_statement
from provision.attestation.record.verdict import Judgement, judge
from provision.attestation.signing.envelope import seal
from provision.attestation.signing.errors import StatementError
from tests.kit.cases import cases
from tests.unit.provision.attestation.test_provenance import START, build, lock_of
from tests.unit.provision.attestation.test_record import FACTS, L4, MINE, TRUSTED, host, signer_of
from tests.unit.provision.attestation.test_record import statement as record

SUBJECT = descriptor_of(MANIFEST, b"{}")
INDEX = descriptor_of(MANIFEST, b"[]")
CONFIG_DIGEST = f"sha256:{'c0' * 32}"
OTHER = signer_of(1)


class Shelf:
    """A place where things are attached, in memory. `damaged` are digests that cannot be read."""

    def __init__(self) -> None:
        self.found: dict[str, list[Descriptor]] = {}
        self.contents: dict[str, bytes] = {}
        self.damaged: set[str] = set()
        self.read: list[str] = []

    def attach(
        self,
        subject: Descriptor,
        *,
        artifact_type: str,
        content: bytes,
        media_type: str,
        annotations: Mapping[str, str],
    ) -> Descriptor:
        blob = descriptor_of(media_type, content)
        made = descriptor_of(
            MANIFEST,
            artifact_manifest(subject, artifact_type, blob, annotations),
            annotations=dict(annotations),
            artifact_type=artifact_type,
        )
        listed = self.found.setdefault(subject.digest, [])
        if made not in listed:
            listed.append(made)
        self.contents[made.digest] = content
        return made

    def referrers(
        self, subject: Descriptor, artifact_type: str | None = None
    ) -> tuple[Descriptor, ...]:
        listed = self.found.get(subject.digest, [])
        return tuple(one for one in listed if artifact_type in {None, one.artifact_type})

    def read_artifact(self, descriptor: Descriptor) -> bytes:
        self.read.append(descriptor.digest)
        if descriptor.digest in self.damaged:
            raise DigestMismatchError("other bytes", fix="")
        return self.contents[descriptor.digest]


def documents(days: int = 0, signer: Any = MINE, name: str = "a:1", **more: Any) -> Documents:
    finished = START + timedelta(days=days)
    return make_documents(
        more.pop("lock", lock_of()),
        build(started=finished, finished=finished, **more),
        signer,
        name=name,
        images=[SUBJECT.digest, CONFIG_DIGEST],
    )


def found(shelf: Referrers, **more: Any) -> tuple[Origin | StatementError, str | None]:
    asked = {"name": "a:1", "images": [SUBJECT.digest], "trusted": TRUSTED, **more}
    return find_provenance(shelf, [SUBJECT], **asked)


def put(shelf: Shelf, content: bytes, **annotations: str) -> Descriptor:
    return shelf.attach(
        SUBJECT, artifact_type=BUNDLE, content=content, media_type=BUNDLE, annotations=annotations
    )


# --- statements of builds ---------------------------------------------------------------------


def test_what_is_attached_is_found_with_who_signed_it() -> None:
    shelf, made = Shelf(), documents()
    attach_bom(shelf, SUBJECT, made.bom)
    attached = attach_provenance(shelf, SUBJECT, made.envelope, MINE.public)
    assert attached.annotations[PREDICATE] == "https://slsa.dev/provenance/v1"
    assert attached.annotations[CREATED] == "2026-11-21T07:30:00Z"
    outcome, keyid = found(shelf)
    assert isinstance(outcome, Origin)
    assert (outcome.verified, keyid) == (True, MINE.keyid)


def test_the_image_s_index_is_asked_too() -> None:
    shelf = Shelf()
    attach_signed(shelf, INDEX, documents().envelope)
    asked: Any = {"name": "a:1", "images": [SUBJECT.digest], "trusted": TRUSTED}
    outcome, _ = find_provenance(shelf, [SUBJECT, INDEX, SUBJECT], **asked)
    assert isinstance(outcome, Origin)
    assert outcome.verified


def test_the_same_build_is_stated_once() -> None:
    shelf = Shelf()
    first = attach_provenance(shelf, SUBJECT, documents(0).envelope, MINE.public)
    assert attach_provenance(shelf, SUBJECT, documents(1).envelope, MINE.public) == first
    assert len(shelf.referrers(SUBJECT)) == 1


@cases(
    "other",
    ("another lock", {"lock": lock_of(text="another")}),
    ("another key", {"signer": OTHER}),
    ("another name", {"name": "b:1"}),
    ("built otherwise", {"options": {"exclude_unneeded": True}}),
)
def test_another_build_is_stated_beside_it(other: dict[str, Any]) -> None:
    shelf = Shelf()
    attach_provenance(shelf, SUBJECT, documents(0).envelope, MINE.public)
    own = other.get("signer", MINE).public
    attach_provenance(shelf, SUBJECT, documents(1, **other).envelope, own)
    assert len(shelf.referrers(SUBJECT)) == 2


def test_nothing_attached_is_said_so() -> None:
    outcome, keyid = found(Shelf())
    assert (outcome.code, keyid) == ("provenance-missing", None)


@cases(
    "contents code",
    ("junk", [b"junk"], "provenance-unreadable"),
    ("a stranger's", [b"junk", documents(signer=OTHER).bundle], "provenance-unknown-key"),
    ("changed", [b"junk", documents().bundle.replace(b'"sig": "', b'"sig": "AAAA')],
     "provenance-tampered"),
)  # fmt: skip
def test_why_nothing_is_believed_is_said(contents: list[bytes], code: str) -> None:
    shelf = Shelf()
    for content in contents:
        put(shelf, content)
    outcome, _ = found(shelf)
    assert isinstance(outcome, StatementError)
    assert outcome.code == code


JUNK = st.sampled_from([
    b"", b"junk", bundle(seal(record(), MINE)), documents(signer=OTHER).bundle,
    documents().bundle.replace(b'"sig": "', b'"sig": "AAAA'), b"{" * 9000,
])  # fmt: skip


@settings(max_examples=60)
@given(st.lists(JUNK, max_size=6), st.lists(JUNK, max_size=6))
def test_no_junk_hides_a_sound_statement(before: list[bytes], after: list[bytes]) -> None:
    shelf = Shelf()
    for content in before:
        put(shelf, content)
    attach_signed(shelf, SUBJECT, documents().envelope)
    for content in after:
        put(shelf, content)
    outcome, keyid = found(shelf)
    assert isinstance(outcome, Origin)
    assert (outcome.verified, keyid) == (True, MINE.keyid)


def test_what_is_damaged_takes_nothing_from_what_is_not() -> None:
    shelf = Shelf()
    shelf.damaged.add(attach_signed(shelf, SUBJECT, documents(1).envelope).digest)
    outcome, _ = found(shelf)
    assert outcome.code == "provenance-missing"
    attach_signed(shelf, SUBJECT, documents(0).envelope)
    assert isinstance(found(shelf)[0], Origin)
    assert found(shelf)[0].code is None


def test_a_registry_out_of_reach_is_no_missing_statement() -> None:
    class Away(Shelf):
        def read_artifact(self, descriptor: Descriptor) -> bytes:
            raise RegistryUnreachableError(descriptor.digest, fix="")

    shelf = Away()
    attach_signed(shelf, SUBJECT, documents().envelope)
    with pytest.raises(RegistryUnreachableError):
        found(shelf)


def test_a_statement_of_this_image_goes_before_a_later_one_of_another() -> None:
    shelf = Shelf()
    attach_signed(shelf, SUBJECT, documents(0).envelope)
    stray = make_documents(
        lock_of(), build(finished=START + timedelta(9)), MINE, name="b:1", images=[INDEX.digest]
    )
    attach_signed(shelf, SUBJECT, stray.envelope)
    assert found(shelf)[0].code is None
    assert found(shelf, images=["sha256:" + "ee" * 32])[0].code == "provenance-other-image"


def test_annotations_prove_nothing_and_only_spare_reading() -> None:
    shelf = Shelf()
    said = put(shelf, documents(signer=OTHER).bundle, **{PREDICATE: "https://e.example/other"})
    put(shelf, bundle(seal(record(), MINE)), **{PREDICATE: "https://slsa.dev/provenance/v1"})
    assert found(shelf)[0].code == "provenance-unreadable"
    assert said.digest not in shelf.read


def test_attachments_without_end_are_not_all_read() -> None:
    shelf = Shelf()
    for i in range(MOST + 20):
        put(shelf, b"junk", number=str(i))
    found(shelf)
    assert len(shelf.read) == MOST


# --- records ----------------------------------------------------------------------------------

IMAGE = f"sha256:{'a1' * 32}"


def held(statement: Statement) -> Judgement:
    asked: Any = {
        "image": IMAGE,
        "name": "a:1",
        "lock": "b2" * 32,
        "host": host(),
        "level": "quick",
        "now": datetime(2026, 12, 1, tzinfo=timezone.utc),
        "contradiction": lambda _: None,
    }
    return judge(statement, **asked)


def recorded(day: int, verdict: str = "fit", signer: Any = MINE, **more: Any) -> bytes:
    made = record(verdict, **more)
    made["predicate"]["time"] = f"2026-11-{day:02}T00:00:00Z"
    return seal(made, signer)


OLD_DRIVER = host(FACTS._replace(driver="470.1"))
ELSEWHERE = host(FACTS._replace(gpus=(L4,)))


@cases(
    "records code time",
    ("none", [], "nothing", None),
    ("one", [recorded(1)], None, "01"),
    ("the latest of two", [recorded(2), recorded(1)], None, "02"),
    ("fit once, unfit now", [recorded(2, "unfit"), recorded(1)], "record-unfit", "02"),
    ("unfit once, fit now", [recorded(1, "unfit"), recorded(2)], None, "02"),
    ("another's driver", [recorded(1), recorded(2, host=OLD_DRIVER)], None, "01"),
    ("another's GPUs", [recorded(1), recorded(2, "unfit", host=ELSEWHERE)], None, "01"),
    ("the nearest that there is", [recorded(1, host=ELSEWHERE), recorded(2, host=OLD_DRIVER)],
     "record-driver-changed", "02"),
    ("a stranger's counts not", [recorded(2, "unfit", signer=OTHER), recorded(1)], None, "01"),
    ("only a stranger's", [recorded(2, signer=OTHER)], "record-unknown-key", None),
    ("another image", [recorded(2, image=f"sha256:{'ee' * 32}")], "record-other-image", "02"),
    ("by another digest", [recorded(2, image=f"sha256:{'ee' * 32}", also=[IMAGE])], None, "02"),
)  # fmt: skip
def test_of_the_records_of_an_image_the_latest_that_speaks_of_this_decides(
    records: list[bytes], code: str | None, time: str | None
) -> None:
    shelf = Shelf()
    for one in records:
        attach_signed(shelf, SUBJECT, one)
    outcome, _ = find_record(shelf, [SUBJECT], trusted=TRUSTED, judged=held)
    assert (outcome.code if outcome is not None else "nothing") == code
    if time is None:
        assert outcome is None or isinstance(outcome, StatementError)
    else:
        assert isinstance(outcome, Judgement)
        assert outcome.statement is not None
        assert outcome.statement.time == f"2026-11-{time}T00:00:00Z"


def test_a_record_and_a_statement_do_not_answer_for_each_other() -> None:
    shelf = Shelf()
    attach_signed(shelf, SUBJECT, recorded(1))
    assert found(shelf)[0].code == "provenance-missing"
    other = Shelf()
    attach_signed(other, SUBJECT, documents().envelope)
    assert find_record(other, [SUBJECT], trusted=TRUSTED, judged=held) == (None, None)


@cases(
    "subject",
    ("none", []),
    ("many", [{"name": "a", "digest": {"sha256": f"{i:064x}"}} for i in range(9)]),
    ("two names", [{"name": name, "digest": {"sha256": "a1" * 32}} for name in ("a", "b")]),
    ("a digest that is none",
     [{"name": "a", "digest": {"sha256": digest}} for digest in ("a1" * 32, "zz")]),
)  # fmt: skip
def test_a_record_speaks_of_one_image_by_its_digests(subject: list[Any]) -> None:
    shelf = Shelf()
    attach_signed(shelf, SUBJECT, seal({**record(), "subject": subject}, MINE))
    outcome, _ = find_record(shelf, [SUBJECT], trusted=TRUSTED, judged=held)
    assert isinstance(outcome, StatementError)
    assert outcome.code == "record-unreadable"


def test_the_digests_of_a_record_s_image_are_no_change() -> None:
    made = record(image=CONFIG_DIGEST, also=[IMAGE])
    found_ = held(parse_statement(json.dumps(made).encode()))
    assert (found_.verified, found_.changed) == (True, ())
    assert found_.statement is not None
    assert found_.statement.images == {CONFIG_DIGEST, IMAGE}
