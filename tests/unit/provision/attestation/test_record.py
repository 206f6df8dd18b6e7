"""Records: what they say, that nobody can change them unseen, and what they are worth later."""

from __future__ import annotations

import base64
import copy
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NoReturn

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.attestation.record.errors import RecordUnreadableError
from provision.attestation.record.host import recorded_host
from provision.attestation.record.statement import (
    PREDICATE_TYPE,
    RECORD,
    make_statement,
    parse_statement,
)
from provision.attestation.record.store import (
    elsewhere,
    is_there,
    read_record,
    record_path,
    trusted_keys,
    write_record,
)
from provision.attestation.record.verdict import Judgement, changes, judge, missing
from provision.attestation.signing.envelope import PAYLOAD_TYPE, pae, seal, unseal
from provision.attestation.signing.errors import BadKeyError, StatementError
from provision.attestation.signing.keys import (
    PRIVATE,
    PUBLIC,
    PublicKey,
    Signer,
    own_public,
    own_signer,
    public_pem,
    read_public,
    read_signer,
)
from provision.model.plan import Gpu, HostFacts
from tests import ROOT
from tests.kit.cases import cases
from tests.unit.provision.lock.test_lock import PLAN

IMAGE = f"sha256:{'a1' * 32}"
LOCK = "b2" * 32
NOW = datetime(2026, 11, 21, 9, 30, tzinfo=timezone.utc)
UUID = "GPU-11111111-2222-3333-4444-555555555555"
H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    memory_mib=81559,
    uuid=UUID,
    mig=False,
)
FACTS = HostFacts(
    driver="535.104.05", driver_cuda="12.2", arch="x86_64", glibc="2.36", gpus=(H100, H100)
)
METRIC = {
    "name": "gemm",
    "value": 600e12,
    "unit": "FLOP/s",
    "better": "higher",
    "repeats": 9,
    "spread": 0.01,
    "labels": {"dtype": "bf16"},
    "spec": 989e12,
    "of_spec": 0.6,
}


def row(name: str, status: str, **measured: Any) -> dict[str, Any]:
    return {"id": name, "status": status, "message": f"said of {name}", "measured": measured}


def report(verdict: str = "fit") -> dict[str, Any]:
    return {
        "schema": 1,
        "verdict": verdict,
        "checks": [
            row("speed.gemm", "pass", metrics=[METRIC]),
            row("training.loss", "pass", device="cpu"),
            row("collectives.nccl", "skip"),
            row("devices.kernel", "fail"),
            row("devices.count", "error"),
        ],
    }


MANIFEST = f"sha256:{'f6' * 32}"


def host(facts: HostFacts = FACTS, kernel: str = "6.1.0", engine: str = "docker 26.1") -> Any:
    return recorded_host(facts, kernel=kernel, engine=engine)


def statement(verdict: str = "fit", level: str = "standard", **changes: Any) -> dict[str, Any]:
    return make_statement(
        report(verdict),
        report_sha256="c3" * 32,
        plan=PLAN,
        level=level,
        now=NOW,
        **{"name": "team/torch:1", "image": IMAGE, "lock": LOCK, "host": host(), **changes},
    )


