"""Asking a registry: the answers, the logins, and everything a server may do wrong."""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from images.errors import Failure
from images.oci.model import DOCKER_INDEX
from images.registry import (
    ImageNotFoundError,
    Login,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)
from images.registry.digest import resolve_digest
from tests.kit.fake_registry import DIGEST, INDEX, MANIFEST, FakeRegistry, digest_of, packed

NO_LOGIN = Login()


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()
    yield fake
    fake.close()


def ask(server: FakeRegistry, name: str = "team/index:1", **options: Any) -> str:
    options = {"arch": "amd64", "login": lambda: NO_LOGIN, "timeout_s": 20.0, **options}
    return resolve_digest(f"{server.address}/{name}", **options)


@pytest.mark.parametrize("arch", ["amd64", "arm64", "x86_64", "aarch64"])
def test_an_index_is_pinned_as_a_whole(server: FakeRegistry, arch: str) -> None:
    assert ask(server, arch=arch) == digest_of(INDEX)


def test_a_single_image_is_looked_into(server: FakeRegistry) -> None:
    assert ask(server, "team/image:1") == digest_of(MANIFEST)


def test_a_digest_is_confirmed(server: FakeRegistry) -> None:
    assert ask(server, f"team/image:9@{digest_of(MANIFEST)}") == digest_of(MANIFEST)


@pytest.mark.parametrize("name", ["team/index:1", "team/image:1"])
def test_another_architecture_is_not_found_and_says_what_exists(
    server: FakeRegistry, name: str
) -> None:
    with pytest.raises(ImageNotFoundError, match="linux/amd64") as caught:
        ask(server, name, arch="riscv64")
    assert "linux/riscv64" in caught.value.message
    assert "unknown" not in caught.value.message


def test_a_missing_tag_is_not_found(server: FakeRegistry) -> None:
    with pytest.raises(ImageNotFoundError, match="team/index:2") as caught:
        ask(server, "team/index:2")
    assert "MANIFEST_UNKNOWN" in caught.value.detail


def test_a_token_is_fetched_without_a_login(server: FakeRegistry) -> None:
    server.realm = f"http://{server.address}/token?x=1"
    assert ask(server) == digest_of(INDEX)
    _, path, authorization = server.seen[1]
    assert urllib.parse.parse_qs(urllib.parse.urlsplit(path).query) == {
        "x": ["1"], "service": ["here"],
        "scope": ["repository:x:pull", "repository:team/index:pull"],
    }  # fmt: skip
    assert authorization == ""


def test_a_token_is_fetched_with_the_login(server: FakeRegistry) -> None:
    server.realm = f"http://{server.address}/token"
    assert ask(server, login=lambda: Login("me", "pass word")) == digest_of(INDEX)
    assert server.seen[1][2] == f"Basic {base64.b64encode(b'me:pass word').decode()}"


def test_an_identity_token_is_exchanged(server: FakeRegistry) -> None:
    server.realm = f"http://{server.address}/token"
    assert ask(server, login=lambda: Login(identity_token="refresh")) == digest_of(INDEX)
    assert server.forms[0]["refresh_token"] == ["refresh"]
    assert server.forms[0]["grant_type"] == ["refresh_token"]


def test_a_basic_login_is_shown_only_when_asked_for(server: FakeRegistry) -> None:
    server.mode = "basic"
    assert ask(server, "team/image:1", login=lambda: Login("me", "pw")) == digest_of(MANIFEST)
    assert [bool(authorization) for *_, authorization in server.seen] == [False, True, True]


def test_no_login_where_one_is_needed_is_denied(server: FakeRegistry) -> None:
    server.mode = "basic"
    with pytest.raises(RegistryDeniedError) as caught:
        ask(server, login=lambda: Login(problem="helper broken"))
    assert caught.value.fix == f"docker login {server.address}"
    assert "helper broken" in caught.value.message


