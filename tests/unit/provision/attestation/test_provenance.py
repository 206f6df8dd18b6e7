"""Bills of materials and statements of builds: complete, the same every time, and telling nothing
of the machine that made them.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from packageurl import PackageURL

from images.wheels.remote_file import RemoteFile, Wheel
from provision.attestation.provenance import errors
from provision.attestation.provenance.bom import bill_of_materials
from provision.attestation.provenance.bundle import BUNDLE, bundle, envelope_in
from provision.attestation.provenance.check import check_to_json, judge, missing, read_statement
from provision.attestation.provenance.documents import beside, make_documents, write_document
from provision.attestation.provenance.errors import (
    DocumentNotWrittenError,
    ProvenanceUnreadableError,
)
from provision.attestation.provenance.public import (
    public_base,
    public_name,
    public_options,
    public_request,
    public_requirements,
    public_url,
    wheel_file,
)
from provision.attestation.provenance.statement import (
    BUILD_TYPE,
    PREDICATE_TYPE,
    BuildRun,
    build_definition,
    make_statement,
    parse_statement,
)
from provision.attestation.signing.envelope import seal
from provision.attestation.signing.errors import StatementError
from provision.errors import LockFileError
from provision.lock.lockfile import Lock, read_lock
from provision.lock.source_builds import GitSource, SourceBuild
from provision.model.plan import Base, Request
from tests import ROOT
from tests.kit.cases import cases
from tests.unit.provision.attestation.test_record import MINE, TRUSTED, signer_of
from tests.unit.provision.lock.test_lock import PLAN

IMAGE, CONFIG = f"sha256:{'a1' * 32}", f"sha256:{'c0' * 32}"
START = datetime(2026, 11, 21, 9, 30, tzinfo=timezone(timedelta(hours=2)))
BASE_DIGEST = f"sha256:{'ba' * 32}"
PINNED = PLAN._replace(base=PLAN.base._replace(digest=BASE_DIGEST)) if PLAN.base else PLAN
BOOTSTRAP = Base(
    kind="bootstrap", reference="bootstrap", python="3.11", glibc="2.36", suite="bookworm",
    digest=BASE_DIGEST,
)  # fmt: skip
DEBIAN = ("libc6=2.36-9+deb12u9", "libpython3.11-stdlib:amd64=3.11.2-6+deb12u5", "tzdata=1:2026a-0")


def wheel(name: str, version: str = "1.0", seed: int = 0, **more: Any) -> Wheel:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    plain = {
        "url": f"https://wheels.example/{seed:02x}/{file}",
        "size": 7,
        "sha256": f"{seed:064x}",
    }
    return Wheel(name=name, version=version, **{**plain, **more})


TORCH = wheel("torch", "2.0.1+cu117", 1)
NUMPY = wheel("numpy", "1.26.4", 2)


def lock_of(*wheels: Wheel, plan: Any = PINNED, text: str = "a lock") -> Lock:
    return Lock(text=text, plan=plan, wheels=wheels or (TORCH, NUMPY))


def build(**changes: Any) -> BuildRun:
    plain = {"builder": "oci", "started": START, "finished": START + timedelta(seconds=9)}
    return BuildRun(**{**plain, **changes})


def bom(*wheels: Wheel, debian: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bill_of_materials(lock_of(*wheels, **more), debian=debian))
    return found


def statement(lock: Lock | None = None, **changes: Any) -> dict[str, Any]:
    made = {"name": "team/torch:1", "images": [IMAGE, CONFIG], "bom": b"{}", **changes}
    return make_statement(lock or lock_of(), changes.pop("build", build()), **made)


@cache
def schema() -> JsonStrictValidator:
    return JsonStrictValidator(SchemaVersion.V1_6)


def refused(document: dict[str, Any]) -> bool:
    return schema().validate_str(json.dumps(document)) is not None


# --- what may be told -------------------------------------------------------------------------


@cases(
    "url expected",
    ("a plain address", "https://e.example/a.whl", "https://e.example/a.whl"),
    ("a login goes", "https://u:canary@e.example/a", "https://e.example/a"),
    ("a token goes", "https://canary@e.example/a", "https://e.example/a"),
    ("a query goes", "https://e.example/a?token=canary", "https://e.example/a"),
    ("a fragment goes", "https://e.example/a#canary", "https://e.example/a"),
    ("a port stays", "http://e.example:81/a", "http://e.example:81/a"),
    ("a numeric address stays", "http://[::1]:81/a", "http://[::1]:81/a"),
    ("a space is written", "https://E.example/a b", "https://e.example/a%20b"),
    ("a lone percent", "https://e.example/%41%zz", "https://e.example/%41%25zz"),
    ("another letter", "https://e.example/\u00e9", "https://e.example/%C3%A9"),
    ("a file is of this machine", "file:///home/canary/a.whl", None),
    ("a path is of this machine", "/home/canary/a.whl", None),
    ("a file on another machine", "file://canary/a.whl", None),
    ("no web address", "ftp://e.example/a", None),
    ("a broken address", "https://[bad/a", None),
    ("a port that is none", "https://e.example:port/a", None),
    ("a host that is none", "https://exam\u2024ple/a", None),
    ("no host", "https:///a", None),
    ("without end", "https://e.example/" + "a" * 5000, None),
    ("nothing", "", None),
)
def test_an_address_is_told_without_what_is_secret(url: str, expected: str | None) -> None:
    assert public_url(url) == expected


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader_of_addresses(text: str) -> None:
    for found in (public_url(text), public_url(f"https://{text}"), public_url(f"https://e/{text}")):
        assert found is None or re.fullmatch(r"https?://[!-~]+", found)
        assert found is None or "?" not in found


@cases(
    "name told",
    ("a name", "team/torch:1", True),
    ("a pinned name", "localhost:5000/team/torch@sha256:" + "a" * 64, True),
    ("a layout here", "oci:layout", False),
    ("a layout by its path", "oci:/home/canary/layout:name", False),
    ("an archive", "docker-archive:/tmp/canary.tar", False),
    ("a directory", "./canary", False),
    ("a path", "/home/canary/image.tar", False),
    ("a login in a name", "user:canary@registry.example/team/torch", False),
    ("nothing", "", False),
)
def test_an_image_is_called_as_in_a_registry_or_not_at_all(name: str, *, told: bool) -> None:
    assert public_name(name) == (name if told else None)
    assert statement(name=name)["subject"][0]["name"] == (name if told else "image")


@cases(
    "base expected",
    ("none", None, {}),
    ("of a registry, by its whole name", PINNED.base,
     {"kind": "registry", "name": "docker.io/library/python:3.11-slim", "digest": BASE_DIGEST}),
    ("by digest alone",
     Base(kind="registry", reference=f"e.example:5000/a/b@{BASE_DIGEST}", python="3.11",
          glibc=None), {"kind": "registry", "name": "e.example:5000/a/b", "digest": BASE_DIGEST}),
    ("of this machine, by its digest alone",
     Base(kind="registry", reference="oci:/home/canary/base", python="3.11", glibc=None,
          digest=BASE_DIGEST), {"kind": "registry", "digest": BASE_DIGEST}),
    ("with a digest that is none",
     Base(kind="registry", reference="python:3.11", python="3.11", glibc=None,
          digest="sha256:canary"), {"kind": "registry", "name": "docker.io/library/python:3.11"}),
    ("made here", BOOTSTRAP,
     {"kind": "bootstrap", "name": "debian:bookworm", "digest": BASE_DIGEST}),
)  # fmt: skip
def test_a_base_is_told_by_what_identifies_it_everywhere(
    base: Base | None, expected: dict[str, str]
) -> None:
    assert public_base(base) == expected
    plan = PLAN._replace(base=base)
    assert not refused(bom(plan=plan))
    named = build_definition(lock_of(plan=plan), build())["resolvedDependencies"]
    assert len(named) == (4 if "digest" in expected else 3)


@cases(
    "source digest kind",
    ("an archive",
     RemoteFile(name="quiet", version="1.0", url="https://u:canary@i.example/q.tar.gz", size=3,
                sha256="5" * 64), {"sha256": "5" * 64}, "source-distribution"),
    ("a commit", GitSource(url="https://git.example/quiet", commit="6" * 40, tree="7" * 40),
     {"gitCommit": "6" * 40, "gitTree": "7" * 40}, "vcs"),
)  # fmt: skip
def test_a_wheel_that_was_built_here_has_its_source(
    source: RemoteFile | GitSource, digest: dict[str, str], kind: str
) -> None:
    made = wheel("quiet", "1.0", 9, url="file:///home/canary/quiet-1.0-py3-none-any.whl")
    built = SourceBuild(
        name="quiet", version="1.0", wheel="quiet-1.0-py3-none-any.whl", sha256=made.sha256,
        size=7, source=source, index=None, backend=(wheel("flit-core", "3", 8),), python="3.11",
    )  # fmt: skip
    lock = replace(lock_of(TORCH, made), builds=(built,))
    rows = build_definition(lock, build())["resolvedDependencies"]
    [row] = [one for one in rows if one["name"] == f"source of {built.wheel}"]
    assert row["digest"] == digest
    assert any(one["uri"] == "pkg:pypi/flit-core@3" for one in rows if "uri" in one)
    document = json.loads(bill_of_materials(lock, debian=()))
    assert not refused(document)
    [part] = [one for one in document["components"] if one["name"] == "quiet"]
    assert [one["type"] for one in part["externalReferences"]] == [kind]
    assert "canary" not in f"{rows}{document}"


@cases(
    "text expected",
    ("a requirement", "numpy<2", ["numpy<2"]),
    ("url", "a[b] @ https://u:canary@e/x.whl?t=canary", ["a[b] @ https://e/x.whl"]),
    ("a file", "a @ file:///home/canary/a.whl", ["a"]),
    ("a repository", "a @ git+ssh://canary@e/a", ["a"]),
    ("a path", "/home/canary/a.whl", []),
    ("nothing", "", []),
)
def test_requirements_are_told_without_what_is_secret(text: str, expected: list[str]) -> None:
    assert public_requirements([text]) == expected


def test_a_request_is_told_without_what_was_not_asked() -> None:
    request = Request(
        cuda="11.7",
        companions=("numpy<2",),
        index_url="https://u:canary@e.example/simple",
        base="oci:/home/canary",
    )
    assert public_request(request) == {
        "cuda": "11.7",
        "framework": "pytorch",
        "with": ["numpy<2"],
        "index": "https://e.example/simple",
    }
    assert public_request(Request(base="bootstrap"))["base"] == "bootstrap"


def test_options_are_switches_numbers_and_words() -> None:
    given_ = {"b": True, "a": 3, "w": "unchecked-hash", "p": "/home/canary", "n": None, "x": ["y"]}
    assert public_options(given_) == {"a": 3, "b": True, "w": "unchecked-hash"}


@cases(
    "url expected",
    ("an escape", "https://e/a/torch-1%2Bcu-py3-none-any.whl", "torch-1+cu-py3-none-any.whl"),
    ("of a file", "file:///home/me/a-1-py3-none-any.whl", "a-1-py3-none-any.whl"),
    ("with a line's end", "https://e/a%2Fb%0A.whl", None),
    ("without a name", "https://e/download", None),
    ("broken", "https://[bad/a.whl", None),
)
def test_a_wheel_s_file_is_told_by_its_name(url: str, expected: str | None) -> None:
    assert wheel_file(wheel("a", url=url)) == expected


# --- bills of materials -----------------------------------------------------------------------


def test_a_bill_is_valid_by_the_format_s_own_schema() -> None:
    assert not refused(bom())
    assert not refused(bom(plan=PLAN._replace(base=BOOTSTRAP), debian=DEBIAN))


def test_the_schema_would_notice() -> None:
    broken = bom()
    broken["components"][0]["hashes"] = [{"alg": "SHA-256", "content": "zz"}]
    assert refused(broken)
    twice = bom()
    twice["components"].append(twice["components"][0])
    assert refused(twice)


def test_a_bill_says_where_each_wheel_came_from() -> None:
    (found,) = [part for part in bom()["components"] if part["name"] == "torch"]
    assert found["purl"] == "pkg:pypi/torch@2.0.1%2Bcu117"
    assert found["hashes"] == [{"alg": "SHA-256", "content": TORCH.sha256}]
    (reference,) = found["externalReferences"]
    assert reference["url"] == TORCH.url
    assert reference["type"] == "distribution"
    assert {row["name"]: row["value"] for row in found["properties"]} == {
        "gpu-provision:wheel:file": "torch-2.0.1+cu117-py3-none-any.whl",
        "gpu-provision:wheel:size": "7",
    }


def test_a_bill_names_the_base_by_its_digest() -> None:
    (base,) = [part for part in bom()["components"] if part["bom-ref"] == "base"]
    purl = PackageURL.from_string(base["purl"])
    assert (purl.type, purl.name, purl.version) == ("oci", "python", BASE_DIGEST)
    assert purl.qualifiers == {
        "repository_url": "docker.io/library/python",
        "tag": "3.11-slim",
        "arch": "amd64",
    }


def test_a_bill_names_the_debian_packages_of_a_base_made_here() -> None:
    found = bom(plan=PLAN._replace(base=BOOTSTRAP), debian=(*DEBIAN, DEBIAN[0]))
    purls = [p["purl"] for p in found["components"] if p.get("purl", "").startswith("pkg:deb/")]
    assert purls == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?distro=bookworm",
        "pkg:deb/debian/libpython3.11-stdlib@3.11.2-6%2Bdeb12u5?distro=bookworm",
        "pkg:deb/debian/tzdata@1:2026a-0?distro=bookworm",
    ]
    depends = {row["ref"]: row.get("dependsOn", []) for row in found["dependencies"]}
    assert sorted(depends["base"]) == purls


@pytest.mark.parametrize(
    "text", ["libc6", "libc6=", "=1", "Lib=1", "a\nb=1", "a=1 canary", "../a=1"]
)
def test_what_is_no_debian_package_is_refused(text: str) -> None:
    with pytest.raises(LockFileError):
        bom(debian=(text,))


@pytest.mark.parametrize("digest", ["", "zz", "A" * 64, "a" * 63, f"{'a' * 64}\n"])
def test_a_wheel_without_a_sha256_is_refused(digest: str) -> None:
    with pytest.raises(LockFileError, match="sha256 of the wheel of a"):
        bom(wheel("a", sha256=digest))


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
WHEELS = st.lists(
    st.builds(
        wheel,
        NAMES | st.sampled_from(["torch", "numpy"]),
        st.sampled_from(["1.0", "2.0.1+cu117", "1!2.0.dev3"]),
        st.integers(0, 3),
        size=st.none() | st.integers(0, 2**63),
        url=TEXTS | TEXTS.map(lambda text: f"https://e.example/{text}"),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(WHEELS, st.randoms(use_true_random=False))
def test_every_wheel_of_a_lock_is_in_its_bill_once(wheels: list[Wheel], random: Any) -> None:
    document = bill_of_materials(lock_of(*wheels, TORCH))
    shuffled = [*wheels, TORCH, TORCH]
    random.shuffle(shuffled)
    parts = [
        (part["name"], part["version"], part["hashes"][0]["content"])
        for part in json.loads(document)["components"]
        if part.get("purl", "").startswith("pkg:pypi/")
    ]
    expected = {(one.name, one.version, one.sha256) for one in (*wheels, TORCH)}
    assert sorted(parts) == sorted(expected)
    assert not refused(json.loads(document))
    refs = [part["bom-ref"] for part in json.loads(document)["components"]]
    assert len(refs) == len(set(refs))
    again = json.loads(bill_of_materials(lock_of(*shuffled)))
    assert [part["bom-ref"] for part in again["components"]] == refs


@settings(max_examples=60)
@given(TEXTS, TEXTS, TEXTS)
def test_no_text_in_a_plan_makes_a_bill_invalid(reference: str, suite: str, cudnn: str) -> None:
    for kind in ("registry", "bootstrap"):
        base = Base(
            kind=kind, reference=reference, python="3.11", glibc=None, suite=suite, digest=reference
        )
        made = bom(plan=PLAN._replace(base=base, cudnn=cudnn), debian=DEBIAN)
        assert not refused(made)


def test_the_same_lock_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from tests.unit.provision.attestation import test_provenance as t; "
        "sys.stdout.buffer.write(t.bill_of_materials(t.lock_of(), debian=t.DEBIAN))"
    )
    for seed, zone in (("1", "Asia/Tokyo"), ("2", "America/Lima")):
        env = {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C", "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, check=True
        )
        assert done.stdout == bill_of_materials(lock_of(), debian=DEBIAN)


def test_no_list_in_a_bill_has_the_library_s_order() -> None:
    def check(value: object) -> None:
        if isinstance(value, list):
            assert value == sorted(value, key=lambda item: json.dumps(item, sort_keys=True))
            for item in value:
                check(item)
        if isinstance(value, dict):
            for item in value.values():
                check(item)

    made = bom(plan=PLAN._replace(base=BOOTSTRAP), debian=DEBIAN)
    assert len(made["components"]) == 7
    check(made)


def test_another_lock_has_another_serial_number() -> None:
    serials = {
        document["serialNumber"]
        for document in (bom(), bom(text="another lock"), bom(debian=DEBIAN))
    }
    assert len(serials) == 3


# --- statements -------------------------------------------------------------------------------


def test_a_statement_is_slsa_provenance() -> None:
    made = statement()
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"] == [
        {"name": "team/torch:1", "digest": {"sha256": "a1" * 32}},
        {"name": "team/torch:1", "digest": {"sha256": "c0" * 32}},
    ]
    definition = made["predicate"]["buildDefinition"]
    assert definition["buildType"] == BUILD_TYPE
    assert set(definition) == {
        "buildType",
        "externalParameters",
        "internalParameters",
        "resolvedDependencies",
    }
    details = made["predicate"]["runDetails"]
    assert details["builder"]["id"] == "urn:gpu-provision:builder:oci"
    assert details["metadata"] == {
        "startedOn": "2026-11-21T07:30:00Z",
        "finishedOn": "2026-11-21T07:30:09Z",
    }


def test_a_statement_names_everything_that_went_in() -> None:
    lock = lock_of()
    rows = statement(lock)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {row["digest"]["sha256"] for row in rows} == {
        lock.sha256,
        "ba" * 32,
        TORCH.sha256,
        NUMPY.sha256,
    }
    (torch,) = [row for row in rows if row["name"].startswith("torch")]
    assert torch["uri"] == "pkg:pypi/torch@2.0.1%2Bcu117"
    assert torch["downloadLocation"] == TORCH.url


def test_a_statement_comes_back_as_it_was() -> None:
    lock = lock_of()
    documents = make_documents(lock, build(), MINE, name="a:1", images=[IMAGE, CONFIG])
    for data in (documents.envelope, documents.bundle):
        found, keyid = read_statement(data, TRUSTED)
        assert keyid == MINE.keyid
        assert (found.name, found.images, found.lock) == ("a:1", (IMAGE, CONFIG), lock.sha256)
        assert found.finished == "2026-11-21T07:30:09Z"
        assert found.definition == build_definition(lock, build())
        assert found.bom == hashlib.sha256(documents.bom).hexdigest()


CANARY = "canary"
SECRETIVE = lock_of(
    wheel("a", url=f"https://user:{CANARY}@e.example/a.whl?{CANARY}=1#{CANARY}"),
    wheel("b", seed=1, url=f"file:///home/{CANARY}/b-1.0-py3-none-any.whl"),
    wheel("c", seed=2, url=f"/home/{CANARY}/c.whl"),
    plan=PLAN._replace(
        base=Base(
            kind="registry",
            reference=f"oci:/home/{CANARY}/base",
            python="3.11",
            glibc=None,
            digest=BASE_DIGEST,
        ),
        index_url=f"https://{CANARY}@e.example/simple",
        requirements=(f"x @ https://{CANARY}@e.example/x.whl",),
    ),
)


def test_nothing_of_the_machine_is_in_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USER", "LOGNAME", "HOSTNAME", "HOME", "PWD"):
        monkeypatch.setenv(name, str(tmp_path / CANARY))
    asked = Request(
        companions=(f"x @ file:///home/{CANARY}/x.whl",),
        index_url=f"https://u:{CANARY}@e.example/simple?{CANARY}",
        base=f"oci-archive:/home/{CANARY}.tar",
    )
    made = make_documents(
        SECRETIVE,
        build(request=asked, options={"out": f"/home/{CANARY}"}, formats={"at": f"./{CANARY}"}),
        MINE,
        name=f"oci:/home/{CANARY}/out:1",
        images=[IMAGE],
    )
    payload = base64.b64decode(json.loads(made.envelope)["payload"])
    for text in (made.bom, payload, made.bundle):
        assert CANARY.encode() not in text
    assert b"/home" not in made.bom + payload


def test_the_canary_would_be_seen() -> None:
    told = make_documents(
        lock_of(wheel("a", url=f"https://e.example/{CANARY}.whl")), build(), MINE, name="a",
        images=[IMAGE],
    )  # fmt: skip
    assert CANARY.encode() in told.bom
    assert CANARY.encode() in base64.b64decode(json.loads(told.envelope)["payload"])


# --- signatures -------------------------------------------------------------------------------

SEALED = seal(statement(), MINE)
BUNDLED = bundle(SEALED)


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The bundle with something changed after it was signed."""
    document = json.loads(BUNDLED)
    change(document)
    return json.dumps(document).encode()


