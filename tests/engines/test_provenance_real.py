"""Documents attached to an image in a real registry, and read by tools that are not ours."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from images.oci.layout import LayoutTarget
from images.oci.model import (
    CONFIG,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    descriptor_of,
    digest_of,
    to_bytes,
)
from images.registry.auth import Login
from images.registry.errors import RegistryUnreachableError
from images.registry.target import RegistryTarget
from provision.attestation.provenance.attach import (
    attach_bom,
    attach_provenance,
    attach_signed,
    find_provenance,
    find_record,
)
from provision.attestation.provenance.bom import MEDIA_TYPE
from provision.attestation.provenance.bundle import BUNDLE
from provision.attestation.provenance.check import Origin
from provision.attestation.provenance.documents import Documents, make_documents
from provision.attestation.record.verdict import Judgement, judge
from provision.attestation.signing.envelope import seal
from provision.attestation.signing.keys import Signer, own_public, own_signer, public_pem
from tests import need
from tests.engines.real_registry import serving
from tests.unit.provision.attestation.test_provenance import build, lock_of
from tests.unit.provision.attestation.test_record import host
from tests.unit.provision.attestation.test_record import statement as record

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)


class Served:
    """A registry at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def target(self, name: str) -> closing[RegistryTarget]:
        return closing(RegistryTarget.open(f"{self.address}/{name}", login=Login))


@pytest.fixture(scope="module")
def served(registry: str) -> Served:
    return Served(registry)


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return own_signer(tmp_path / "keys")


def push(target: RegistryTarget | LayoutTarget, name: str, seed: bytes = b"") -> Descriptor:
    """An image with one empty layer; gives its manifest."""
    tar = b"\0" * 1024
    layer = target.write_bytes(gzip.compress(tar, mtime=0), LAYER_GZIP)
    rootfs = {"type": "layers", "diff_ids": [digest_of(tar)]}
    document = {
        "os": "linux",
        "architecture": "amd64",
        "rootfs": rootfs,
        "config": {"Labels": {"seed": seed.hex()}},
    }
    config = target.write_bytes(to_bytes(document), CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.to_json(),
        "layers": [layer.to_json()],
    }
    return target.publish(to_bytes(manifest), MANIFEST, name=name)


def documents(signer: Signer, subject: Descriptor, name: str, days: int = 0) -> Documents:
    when = NOW + timedelta(days=days)
    return make_documents(
        lock_of(), build(started=when, finished=when), signer, name=name, images=[subject.digest]
    )


def skopeo(*words: str) -> Any:
    argv = [need.program("skopeo"), *words]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout) if done.stdout.startswith(b"{") else done.stdout


def trusted(tmp_path: Path) -> dict[str, Any]:
    own = own_public(tmp_path / "keys")
    assert own is not None
    return {own.keyid: own}


def test_documents_in_a_registry_are_found_and_believed(
    served: Served, signer: Signer, tmp_path: Path
) -> None:
    with served.target("team/torch:1") as target:
        subject = push(target, "1", b"one")
        made = documents(signer, subject, target.shown)
        attach_bom(target, subject, made.bom)
        first = attach_provenance(target, subject, made.envelope, signer.public)
        later = documents(signer, subject, target.shown, days=1)
        assert attach_provenance(target, subject, later.envelope, signer.public) == first
    with served.target("team/torch:1") as target:
        asked: Any = {"name": "torch", "images": [subject.digest], "trusted": trusted(tmp_path)}
        outcome, keyid = find_provenance(target, [subject], **asked)
        assert isinstance(outcome, Origin)
        assert (outcome.code, keyid) == (None, signer.keyid)
        assert outcome.statement is not None
        (attached,) = target.referrers(subject, MEDIA_TYPE)
        bom = target.read_artifact(attached)
        assert bom == made.bom
        assert digest_of(bom) == f"sha256:{outcome.statement.bom}"