def signer_of(seed: int = 0) -> Signer:
    """A key that is the same in every run."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Signer(PublicKey(hashlib.sha256(spki).hexdigest(), key.public_key()), key)


MINE = signer_of()
TRUSTED = {MINE.keyid: MINE.public}
SEALED = seal(statement(), MINE)


# --- what a record says -----------------------------------------------------------------------


def test_a_record_is_an_in_toto_statement() -> None:
    made = statement()
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == PREDICATE_TYPE
    assert made["subject"] == [{"name": "team/torch:1", "digest": {"sha256": "a1" * 32}}]
    assert set(made) == {"_type", "subject", "predicateType", "predicate"}


def test_a_record_says_what_was_proven_and_with_what() -> None:
    predicate = statement()["predicate"]
    assert predicate["time"] == "2026-11-21T09:30:00Z"
    assert (predicate["verdict"], predicate["level"]) == ("fit", "standard")
    assert predicate["lock"] == {"sha256": LOCK}
    assert predicate["report"] == {"sha256": "c3" * 32}
    assert predicate["plan"]["framework"] == {"name": "pytorch", "version": "2.0.1"}
    assert predicate["host"]["driver"] == "535.104.05"


def test_a_record_keeps_the_checks_apart_with_their_numbers() -> None:
    checks = statement()["predicate"]["checks"]
    assert {group: [row["id"] for row in rows] for group, rows in checks.items()} == {
        "passed": ["speed.gemm", "training.loss"],
        "failed": ["devices.kernel", "devices.count"],
        "skipped": ["collectives.nccl"],
    }
    assert checks["passed"][0]["metrics"][0]["value"] == 600e12
    assert [row["on_cpu"] for row in checks["passed"]] == [False, True]
    assert checks["skipped"][0]["message"] == "said of collectives.nccl"


def test_a_record_does_not_name_the_cards() -> None:
    text = json.dumps(statement())
    assert UUID not in text
    assert hashlib.sha256(UUID.encode()).hexdigest() in text


@cases(
    "metrics",
    ("null", None),
    ("a word", "many"),
    ("no objects", [5, None]),
)
def test_numbers_that_are_none_are_left_out(metrics: object) -> None:
    bad = {**report(), "checks": [row("a.b", "pass", metrics=metrics)]}
    made = make_statement(
        bad,
        report_sha256="c3" * 32,
        name="a",
        image=IMAGE,
        plan=PLAN,
        lock=None,
        host=host(),
        level="quick",
        now=NOW,
    )
    assert made["predicate"]["checks"]["passed"][0]["metrics"] == []


DOCS = (ROOT / "docs" / "record.md").read_text()


def test_the_document_describes_the_record() -> None:
    assert f"`{PREDICATE_TYPE}`" in DOCS
    rows = DOCS.partition("| member | content |")[2].splitlines()
    named = {word for line in rows for word in line.partition("|")[2].partition("|")[0].split("`")}
    assert [key for key in statement()["predicate"] if key not in named] == []


def test_a_lock_s_digest_that_is_none_is_left_out() -> None:
    assert statement(lock="latest")["predicate"]["lock"] is None


GPUS = st.none() | st.lists(
    st.builds(
        Gpu,
        name=st.none() | st.sampled_from(["NVIDIA H100 80GB HBM3", "NVIDIA L4", "\u00e9 ü"]),
        compute_capability=st.none() | st.tuples(st.integers(3, 12), st.integers(0, 9)),
        memory_mib=st.none() | st.integers(0, 200_000),
        uuid=st.none() | st.text(max_size=40).filter(lambda t: t.isprintable()),
        mig=st.none() | st.booleans(),
    ),
    max_size=4,
).map(tuple)
HOSTS = st.builds(
    HostFacts,
    driver=st.none() | st.sampled_from(["535.104.05", "580.95.05"]),
    arch=st.none() | st.sampled_from(["x86_64", "aarch64"]),
    gpus=GPUS,
)


@given(HOSTS, st.sampled_from(["fit", "unfit", "no-verdict"]), st.sampled_from(["quick", "full"]))
def test_what_goes_into_a_record_comes_out(facts: HostFacts, verdict: str, level: str) -> None:
    made = statement(verdict, level, host=host(facts))
    payload, keyid = unseal(seal(made, MINE), TRUSTED, RECORD)
    assert (json.loads(payload), keyid) == (made, MINE.keyid)
    found = parse_statement(payload)
    assert (found.image, found.verdict, found.level, found.lock) == (IMAGE, verdict, level, LOCK)
    assert found.host.is_like(host(facts))
    assert found.host.slug == host(facts).slug
    assert changes(found, image=IMAGE, lock=LOCK, host=host(facts)) == ()


@given(HOSTS)
def test_the_order_of_the_slots_is_no_other_kind_of_machine(facts: HostFacts) -> None:
    turned = facts._replace(gpus=None if facts.gpus is None else facts.gpus[::-1])
    assert host(facts).slug == host(turned).slug
    assert host(facts).is_like(host(turned))


@cases(
    "facts words",
    ("two alike", FACTS, "2-x-nvidia-h100-80gb-hbm3-9-0-"),
    ("none there", HostFacts(gpus=()), "no-gpu-"),
    ("not known", HostFacts(), "gpus-not-known-"),
    ("a path for a name", HostFacts(gpus=(Gpu(name="../../x"),)), "1-x-x-cap"),
    ("an endless name", HostFacts(gpus=(Gpu(name="x" * 5000),)), "1-x-xxx"),
)
def test_the_kind_of_machine_is_readable_in_the_file_s_name(facts: HostFacts, words: str) -> None:
    found = host(facts).slug
    assert found.startswith(words)
    assert len(found) <= 70
    assert all(c.isalnum() or c == "-" for c in found)


# --- the envelope -----------------------------------------------------------------------------


def test_what_is_signed_is_the_encoding_of_the_standard() -> None:
    """The example of https://github.com/secure-systems-lab/dsse/blob/master/protocol.md."""
    said = pae("http://example.com/HelloWorld", b"hello world")
    assert said == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_lengths_are_of_bytes() -> None:
    assert pae("\u00e9", b"\xc3\xa9") == b"DSSEv1 2 \xc3\xa9 2 \xc3\xa9"