def resigned(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A bundle of a changed statement that was signed as it is."""
    made = copy.deepcopy(statement())
    change(made)
    return bundle(seal(made, MINE))


def put(document: dict[str, Any], path: str, value: object) -> None:
    *way, last = path.split(".")
    for step in way:
        document = document[int(step)] if step.isdigit() else document[step]  # type: ignore[index]
    document[last] = value


def other_payload(document: dict[str, Any]) -> None:
    payload = json.dumps(statement(name="evil/torch:1")).encode()
    document["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()


@cases(
    "data code",
    ("nothing", b"", "provenance-unreadable"),
    ("no text", b"\xff\x00", "provenance-unreadable"),
    ("without end", b"[" * 100_000, "provenance-unreadable"),
    ("an empty object", b"{}", "provenance-unreadable"),
    ("cut off", BUNDLED[:-9], "provenance-unreadable"),
    ("another payload", changed(other_payload), "provenance-tampered"),
    ("another signature", changed(lambda d: put(d, "dsseEnvelope.signatures.0.sig", "AAAA")),
     "provenance-tampered"),
    ("another key's name", changed(lambda d: put(d, "dsseEnvelope.signatures.0.keyid", "00" * 32)),
     "provenance-unknown-key"),
    ("another key", bundle(seal(statement(), signer_of(1))), "provenance-unknown-key"),
    ("another type", changed(lambda d: put(d, "dsseEnvelope.payloadType", "text/plain")),
     "provenance-unreadable"),
    ("no envelope", changed(lambda d: put(d, "dsseEnvelope", None)), "provenance-unreadable"),
    ("another kind of bundle", changed(lambda d: put(d, "mediaType", "text/plain")),
     "provenance-unreadable"),
    ("unsigned", changed(lambda d: put(d, "dsseEnvelope.signatures", [])), "provenance-unreadable"),
    ("two envelopes", BUNDLED.replace(b'"dsseEnvelope"', b'"dsseEnvelope": 1, "dsseEnvelope"'),
     "provenance-unreadable"),
)  # fmt: skip
def test_what_was_not_signed_as_it_is_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(StatementError) as caught:
        read_statement(data, TRUSTED)
    assert (caught.value.code, int(caught.value.exit_code)) == (code, 2)
    assert caught.value.fix


def test_the_bundle_around_an_envelope_is_not_believed() -> None:
    data = changed(lambda d: put(d, "verificationMaterial", {"publicKey": {"hint": "other"}}))
    assert read_statement(data, TRUSTED)[1] == MINE.keyid
    assert json.loads(envelope_in(BUNDLED)) == json.loads(SEALED)
    assert json.loads(BUNDLED)["mediaType"] == BUNDLE


@settings(max_examples=300)
@given(st.integers(0, len(BUNDLED) - 1), st.integers(0, 255))
def test_no_byte_of_a_statement_can_be_changed_unseen(position: int, byte: int) -> None:
    data = bytearray(BUNDLED)
    data[position] = byte
    try:
        found, _ = read_statement(bytes(data), TRUSTED)
    except StatementError:
        return
    assert found == parse_statement(base64.b64decode(json.loads(SEALED)["payload"]))


@pytest.mark.parametrize(
    "path",
    [
        "_type", "predicateType", "subject", "subject.0.name", "subject.0.digest", "predicate",
        "predicate.buildDefinition", "predicate.buildDefinition.buildType",
        "predicate.buildDefinition.externalParameters",
        "predicate.buildDefinition.externalParameters.lock", "predicate.runDetails",
        "predicate.runDetails.builder", "predicate.runDetails.builder.id",
        "predicate.runDetails.builder.version", "predicate.runDetails.metadata",
        "predicate.runDetails.metadata.startedOn", "predicate.runDetails.metadata.finishedOn",
        "predicate.runDetails.byproducts", "predicate.runDetails.byproducts.0.digest",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [None, 7, "", [5], {"a": 1}, True], ids=repr)
def test_a_statement_of_another_shape_is_refused_though_it_is_signed(
    path: str, value: object
) -> None:
    with pytest.raises(ProvenanceUnreadableError):
        read_statement(resigned(lambda d: put(d, path, value)), TRUSTED)


def test_a_record_is_no_statement_of_a_build() -> None:
    from tests.unit.provision.attestation.test_record import SEALED as RECORD

    with pytest.raises(ProvenanceUnreadableError, match="its type is another"):
        read_statement(RECORD, TRUSTED)


@pytest.mark.parametrize("count", [0, 65])
def test_a_statement_of_none_or_of_very_many_images_is_refused(count: int) -> None:
    rows = [{"name": "a", "digest": {"sha256": f"{i:064x}"}} for i in range(count)]
    with pytest.raises(ProvenanceUnreadableError, match="no image"):
        read_statement(resigned(lambda d: put(d, "subject", rows)), TRUSTED)


def test_a_statement_of_several_images_is_refused() -> None:
    with pytest.raises(ProvenanceUnreadableError, match="several images"):
        read_statement(resigned(lambda d: put(d, "subject.0.name", "other/image")), TRUSTED)


# --- what a statement is worth ----------------------------------------------------------------


@cases(
    "images lock code exit_code words",
    ("of this manifest", [IMAGE], None, None, 0, "Built from lock"),
    ("of this image id", [CONFIG], None, None, 0, "gpu-provision 0.1.0 (oci)"),
    ("and this lock", [f"sha256:{'ee' * 32}", IMAGE], lock_of().sha256, None, 0, "Built"),
    ("another image", [f"sha256:{'ee' * 32}"], None, "provenance-other-image", 7,
     "a:1 is sha256:eeee"),
    ("an image unknown", [], None, "provenance-other-image", 7, "not known"),
    ("another lock", [IMAGE], "ee" * 32, "provenance-other-lock", 7, "not from eeeeeeeeeeee"),
)  # fmt: skip
def test_a_statement_is_worth_what_it_is_of(
    images: list[str], lock: str | None, code: str | None, exit_code: int, words: str
) -> None:
    provenance, _ = read_statement(BUNDLED, TRUSTED)
    found = judge(provenance, name="a:1", images=images, lock=lock)
    assert (found.code, int(found.exit_code), found.verified) == (code, exit_code, code is None)
    assert words in found.message
    assert (found.fix is None) == found.verified


def test_no_statement_is_said_with_the_way_to_one() -> None:
    assert (missing("a:1").code, int(missing("a:1").exit_code)) == ("provenance-missing", 7)


def test_the_result_has_one_shape_whatever_was_found() -> None:
    provenance, keyid = read_statement(BUNDLED, TRUSTED)
    sound = check_to_json("a:1", judge(provenance, name="a:1", images=[IMAGE]), keyid)
    assert (sound["stated"], sound["error"], sound["key"]) == (True, None, MINE.keyid)
    assert sound["lock"] == lock_of().sha256
    unsound = check_to_json("a:1", errors.ProvenanceTamperedError("x", fix="y"), None)
    absent = check_to_json("a:1", missing("a:1"), None)
    assert set(sound) == set(unsound) == set(absent)
    assert unsound["error"] == {"code": "provenance-tampered", "message": "x", "fix": "y"}
    assert (absent["stated"], absent["error"]["code"]) == (False, "provenance-missing")


# --- files ------------------------------------------------------------------------------------


@cases(
    "path names",
    ("a lock", "pylock.a.toml", ("pylock.a.cdx.json", "pylock.a.sigstore.json")),
    ("an archive", "out.tar", ("out.cdx.json", "out.sigstore.json")),
    ("a layout", "out", ("out.cdx.json", "out.sigstore.json")),
    ("a name with a dot", "v1.2", ("v1.2.cdx.json", "v1.2.sigstore.json")),
    ("nothing but an end", ".toml", (".toml.cdx.json", ".toml.sigstore.json")),
)
def test_documents_lie_beside_what_they_speak_of(path: str, names: tuple[str, str]) -> None:
    assert beside(Path("dir") / path) == tuple(Path("dir") / name for name in names)


def test_a_document_is_written_whole_or_said_not_to_be(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document("--sbom", path, b"one")
    assert path.read_bytes() == b"one"
    with pytest.raises(DocumentNotWrittenError, match=r"--sbom .*could not be written") as caught:
        write_document("--sbom", tmp_path / "absent" / "a.json", b"one")
    assert (caught.value.code, int(caught.value.exit_code)) == ("document-not-written", 2)
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_a_lock_from_disk_is_documented() -> None:
    from tests.unit.provision.lock.test_lock import finished

    documents = make_documents(read_lock(finished()), build(), MINE, name="a:1", images=[IMAGE])
    assert not refused(json.loads(documents.bom))
    assert b"canary" not in documents.bom


# --- the page ---------------------------------------------------------------------------------

DOCS = (ROOT / "docs" / "provenance.md").read_text(encoding="utf-8")


def test_the_page_names_the_types() -> None:
    for word in (BUILD_TYPE, PREDICATE_TYPE, BUNDLE, "application/vnd.cyclonedx+json"):
        assert f"`{word}`" in DOCS


def test_the_page_describes_the_statement() -> None:
    predicate = statement()["predicate"]
    members = [*predicate["buildDefinition"], *predicate["runDetails"]]
    assert [name for name in members if f"`{name}`" not in DOCS] == []