@pytest.mark.usefixtures("signer")
def test_a_stranger_s_statement_is_not_believed(served: Served, tmp_path: Path) -> None:
    stranger = own_signer(tmp_path / "stranger")
    with served.target("team/strange:1") as target:
        subject = push(target, "1", b"strange")
        attach_signed(target, subject, documents(stranger, subject, target.shown).envelope)
        asked: Any = {"name": "a", "images": [subject.digest], "trusted": trusted(tmp_path)}
        assert find_provenance(target, [subject], **asked)[0].code == "provenance-unknown-key"


def test_another_tool_sees_what_is_attached(served: Served, signer: Signer) -> None:
    with served.target("team/seen:1") as target:
        subject = push(target, "1", b"seen")
        made = documents(signer, subject, target.shown)
        attach_bom(target, subject, made.bom)
        attach_signed(target, subject, made.envelope)
    repository = f"docker://{served.address}/team/seen"
    tag = subject.digest.replace(":", "-")
    listed = skopeo("inspect", "--tls-verify=false", "--raw", f"{repository}:{tag}")
    types = {row["artifactType"]: row for row in listed["manifests"]}
    assert set(types) == {"application/vnd.cyclonedx+json", BUNDLE}
    annotations = types[BUNDLE]["annotations"]
    assert annotations["dev.sigstore.bundle.predicateType"] == "https://slsa.dev/provenance/v1"
    for row, content in zip(types.values(), (made.bom, made.bundle), strict=True):
        place = f"{repository}@{row['digest']}"
        manifest = skopeo("inspect", "--tls-verify=false", "--raw", place)
        assert manifest["subject"]["digest"] == subject.digest
        assert manifest["layers"][0]["digest"] == descriptor_of("", content).digest


def test_records_in_a_registry_are_found_and_judged(
    served: Served, signer: Signer, tmp_path: Path
) -> None:
    with served.target("team/proven:1") as target:
        subject = push(target, "1", b"proven")
        sealed = seal(record(image=f"sha256:{'c0' * 32}", also=[subject.digest]), signer)
        attach_signed(target, subject, sealed)

        def judged(found: Any) -> Judgement:
            return judge(
                found,
                image=subject.digest,
                name="a",
                lock="b2" * 32,
                host=host(),
                level=None,
                now=found.ended,
                contradiction=lambda _: None,
            )

        outcome, keyid = find_record(target, [subject], trusted=trusted(tmp_path), judged=judged)
    assert isinstance(outcome, Judgement)
    assert (outcome.verified, keyid) == (True, signer.keyid)


def test_a_registry_that_is_gone_is_said_so(tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        served = Served(address)
        with served.target("team/gone:1") as target:
            subject = push(target, "1")
    asked: Any = {"name": "a", "images": [subject.digest], "trusted": {}}
    with served.target("team/gone:1") as target, pytest.raises(RegistryUnreachableError):
        find_provenance(target, [subject], **asked)


def checked_as_the_page_says(folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the page's own commands on NAME.sigstore.json and team.pub.pem."""
    page = (ROOT / "docs" / "provenance.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(python3 - <<'END'\n.*?)```", page, re.DOTALL)
    argv = ["bash", "-euc", block]
    return subprocess.run(argv, cwd=folder, capture_output=True, check=False, timeout=60)


def test_openssl_checks_the_signature_as_the_page_says(signer: Signer, tmp_path: Path) -> None:
    need.program("openssl")
    made = documents(signer, descriptor_of(MANIFEST, b"{}"), "a:1")
    (tmp_path / "NAME.sigstore.json").write_bytes(made.bundle)
    (tmp_path / "team.pub.pem").write_bytes(public_pem(signer.public))
    done = checked_as_the_page_says(tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    stated = json.loads((tmp_path / "statement.json").read_bytes())
    assert stated["predicateType"] == "https://slsa.dev/provenance/v1"
    stranger = own_signer(tmp_path / "stranger")
    (tmp_path / "team.pub.pem").write_bytes(public_pem(stranger.public))
    assert checked_as_the_page_says(tmp_path).returncode != 0