def test_an_envelope_has_the_members_of_the_standard() -> None:
    envelope = json.loads(SEALED)
    assert set(envelope) == {"payload", "payloadType", "signatures"}
    assert envelope["payloadType"] == PAYLOAD_TYPE == "application/vnd.in-toto+json"
    assert [set(entry) for entry in envelope["signatures"]] == [{"keyid", "sig"}]


def test_the_key_is_named_by_the_digest_of_its_public_half() -> None:
    der = load_public_der(MINE.public)
    assert json.loads(SEALED)["signatures"][0]["keyid"] == hashlib.sha256(der).hexdigest()


def load_public_der(public: PublicKey) -> bytes:
    pem = public_pem(public).decode().splitlines()
    return base64.b64decode("".join(pem[1:-1]))


def test_anybody_can_check_a_signature_with_other_tools() -> None:
    envelope = json.loads(SEALED)
    payload = base64.b64decode(envelope["payload"])
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    kind = envelope["payloadType"].encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    MINE.public._key.verify(signature, signed)


def edited(**changes: Any) -> bytes:
    return json.dumps({**json.loads(SEALED), **changes}).encode()


def signature(**changes: Any) -> dict[str, Any]:
    return {"signatures": [{**json.loads(SEALED)["signatures"][0], **changes}]}


def payload_with(path: str, value: object) -> str:
    """The payload with one value of the statement changed, correctly encoded."""
    made: Any = statement()
    *way, last = path.split(".")
    inner = made
    for part in way:
        inner = inner[int(part)] if part.isdigit() else inner[part]
    place: Any = int(last) if last.isdigit() else last
    assert json.dumps(inner[place]) != json.dumps(value)
    inner[place] = value
    return base64.b64encode(json.dumps(made, separators=(",", ":")).encode()).decode()


