"""Which digest a name has: what exists for an architecture, and what a server may do wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from images.errors import Failure
from images.oci.model import DOCKER_INDEX, INDEX, MANIFEST, to_bytes
from images.registry.auth import Login
from images.registry.digest import resolve_digest
from images.registry.errors import (
    ImageNotFoundError,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)
from tests.kit.cases import cases
from tests.kit.fake_push_registry import PushRegistry, digest_of
from tests.unit.images.registry.test_push_reader import Truncating

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
CONFIG = to_bytes({"os": "linux", "architecture": "amd64"})
IMAGE = to_bytes({
    "schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": digest_of(CONFIG)},
    "layers": [],
})  # fmt: skip
INDEXED = to_bytes({
    "schemaVersion": 2,
    "mediaType": INDEX,
    "manifests": [
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {"digest": DIGEST, "platform": {"os": "unknown", "architecture": "unknown"}},
    ],
})  # fmt: skip


def fill(fake: PushRegistry) -> None:
    fake.manifests["team/index", "1"] = (INDEXED, INDEX)
    for name in ("1", digest_of(IMAGE)):
        fake.manifests["team/image", name] = (IMAGE, MANIFEST)
    fake.blobs["team/image", digest_of(CONFIG)] = CONFIG


@pytest.fixture
def server() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    fill(fake)
    yield fake
    fake.close()


def ask(server: PushRegistry, name: str = "team/index:1", **options: Any) -> str:
    options = {"arch": "amd64", "login": Login, "timeout_s": 20.0, **options}
    return resolve_digest(f"{server.address}/{name}", **options)


@pytest.mark.parametrize("arch", ["amd64", "arm64", "x86_64", "aarch64"])
def test_an_index_is_pinned_as_a_whole(server: PushRegistry, arch: str) -> None:
    assert ask(server, arch=arch) == digest_of(INDEXED)


@pytest.mark.parametrize("name", ["team/image:1", f"team/image:9@{digest_of(IMAGE)}"])
def test_a_single_image_is_looked_into(server: PushRegistry, name: str) -> None:
    assert ask(server, name) == digest_of(IMAGE)


@pytest.mark.parametrize("name", ["team/index:1", "team/image:1"])
def test_another_architecture_is_not_found_and_says_what_exists(
    server: PushRegistry, name: str
) -> None:
    with pytest.raises(ImageNotFoundError, match="linux/amd64") as caught:
        ask(server, name, arch="riscv64")
    assert "linux/riscv64" in caught.value.message
    assert "unknown" not in caught.value.message


def test_a_missing_tag_is_not_found(server: PushRegistry) -> None:
    with pytest.raises(ImageNotFoundError, match="team/index:2") as caught:
        ask(server, "team/index:2")
    assert "MANIFEST_UNKNOWN" in caught.value.detail


def test_a_token_is_fetched_without_a_login(server: PushRegistry) -> None:
    server.realm = f"http://{server.address}/token?x=1"
    challenge = f'Bearer realm="{server.realm}",service="here",scope="repository:x:pull"'
    server.rule("GET", "manifests", status=401, headers={"WWW-Authenticate": challenge})
    assert ask(server) == digest_of(INDEXED)
    assert server.token_requests == [
        ("", {"x": ["1"], "service": ["here"],
              "scope": ["repository:x:pull", "repository:team/index:pull"]}),
    ]  # fmt: skip


def test_no_login_where_one_is_needed_is_denied(server: PushRegistry) -> None:
    server.realm = "basic"
    words = r"it is not there, or a login that may read it is needed \(helper broken\)"
    with pytest.raises(RegistryDeniedError, match=words) as caught:
        ask(server, login=lambda: Login(problem="helper broken"))
    assert caught.value.fix == f"docker login {server.address}"


@cases(
    "status expected",
    ("401 without a challenge is denied", 401, RegistryDeniedError),
    ("403 is denied", 403, RegistryDeniedError),
    ("404 is not found", 404, ImageNotFoundError),
    ("rate-limiting is denied", 429, RegistryDeniedError),
    ("500 is no answer", 500, RegistryUnreachableError),
    ("nonsense is no answer", 418, RegistryUnreachableError),
)
def test_each_status_has_its_failure(
    server: PushRegistry, status: int, expected: type[Failure]
) -> None:
    server.rule("GET", "", status=status, body=b'{"errors": ["as told"]}', times=99)
    with pytest.raises(expected) as caught:
        ask(server)
    assert caught.value.exit_code == 5
    assert caught.value.fix
    assert "as told" in caught.value.detail


def test_one_failure_of_the_server_is_forgiven(server: PushRegistry) -> None:
    server.rule("GET", "", status=503, headers={"Retry-After": "600"})
    assert ask(server) == digest_of(INDEXED)


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_server_that_does_not_come_to_an_end_is_left(server: PushRegistry, how: str) -> None:
    server.rule("GET", "", times=99, **{how: True})
    with pytest.raises(RegistryUnreachableError, match=r"within 0\.5 s|in time"):
        ask(server, timeout_s=0.5)


def test_a_closed_port_is_unreachable(server: PushRegistry) -> None:
    server.close()
    with pytest.raises(RegistryUnreachableError, match="refuses connections") as caught:
        ask(server)
    assert "HTTPS_PROXY" in caught.value.fix


def test_half_a_configuration_is_not_believed() -> None:
    server = Truncating([5] * 9)
    fill(server)
    with pytest.raises(RegistryUnreachableError):
        ask(server, "team/image:1")
    server.close()


def test_an_answer_for_another_digest_is_not_believed(server: PushRegistry) -> None:
    server.manifests["team/image", DIGEST] = (IMAGE, MANIFEST)
    with pytest.raises(RegistryAnswerError, match="damaged"):
        ask(server, f"team/image@{DIGEST}")


def test_another_configuration_is_not_believed(server: PushRegistry) -> None:
    server.blobs["team/image", digest_of(CONFIG)] = CONFIG.replace(b"amd64", b"arm64")
    with pytest.raises(RegistryAnswerError, match="has another configuration"):
        ask(server, "team/image:1")


@cases(
    "body",
    ("a login page", b"<html>log in</html>"),
    ("nothing in it", b"{}"),
    ("a digest that is a path", b'{"config": {"digest": "../../x"}}'),
    ("the first version", b'{"schemaVersion": 1, "fsLayers": []}'),
)
def test_what_is_no_manifest_is_refused(server: PushRegistry, body: bytes) -> None:
    server.manifests["team/index", "1"] = (body, "")
    with pytest.raises(RegistryAnswerError):
        ask(server)


@cases(
    "entries",
    ("null", None),
    ("no platforms", [None, 1, {}]),
    ("odd types", [{"platform": {"os": 1}}]),
)
def test_an_index_with_odd_entries_offers_nothing(server: PushRegistry, entries: object) -> None:
    document = to_bytes({"mediaType": DOCKER_INDEX, "manifests": entries})
    server.manifests["team/index", "1"] = (document, DOCKER_INDEX)
    with pytest.raises(ImageNotFoundError):
        ask(server)


def test_a_login_is_not_sent_unencrypted(server: PushRegistry) -> None:
    server.realm = "http://token.invalid/token"
    with pytest.raises(RegistryAnswerError, match="not encrypted"):
        ask(server, login=lambda: Login("me", "pw"))
    assert [one.path for one in server.seen] == ["/v2/team/index/manifests/1"]
