"""What is attached to an image: in the registry's own list, or under the tag in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from images.errors import Failure
from images.oci.errors import DigestMismatchError, ImageUnreadableError
from images.oci.model import MANIFEST, Descriptor, descriptor_of, to_bytes
from images.registry.auth import Login
from images.registry.errors import RegistryAnswerError
from images.registry.reader import RepositoryReader
from images.registry.referrers import fallback_tag
from images.registry.target import RegistryTarget
from tests.kit.cases import cases
from tests.kit.fake_push_registry import INDEX, PushRegistry, digest_of
from tests.unit.images.registry.test_push import HASTY, open_target

SBOM, RECORD = "application/vnd.cyclonedx+json", "application/vnd.record+json"
IMAGE = to_bytes({"schemaVersion": 2, "mediaType": MANIFEST})
SUBJECT = descriptor_of(MANIFEST, IMAGE)
TAG = fallback_tag(SUBJECT)


@pytest.fixture
def server() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    fake.manifests["team/app", SUBJECT.digest] = (IMAGE, MANIFEST)
    yield fake
    fake.close()


@pytest.fixture
def target(server: PushRegistry) -> Iterator[RegistryTarget]:
    opened = open_target(server)
    yield opened
    opened.close()


def attach(target: RegistryTarget, kind: str, content: bytes) -> Descriptor:
    notes = {"b": "2", "a": "1"}
    return target.attach(
        SUBJECT, artifact_type=kind, content=content, media_type=kind, annotations=notes
    )


@pytest.mark.parametrize("api", [True, False], ids=["its own list", "the fallback tag"])
def test_what_is_attached_is_found_and_read(
    server: PushRegistry,
    target: RegistryTarget,
    api: bool,  # noqa: FBT001
) -> None:
    server.api = api
    sbom, record = attach(target, SBOM, b"{1}"), attach(target, RECORD, b"{2}")
    assert {one.digest for one in target.referrers(SUBJECT)} == {sbom.digest, record.digest}
    assert target.referrers(SUBJECT, RECORD) == (record,)
    assert target.read_artifact(record) == b"{2}"
    assert ("team/app", TAG in {name for _, name in server.manifests}) == ("team/app", not api)
    reader = RepositoryReader.open(target.reference, login=Login, retries=HASTY, mirrors={})
    assert reader.referrers(SUBJECT, SBOM) == (sbom,)
    assert reader.read_artifact(sbom) == b"{1}"
    reader.close()


@pytest.mark.parametrize("api", [True, False])
def test_the_same_twice_is_there_once(
    server: PushRegistry,
    target: RegistryTarget,
    api: bool,  # noqa: FBT001
) -> None:
    server.api = api
    assert attach(target, SBOM, b"{1}") == attach(target, SBOM, b"{1}")
    assert len(target.referrers(SUBJECT)) == 1


def test_the_manifest_is_the_specifications(server: PushRegistry, target: RegistryTarget) -> None:
    artifact = attach(target, SBOM, b"{1}")
    manifest = json.loads(server.manifests["team/app", artifact.digest][0])
    assert manifest["subject"] == SUBJECT.to_json()
    assert manifest["artifactType"] == SBOM
    assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert manifest["layers"] == [descriptor_of(SBOM, b"{1}").to_json()]
    assert list(manifest["annotations"]) == ["a", "b"]
    assert ("team/app", digest_of(b"{}")) in server.blobs


def test_what_others_listed_is_kept_as_it_is(server: PushRegistry, target: RegistryTarget) -> None:
    server.api = False
    other = {**descriptor_of(MANIFEST, b"x").to_json(), "urls": ["u"], "artifactType": "a/b"}
    listed = json.dumps({"schemaVersion": 2, "manifests": [other]}).encode()
    server.manifests["team/app", TAG] = (listed, INDEX)
    attach(target, SBOM, b"{1}")
    entries = json.loads(server.manifests["team/app", TAG][0])["manifests"]
    assert entries[0] == other
    assert len(entries) == 2


@cases(
    "content",
    ("no JSON", b"<html>"),
    ("no list", b"{}"),
    ("no descriptors", b'{"manifests": [1]}'),
    ("a path", b'{"manifests": [{"digest": "../../x", "size": 1}]}'),
)
def test_a_list_that_cannot_be_read_is_not_overwritten(
    server: PushRegistry, target: RegistryTarget, content: bytes
) -> None:
    server.api = False
    server.manifests["team/app", TAG] = (content, INDEX)
    with pytest.raises(ImageUnreadableError):
        attach(target, SBOM, b"{1}")
    assert server.manifests["team/app", TAG] == (content, INDEX)


def test_an_entry_that_somebody_else_overwrote_is_written_again(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.api = False
    server.rule("PUT", TAG, status=201)  # it is accepted, and lost
    artifact = attach(target, SBOM, b"{1}")
    assert target.referrers(SUBJECT) == (artifact,)


def test_a_list_that_is_never_kept_is_told(server: PushRegistry, target: RegistryTarget) -> None:
    server.api = False
    server.rule("PUT", TAG, status=201, times=99)
    with pytest.raises(RegistryAnswerError, match="does not keep"):
        attach(target, SBOM, b"{1}")
    assert server.count("PUT", TAG) < 10


def test_a_long_list_is_read_page_by_page(server: PushRegistry, target: RegistryTarget) -> None:
    server.page = 2
    made = {attach(target, SBOM, str(n).encode()).digest for n in range(5)}
    assert {one.digest for one in target.referrers(SUBJECT)} == made
    assert server.count("GET", "referrers") == 3


def test_an_endless_list_is_left(server: PushRegistry, target: RegistryTarget) -> None:
    more = {"Content-Type": INDEX, "Link": '<?first=0>; rel="next"'}
    server.rule("GET", "referrers", status=200, headers=more, body=b'{"manifests": []}', times=999)
    with pytest.raises(RegistryAnswerError, match="does not end"):
        target.referrers(SUBJECT)
    assert server.count("GET", "referrers") < 4


@pytest.mark.parametrize("status", [200, 400, 404, 405, 501], ids=lambda s: f"{s}, no index")
def test_registries_without_the_list_are_known(
    server: PushRegistry, target: RegistryTarget, status: int
) -> None:
    server.rule("GET", "referrers", status=status, body=b"<html>")
    assert target.referrers(SUBJECT) == ()
    assert server.count("GET", TAG) == 1


def test_nothing_attached_is_an_empty_list(target: RegistryTarget) -> None:
    assert target.referrers(SUBJECT) == ()


def test_an_artifact_with_other_bytes_is_not_used(
    server: PushRegistry, target: RegistryTarget
) -> None:
    artifact = attach(target, SBOM, b"{1}")
    server.blobs["team/app", digest_of(b"{1}")] = b"{2}"
    with pytest.raises(DigestMismatchError):
        target.read_artifact(artifact)


def test_an_artifact_with_another_manifest_is_not_used(
    server: PushRegistry, target: RegistryTarget
) -> None:
    artifact = attach(target, SBOM, b"{1}")
    server.manifests["team/app", artifact.digest] = (IMAGE, MANIFEST)
    with pytest.raises(DigestMismatchError):
        target.read_artifact(artifact)


@pytest.mark.parametrize(
    "layers",
    [None, [], [{}], [descriptor_of(SBOM, b"x").to_json() | {"size": 1 << 40}]],
    ids=["no layers", "none", "no descriptor", "an endless one"],
)
def test_an_artifact_that_is_none_is_refused(
    server: PushRegistry, target: RegistryTarget, layers: object
) -> None:
    manifest = json.dumps({"layers": layers}).encode()
    artifact = descriptor_of(MANIFEST, manifest)
    server.manifests["team/app", artifact.digest] = (manifest, MANIFEST)
    with pytest.raises(Failure) as caught:
        target.read_artifact(artifact)
    assert caught.value.exit_code == 5