OTHER = seal(statement("unfit", image=f"sha256:{'d4' * 32}"), MINE)
OTHERS_KEY = json.loads(seal(statement(), signer_of(7)))["signatures"][0]
LAST = json.loads(SEALED)["signatures"][0]["sig"]
FORGERIES = [
    pytest.param(edited(payload=payload_with("predicate.verdict", "unfit")), "tampered",
                 id="the verdict"),
    pytest.param(edited(payload=payload_with("subject.0.digest", {"sha256": "d4" * 32})),
                 "tampered", id="another image's digest"),
    pytest.param(edited(payload=json.loads(OTHER)["payload"]), "tampered",
                 id="another record's payload"),
    pytest.param(edited(signatures=json.loads(OTHER)["signatures"]), "tampered",
                 id="another record's signature"),
    pytest.param(edited(**signature(sig=OTHERS_KEY["sig"])), "tampered",
                 id="another key's signature"),
    pytest.param(edited(signatures=[OTHERS_KEY]), "unknown-key",
                 id="signed again by somebody unknown"),
    pytest.param(edited(**signature(keyid="0" * 64)), "unknown-key", id="another key's name"),
    pytest.param(edited(**signature(keyid="")), "unknown-key", id="no key's name"),
    pytest.param(edited(**signature(keyid=None)), "unknown-key", id="null for a key"),
    pytest.param(edited(**signature(keyid=["a"])), "unknown-key", id="a list for a key"),
    pytest.param(edited(**signature(sig=base64.b64encode(bytes(64)).decode())), "tampered",
                 id="zeros"),
    pytest.param(edited(**signature(sig="")), "unreadable", id="no signature"),
    pytest.param(edited(signatures=[]), "unreadable", id="not signed"),
    pytest.param(edited(signatures=[*signature()["signatures"], OTHERS_KEY]), "unreadable",
                 id="a second signature"),
    pytest.param(edited(**signature(alg="none")), "unreadable", id="an algorithm named: none"),
    pytest.param(edited(**signature(alg="hs256")), "unreadable", id="an algorithm named: HMAC"),
    pytest.param(edited(alg="none"), "unreadable", id="an algorithm beside the payload"),
    pytest.param(edited(payloadType="text/plain"), "unreadable", id="another type"),
    pytest.param(edited(payloadType=None), "unreadable", id="no type"),
    pytest.param(edited(payload=statement()), "unreadable", id="a payload that is not encoded"),
    pytest.param(edited(payload=json.loads(SEALED)["payload"] + "\n"), "unreadable",
                 id="a line after it"),
    pytest.param(edited(payload=json.loads(SEALED)["payload"].rstrip("=")[:-1]), "unreadable",
                 id="a payload cut short"),
    pytest.param(SEALED[: len(SEALED) // 2], "unreadable", id="half of the file"),
    pytest.param(b"", "unreadable", id="an empty file"),
    pytest.param(b"[]", "unreadable", id="a list"),
    pytest.param(b"[" * 100_000, "unreadable", id="nested without end"),
    pytest.param(b"\xff\xfe", "unreadable", id="no text"),
    pytest.param(SEALED.replace(b'"payloadType"', b'"payload": "eA==", "payloadType"', 1),
                 "unreadable", id="a second payload"),
    pytest.param(json.dumps(statement()).encode(), "unreadable", id="a bare statement"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "slug_"), FORGERIES)
def test_what_was_changed_is_refused(data: bytes, slug_: str) -> None:
    with pytest.raises(StatementError) as caught:
        unseal(data, TRUSTED, RECORD)
    assert caught.value.code == f"record-{slug_}"
    assert caught.value.exit_code == 2
    again = "--trust KEY.pub.pem" if slug_ == "unknown-key" else "provision verify IMAGE"
    assert caught.value.fix.endswith(f": {again}")


@settings(max_examples=400)
@given(st.integers(0, len(SEALED) - 1), st.integers(0, 255))
def test_no_single_byte_can_be_changed_unseen(position: int, byte: int) -> None:
    data = bytearray(SEALED)
    data[position] = byte
    _refused_or_the_same(bytes(data))


def test_no_bit_of_payload_key_and_signature_can_be_changed_unseen() -> None:
    """Each place once, its lowest bit."""
    for position in range(len(SEALED)):
        data = bytearray(SEALED)
        data[position] ^= 1
        _refused_or_the_same(bytes(data))


@given(st.integers(0, len(SEALED)), st.binary(min_size=1, max_size=4))
def test_nothing_can_be_put_in_unseen(position: int, more: bytes) -> None:
    _refused_or_the_same(SEALED[:position] + more + SEALED[position:])


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 20))
def test_nothing_can_be_taken_out_unseen(position: int, count: int) -> None:
    _refused_or_the_same(SEALED[:position] + SEALED[position + count :])


def _refused_or_the_same(data: bytes) -> None:
    try:
        payload, _ = unseal(data, TRUSTED, RECORD)
    except StatementError:
        return
    assert json.loads(data) == json.loads(SEALED)
    assert json.loads(payload) == statement()