def test_a_wrong_login_is_denied(server: FakeRegistry) -> None:
    server.realm = f"http://{server.address}/token"
    server.mode = "refuse login"
    with pytest.raises(RegistryDeniedError) as caught:
        ask(server, login=lambda: Login("me", "wrong"))
    assert "wrong" not in caught.value.message
    assert "incorrect username" in caught.value.detail


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(401, RegistryDeniedError, id="401 without a challenge is denied"),
        pytest.param(403, RegistryDeniedError, id="403 is denied"),
        pytest.param(404, ImageNotFoundError, id="404 is not found"),
        pytest.param(429, RegistryDeniedError, id="rate-limiting is denied"),
        pytest.param(500, RegistryUnreachableError, id="500 is no answer"),
        pytest.param(418, RegistryUnreachableError, id="nonsense is no answer"),
    ],
)
def test_each_status_has_its_failure(
    server: FakeRegistry, status: int, expected: type[Failure]
) -> None:
    server.status = status
    with pytest.raises(expected) as caught:
        ask(server)
    assert caught.value.exit_code == 5
    assert caught.value.fix
    assert "as told" in caught.value.detail


def test_one_failure_of_the_server_is_forgiven(server: FakeRegistry) -> None:
    server.fail_first = 1
    assert ask(server) == digest_of(INDEX)


@pytest.mark.parametrize("mode", ["hang", "drip"])
def test_a_server_that_does_not_come_to_an_end_is_left(server: FakeRegistry, mode: str) -> None:
    server.mode = mode
    with pytest.raises(RegistryUnreachableError, match=r"within 0\.5 s|in time"):
        ask(server, timeout_s=0.5)


def test_a_closed_port_is_unreachable(server: FakeRegistry) -> None:
    server.close()
    with pytest.raises(RegistryUnreachableError, match="refuses connections") as caught:
        ask(server)
    assert "HTTPS_PROXY" in caught.value.fix


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param("truncate", RegistryUnreachableError, id="half an answer"),
        pytest.param("loop", RegistryAnswerError, id="redirects without end"),
        pytest.param("astray", RegistryAnswerError, id="a redirect to a file"),
    ],
)
def test_a_broken_answer_is_not_believed(
    server: FakeRegistry, mode: str, expected: type[Failure]
) -> None:
    server.mode = mode
    with pytest.raises(expected):
        ask(server)


def test_a_wrong_digest_header_is_not_believed(server: FakeRegistry) -> None:
    server.headers = {"Docker-Content-Digest": DIGEST}
    with pytest.raises(RegistryAnswerError, match="damaged"):
        ask(server)


def test_an_answer_for_another_digest_is_not_believed(server: FakeRegistry) -> None:
    server.bodies[f"/v2/team/image/manifests/{DIGEST}"] = MANIFEST
    with pytest.raises(RegistryAnswerError, match="damaged"):
        ask(server, f"team/image@{DIGEST}")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"<html>log in</html>", id="a login page"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="nothing in it"),
        pytest.param(b'{"config": {"digest": "../../x"}}', id="a digest that is a path"),
        pytest.param(b'{"schemaVersion": 1, "fsLayers": []}', id="the first version"),
        pytest.param(b"[" * 100_000, id="brackets without end"),
        pytest.param(b" " * 5_000_000, id="too much"),
    ],
)
def test_what_is_no_manifest_is_refused(server: FakeRegistry, body: bytes) -> None:
    server.bodies["/v2/team/index/manifests/1"] = body
    with pytest.raises(RegistryAnswerError):
        ask(server)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(None, id="null"),
        pytest.param([None, 1, {}], id="no platforms"),
        pytest.param([{"platform": {"os": 1}}], id="odd types"),
    ],
)
def test_an_index_with_odd_entries_offers_nothing(server: FakeRegistry, entries: object) -> None:
    document = {"mediaType": DOCKER_INDEX, "manifests": entries}
    server.bodies["/v2/team/index/manifests/1"] = packed(document)
    with pytest.raises(ImageNotFoundError):
        ask(server)


def test_a_redirect_is_followed(server: FakeRegistry) -> None:
    server.mode = "redirect"
    assert ask(server) == digest_of(INDEX)


def test_the_login_stays_with_the_registry(server: FakeRegistry) -> None:
    server.realm = f"http://{server.address}/token"
    server.mode = "elsewhere"
    ask_failed = pytest.raises(RegistryDeniedError)  # the other host asks for the token, too
    with ask_failed:
        ask(server, login=lambda: Login("me", "pw"))
    assert [authorization for _, path, authorization in server.seen][-1] == ""


def test_a_login_is_not_sent_unencrypted(server: FakeRegistry) -> None:
    server.realm = "http://token.invalid/token"
    with pytest.raises(RegistryAnswerError, match="not encrypted"):
        ask(server, login=lambda: Login("me", "pw"))
    assert [path for _, path, _ in server.seen] == ["/v2/team/index/manifests/1"]