@pytest.mark.parametrize(
    "path",
    [
        "_type", "predicateType", "subject", "predicate", "subject.0.digest", "subject.0.name",
        "predicate.schema", "predicate.time", "predicate.verdict", "predicate.level",
        "predicate.lock", "predicate.host", "predicate.host.driver", "predicate.host.gpus",
        "predicate.host.gpus.0", "predicate.host.gpus.0.mig", "predicate.host.gpus.0.memory_mib",
        "predicate.host.gpus.0.name", "predicate.plan", "predicate.plan.framework",
        "predicate.report", "predicate.report.sha256", "predicate.checks",
        "predicate.checks.passed", "predicate.checks.failed.0", "predicate.checks.skipped.0.id",
        "predicate.checks.passed.0.on_cpu",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [7, "x", [5], {"a": 1}, True], ids=repr)
def test_a_statement_of_another_shape_is_refused_though_it_is_signed(
    path: str, value: object
) -> None:
    allowed = {("predicate.host.driver", "x"), ("subject.0.name", "x")}
    allowed |= {("predicate.host.gpus.0.name", "x")}
    fits = path.endswith("mig") and value is True
    fits = fits or (path.endswith("memory_mib") and type(value) is int)
    fits = fits or (path.endswith(("host", "gpus.0")) and isinstance(value, dict))  # all unknown
    fits = fits or (path.endswith("on_cpu") and value is True)
    fits = fits or (path, value if isinstance(value, str) else None) in allowed
    made = json.loads(base64.b64decode(payload_with(path, copy.deepcopy(value))))
    data = seal(made, MINE)
    payload, _ = unseal(data, TRUSTED, RECORD)
    if fits:
        parse_statement(payload)
        return
    with pytest.raises(RecordUnreadableError):
        parse_statement(payload)


@cases(
    "time",
    ("a thirteenth month", "2026-13-01T00:00:00Z"),
    ("a day that February does not have", "2026-02-30T00:00:00Z"),
    ("an hour after the last", "2026-01-01T24:00:00Z"),
    ("the year nought", "0000-01-01T00:00:00Z"),
    ("digits of another script", "٢٠٢٦-01-01T00:00:00Z"),
    ("a line end behind it", "2026-01-01T00:00:00Z\n"),
)
def test_a_time_that_does_not_exist_is_refused(time: str) -> None:
    made = statement()
    made["predicate"]["time"] = time
    with pytest.raises(RecordUnreadableError, match="time"):
        parse_statement(json.dumps(made).encode())


# --- keys -------------------------------------------------------------------------------------


def test_a_machine_s_key_is_made_once_and_is_nobody_else_s(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "keys"
    first = own_signer(folder)
    assert own_signer(folder).keyid == first.keyid
    assert stat.S_IMODE((folder / PRIVATE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    public = own_public(folder)
    assert public is not None
    assert public.keyid == first.keyid
    assert sorted(path.name for path in folder.iterdir()) == [PRIVATE, PUBLIC]


def test_two_machines_have_two_keys(tmp_path: Path) -> None:
    assert own_signer(tmp_path / "a").keyid != own_signer(tmp_path / "b").keyid


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: own_signer(tmp_path / "k").keyid, range(8)))
    assert len(set(keys)) == 1


def test_a_key_that_others_may_read_signs_nothing(tmp_path: Path) -> None:
    own_signer(tmp_path)
    (tmp_path / PRIVATE).chmod(0o640)
    with pytest.raises(BadKeyError, match="0640") as caught:
        own_signer(tmp_path)
    assert caught.value.code == "bad-record-key"


def _of_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    folder.chmod(0o755)


def _unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lstat = Path.lstat

    def refused(path: Path) -> os.stat_result:
        if path.parent == folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refused)


def _widened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (folder / PRIVATE).chmod(0o644)


def _linked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (folder / PRIVATE).rename(folder / "other.pem")
    (folder / PRIVATE).symlink_to("other.pem")


@cases(
    "spoil words",
    ("another user's key", _of_another, "belongs to user .* is not trusted"),
    ("another user's folder", _unreadable, "cannot be read: Permission denied"),
    ("a key that others may read", _widened, "readable by others"),
    ("a link in place of a key", _linked, "cannot be read"),
)
def test_a_key_that_others_could_have_put_there_is_not_trusted(
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signer = own_signer(tmp_path / "keys")
    other = own_signer(tmp_path / "other")
    spoil(tmp_path / "keys", monkeypatch)
    for use in (own_public, own_signer):
        with pytest.raises(BadKeyError, match=words):
            use(tmp_path / "keys")
    with pytest.raises(BadKeyError, match=words):
        trusted_keys(tmp_path, [])
    named = trusted_keys(tmp_path, [tmp_path / "other" / PUBLIC])
    assert list(named) == [other.keyid]
    assert signer.keyid not in named


def test_a_public_key_alone_is_not_trusted(tmp_path: Path) -> None:
    """In a directory of several users, anybody can have put it there."""
    own_signer(tmp_path / "keys")
    (tmp_path / "keys" / PRIVATE).unlink()
    assert trusted_keys(tmp_path, []) == {}


def test_an_exchanged_public_key_is_not_trusted(tmp_path: Path) -> None:
    signer, other = own_signer(tmp_path / "keys"), own_signer(tmp_path / "other")
    (tmp_path / "keys" / PUBLIC).write_bytes(public_pem(other.public))
    assert list(trusted_keys(tmp_path, [])) == [signer.keyid]


def test_whether_a_record_is_there_may_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_there(tmp_path / "absent")
    assert not is_there(tmp_path / "absent" / "record.json")

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(RecordUnreadableError, match="Permission denied"):
        is_there(tmp_path / "record.json")


def test_a_team_s_own_key_signs(tmp_path: Path) -> None:
    path = tmp_path / "team.pem"
    key = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    signer = read_signer(path)
    (tmp_path / "team.pub.pem").write_bytes(public_pem(signer.public))
    public = read_public(tmp_path / "team.pub.pem")
    assert unseal(seal(statement(), signer), {public.keyid: public}, RECORD)[1] == signer.keyid


def private(key: Any, word: bytes | None = None) -> bytes:
    sealed = BestAvailableEncryption(word) if word else NoEncryption()
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed)
    return pem


def public(key: Any) -> bytes:
    pem: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


EC, ED = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()


@cases(
    "data words",
    ("not there", None, "There is no key"),
    ("empty", b"", "holds no private Ed25519 key"),
    ("no PEM", b"\xff" * 200_000, "holds no private Ed25519 key"),
    ("of another kind", private(EC), "holds no private Ed25519 key"),
    ("the public half", public(ED.public_key()), "holds no private"),
    ("with a passphrase", private(ED, b"word"), "passphrase"),
)
def test_what_is_no_key_signs_nothing(tmp_path: Path, data: bytes | None, words: str) -> None:
    path = tmp_path / "key.pem"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BadKeyError, match=words) as caught:
        read_signer(path)
    assert (caught.value.code, caught.value.exit_code) == ("bad-record-key", 2)


@cases(
    "data",
    ("empty", b""),
    ("of another kind", public(EC.public_key())),
    ("an older kind", public(rsa.generate_private_key(65537, 2048).public_key())),
    ("the private half", private(ED)),
)
def test_what_is_no_key_is_not_trusted(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "key.pem").write_bytes(data)
    with pytest.raises(BadKeyError) as caught:
        trusted_keys(tmp_path, [tmp_path / "key.pem"])
    assert caught.value.code == "bad-record-key"


def test_the_private_key_is_read_back_by_other_tools(tmp_path: Path) -> None:
    signer = own_signer(tmp_path)
    loaded = load_pem_private_key((tmp_path / PRIVATE).read_bytes(), password=None)
    assert isinstance(loaded, ed25519.Ed25519PrivateKey)
    assert loaded.sign(b"x") == signer.sign(b"x")  # Ed25519 signs alike every time


# --- where records lie ------------------------------------------------------------------------


def test_a_record_is_found_by_image_and_kind_of_machine(tmp_path: Path) -> None:
    signer = own_signer(tmp_path / "keys")
    path = record_path(tmp_path, IMAGE, host())
    assert path.parent == tmp_path / "records"
    assert path.name.startswith("a1a1a1a1a1a1.2-x-nvidia-h100-80gb-hbm3-9-0-")
    write_record(path, statement(), signer)
    found, keyid = read_record(path, trusted_keys(tmp_path, []))
    assert (found.image, keyid) == (IMAGE, signer.keyid)
    assert elsewhere(tmp_path, IMAGE)
    assert not elsewhere(tmp_path, f"sha256:{'e5' * 32}")
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_driver_is_not_the_kind_of_machine(tmp_path: Path) -> None:
    newer = host(FACTS._replace(driver="580.95.05"))
    assert record_path(tmp_path, IMAGE, host()) == record_path(tmp_path, IMAGE, newer)


def test_a_record_of_another_machine_needs_its_key(tmp_path: Path) -> None:
    other = own_signer(tmp_path / "other" / "keys")
    own_signer(tmp_path / "mine" / "keys")
    write_record(tmp_path / "record.json", statement(), other)
    with pytest.raises(StatementError) as caught:
        read_record(tmp_path / "record.json", trusted_keys(tmp_path / "mine", []))
    assert caught.value.code == "record-unknown-key"
    assert "--trust" in caught.value.fix
    named = trusted_keys(tmp_path / "mine", [tmp_path / "other" / "keys" / PUBLIC])
    assert read_record(tmp_path / "record.json", named)[1] == other.keyid


@cases(
    "make",
    ("a directory", lambda path: path.mkdir()),
    ("a link to itself", lambda path: path.symlink_to(path)),
    ("an endless file", lambda path: path.symlink_to("/dev/zero")),
)
def test_what_cannot_be_read_is_said(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "record.json")
    with pytest.raises(RecordUnreadableError):
        read_record(tmp_path / "record.json", TRUSTED)


# --- what a record is worth -------------------------------------------------------------------


def judged(made: dict[str, Any] | None = None, **changes: Any) -> Judgement:
    payload = json.dumps(made or statement()).encode()
    asked: Any = {
        "image": IMAGE,
        "name": "team/torch:1",
        "lock": LOCK,
        "host": host(),
        "level": None,
        "now": NOW,
        "contradiction": lambda _: None,
    }
    return judge(parse_statement(payload), **{**asked, **changes})


L4 = Gpu(name="NVIDIA L4", compute_capability=(8, 9))
DRIVERLESS = FACTS._replace(driver=None)


@cases(
    "made changed code exit_code words",
    ("more than was asked", {}, {"level": "quick"}, None, 0, "standard"),
    ("less", {}, {"level": "full"}, "record-lower-level", 7, "requested level is full"),
    ("another kernel", {}, {"host": host(kernel="6.8.0")}, None, 0, "Fit"),
    ("another card of the same kind", {},
     {"host": host(FACTS._replace(gpus=(H100._replace(uuid="GPU-9"), H100)))}, None, 0, "Fit"),
    ("a newer driver", {}, {"host": host(FACTS._replace(driver="580.95.05"))},
     "record-driver-changed", 7, "the driver is now 580.95.05"),
    ("no driver any more", {}, {"host": host(DRIVERLESS)}, "record-driver-changed", 7,
     "the driver is now none"),
    ("another GPU", {}, {"host": host(FACTS._replace(gpus=(H100, L4)))}, "record-other-host", 7,
     "1 x NVIDIA L4 (8.9)"),
    ("MIG switched on", {}, {"host": host(FACTS._replace(gpus=(H100._replace(mig=True), H100)))},
     "record-other-host", 7, "MIG"),
    ("GPUs not known are like no others", {"host": host(HostFacts())}, {"host": host(HostFacts())},
     "record-other-host", 7, "GPUs not known"),
    ("a GPU without a name is like no other", {"host": host(HostFacts(gpus=(Gpu(),)))},
     {"host": host(HostFacts(gpus=(Gpu(),)))}, "record-other-host", 7, "unnamed GPU"),
    ("the name was given to another image", {}, {"image": f"sha256:{'d4' * 32}", "lock": "e5" * 32},
     "record-other-image", 7, "team/torch:1 is sha256:d4d4"),
    ("a lazy image, and a record of an earlier release", {"also": (MANIFEST,)},
     {"manifest": MANIFEST}, "record-without-tables", 7, "does not cover its tables"),
    ("a lazy image whose manifest the record does not name", {"has_tables": True},
     {"manifest": MANIFEST}, "record-without-tables", 7, "does not cover its tables"),
    ("nor does it close anything for a lazy image", {"verdict": "unfit", "also": (MANIFEST,)},
     {"manifest": MANIFEST}, "record-without-tables", 7, "does not cover its tables"),
    ("a lazy image whose tables were compared", {"also": (MANIFEST,), "has_tables": True},
     {"manifest": MANIFEST}, None, 0, "Fit"),
    ("an image that nothing starts lazily", {"also": (MANIFEST,)}, {}, None, 0, "Fit"),
    ("the image says that it was built from another lock", {}, {"lock": "e5" * 32},
     "record-other-lock", 7, "another lock"),
    ("a clock that is five minutes ahead", {}, {"now": NOW - timedelta(minutes=5)}, None, 0, "Fit"),
    ("a time that has not come", {}, {"now": NOW - timedelta(minutes=5, seconds=1)},
     "record-from-future", 7, "2026-11-21T09:30:00Z, which is in the future"),
    ("checks that amount to another verdict", {},
     {"contradiction": lambda _: "The record says fit, but its checks do not."},
     "record-contradiction", 7, "its checks do not"),
    ("unfit", {"verdict": "unfit"}, {}, "record-unfit", 1, "Unfit on this kind"),
    ("no verdict", {"verdict": "no-verdict"}, {}, "record-no-verdict", 7, "no GPU check could"),
    ("unfit, with a driver that is gone", {"verdict": "unfit"},
     {"host": host(FACTS._replace(driver="580.95.05"))}, "record-driver-changed", 7, "580.95.05"),
)  # fmt: skip
def test_a_record_is_worth_what_it_still_proves(
    made: dict[str, Any], changed: dict[str, Any], code: str | None, exit_code: int, words: str
) -> None:
    found = judged(statement(**made), **changed)
    assert (found.code, int(found.exit_code), found.verified) == (code, exit_code, code is None)
    assert words in found.message
    if code is not None:
        assert found.fix is not None
        assert "provision verify team/torch:1" in found.fix


def test_every_change_is_told_and_whether_it_matters() -> None:
    facts = FACTS._replace(driver="580.95.05", gpus=(H100._replace(uuid="GPU-9"), H100))
    found = judged(host=host(facts, kernel="6.8.0", engine="docker 28.0"))
    told = {change.what: (change.was, change.now, change.matters) for change in found.changed}
    assert told["driver"] == ("535.104.05", "580.95.05", True)
    assert told["kernel"] == ("6.1.0", "6.8.0", False)
    assert told["engine"] == ("docker 26.1", "docker 28.0", False)
    assert told["cards"][2] is False
    assert set(told) == {"driver", "kernel", "engine", "cards"}


@given(HOSTS, HOSTS)
def test_proven_means_that_nothing_that_matters_changed(then: HostFacts, now: HostFacts) -> None:
    found = judged(statement(host=host(then)), host=host(now))
    if found.verified:
        assert not [change for change in found.changed if change.matters]
        assert then.driver == now.driver


def test_no_record_is_said_with_the_way_to_one() -> None:
    absent = missing(name="a:1", image=IMAGE, host=host(), elsewhere=True)
    assert (absent.code, int(absent.exit_code)) == ("record-missing", 7)
    assert "of another kind of machine" in absent.message
    assert absent.fix == "Test it on this machine: provision verify a:1"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_makes_no_key(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="denied"):
        own_signer(tmp_path / "keys")
