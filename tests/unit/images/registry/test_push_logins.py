"""Whom a push shows its login to: tokens, their scopes and their ends, and nobody else."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from images.errors import Failure
from images.net.address import origin_of
from images.net.head import Reply
from images.net.http import HttpClient
from images.net.retries import Retries
from images.oci.model import MANIFEST
from images.oci.reference import parse_reference
from images.registry.auth import Login, TokenRequest
from images.registry.errors import RegistryAnswerError, RegistryDeniedError
from images.registry.session import RepositorySession
from images.registry.target import RegistryTarget
from images.registry.tokens import Authorizer, merged, scope
from tests.kit.cases import cases
from tests.kit.fake_push_registry import PushRegistry
from tests.unit.images.registry.test_push import HASTY, MB, Layer, has, open_target, write

ME = Login("me", "s3cret-word")
BASIC = base64.b64encode(b"me:s3cret-word").decode()
PUSH = "repository:team/app:pull,push"


@pytest.fixture
def server() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    fake.realm = f"http://{fake.address}/token?x=1"
    yield fake
    fake.close()


@pytest.fixture
def target(server: PushRegistry) -> Iterator[RegistryTarget]:
    opened = open_target(server, login=lambda: ME)
    yield opened
    opened.close()


def test_one_token_serves_a_whole_push(server: PushRegistry, target: RegistryTarget) -> None:
    for n in range(3):
        layer = Layer(1000 + n)
        target.has(layer.blob)
        write(target, layer)
    target.publish(b"{}", MANIFEST, name="1")
    assert [fields["scope"] for _, fields in server.token_requests] == [[PUSH]]
    assert server.token_requests[0][0] == f"Basic {BASIC}"


def test_connections_are_kept_after_logins_and_redirects(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.storage = f"http://localhost:{server.port}"
    for n in range(4):
        layer = Layer(1000 + n)
        server.blobs["team/app", layer.blob.digest] = layer.content
        assert target.has(layer.blob)
    # the registry's, the token server's, which asked in between, and the storage's
    assert len({one.connection for one in server.seen}) == 3


def test_several_threads_ask_for_one_token(server: PushRegistry, target: RegistryTarget) -> None:
    layers = [Layer(5000 + n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda layer: write(target, layer), layers))
    assert len(server.token_requests) == 1


def test_a_login_is_read_once(server: PushRegistry) -> None:
    asked: list[int] = []

    def login() -> Login:
        asked.append(1)
        return ME

    server.token_uses = 2
    target = open_target(server, login=login)
    for n in range(3):
        write(target, Layer(n))
    assert len(asked) == 1
    target.close()


def test_no_login_is_read_where_none_is_wanted(server: PushRegistry) -> None:
    def login() -> Login:
        raise AssertionError

    server.realm = ""
    target = open_target(server, login=login)
    write(target, Layer(5))
    target.close()


def test_a_token_that_ends_in_the_middle_is_renewed(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.token_uses = 2
    layers = [Layer(3 * MB), Layer(2 * MB), Layer(MB)]
    for layer in layers:
        write(target, layer)
        assert has(server, layer)
    refused = sum(layer.opened - 1 for layer in layers)
    assert refused >= 1  # a body was refused, and made again
    assert server.count("PATCH") == len(layers) + refused


def test_a_mount_asks_for_the_right_to_read_there(
    server: PushRegistry, target: RegistryTarget
) -> None:
    layer = Layer(5)
    server.blobs["team/base", layer.blob.digest] = layer.content
    assert target.mount(layer.blob, "team/base")
    assert server.token_requests[-1][1]["scope"] == [PUSH, "repository:team/base:pull"]


def test_a_mount_from_what_may_not_be_read_is_no_failure(
    server: PushRegistry, target: RegistryTarget
) -> None:
    layer = Layer(5)
    server.grants = lambda wanted: "secret" not in wanted
    server.blobs["secret/base", layer.blob.digest] = layer.content
    assert not target.mount(layer.blob, "secret/base")
    write(target, layer)
    assert has(server, layer)


def test_an_identity_token_is_exchanged(server: PushRegistry) -> None:
    target = open_target(server, login=lambda: Login(identity_token="refresh-me"))
    write(target, Layer(5))
    _, fields = server.token_requests[0]
    assert fields["refresh_token"] == ["refresh-me"]
    assert fields["scope"] == [PUSH]
    target.close()


def test_a_basic_login_is_shown_when_asked_for(server: PushRegistry) -> None:
    server.realm = "basic"
    target = open_target(server, login=lambda: ME)
    write(target, Layer(5))
    assert [one.authorization for one in server.seen][:2] == ["", f"Basic {BASIC}"]
    target.close()


@pytest.mark.parametrize("realm", ["basic", "token"])
@cases(
    "login words",
    ("no login", Login(), "a login that may push to it is needed"),
    ("a broken helper", Login(problem="helper broken"), "helper broken"),
    ("a wrong login", Login("me", "wrong-word"), "may not push to it"),
)
def test_what_may_not_be_pushed_is_told_without_the_login(
    server: PushRegistry, realm: str, login: Login, words: str
) -> None:
    server.realm = "basic" if realm == "basic" else server.realm
    server.grants = lambda _: False
    target = open_target(server, login=lambda: login)
    with pytest.raises(RegistryDeniedError, match=words) as caught:
        write(target, Layer(5))
    assert caught.value.fix == f"docker login {server.address}"
    shown = f"{caught.value.message}{caught.value.fix}{caught.value.detail}"
    assert "wrong-word" not in shown
    assert "token-" not in shown
    target.close()


def test_a_right_that_is_missing_in_the_middle_is_told(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.rule("PATCH", "uploads", status=401, times=99)
    with pytest.raises(RegistryDeniedError):
        write(target, Layer(5))
    assert server.count("PATCH") <= HASTY.tries


def test_what_a_registry_repeats_of_the_login_is_not_shown(
    server: PushRegistry, target: RegistryTarget
) -> None:
    write(target, Layer(5))
    token = next(iter(server.tokens))
    said = f"you sent Bearer {token}, Basic {BASIC}, s3cret-word".encode()
    server.rule("PUT", "manifests", status=400, body=said, times=9)
    with pytest.raises(Failure) as caught:
        target.publish(b"{}", MANIFEST, name="1")
    shown = f"{caught.value.message}{caught.value.fix}{caught.value.detail}"
    for secret in (token, BASIC, "s3cret-word"):
        assert secret not in shown
    assert "you sent Bearer ***" in shown


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_another_host_sees_no_login(
    server: PushRegistry, target: RegistryTarget, method: str
) -> None:
    elsewhere = PushRegistry()
    elsewhere.realm = f"http://{elsewhere.address}/token"
    elsewhere.rule("*", "", status=202, times=99, headers={"Location": "/v2/x/blobs/uploads/1?a=b"})
    location = {"Location": f"http://{elsewhere.address}/v2/x/blobs/uploads/1?sig=abc"}
    server.rule(method, "uploads", status=202, headers=location)
    with pytest.raises(Failure) as caught:
        write(target, Layer(5))
    assert elsewhere.seen
    assert {one.authorization for one in elsewhere.seen} == {""}
    assert "sig=" not in caught.value.message + caught.value.detail
    elsewhere.close()


def test_another_hosts_challenge_is_not_answered(
    server: PushRegistry, target: RegistryTarget
) -> None:
    elsewhere = PushRegistry()
    elsewhere.realm = f"http://{elsewhere.address}/token"
    server.rule(
        "HEAD",
        "blobs",
        status=307,
        headers={"Location": f"http://{elsewhere.address}/v2/x/blobs/y"},
    )
    assert not target.has(Layer(5).blob)
    assert not elsewhere.token_requests
    elsewhere.close()


@pytest.mark.parametrize(
    "realm", ["http://example.invalid/token", "file:///etc/passwd", "http://[", "//x"]
)
def test_a_login_is_not_sent_where_it_can_be_overheard(
    server: PushRegistry, target: RegistryTarget, realm: str
) -> None:
    server.realm = realm
    with pytest.raises(RegistryAnswerError, match="not encrypted"):
        write(target, Layer(5))
    assert not server.token_requests


@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b'{"token": 1}', b'{"token": "a\\r\\nX: y"}', b'{"token": "a b"}']
)
def test_a_token_that_is_none_is_refused(
    server: PushRegistry, target: RegistryTarget, body: bytes
) -> None:
    server.rule("GET", "token", status=200, body=body)
    with pytest.raises(RegistryAnswerError, match=r"token|JSON"):
        write(target, Layer(5))


def test_a_token_server_that_stumbles_is_asked_again(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.rule("GET", "token", status=503)
    write(target, Layer(5))


# --- the parts ---


@cases(
    "scopes expected",
    ("the same repository", ["repository:a:pull", "repository:a:pull,push"],
     ("repository:a:pull,push",)),
    ("two repositories", ["repository:a:pull", "repository:b:pull"],
     ("repository:a:pull", "repository:b:pull")),
    ("another resource", ["registry:catalog:*"], ("registry:catalog:*",)),
    ("no such form", ["aws"], ("aws",)),
    ("none", [], ()),
)  # fmt: skip
def test_scopes_are_joined(scopes: list[str], expected: tuple[str, ...]) -> None:
    assert merged(scopes) == expected


@cases(
    "one other same",
    ("the port that is meant", "https://r.io/a", "https://r.io:443/b", True),
    ("capitals", "https://R.io/a", "https://r.io/b", True),
    ("another scheme", "https://r.io/a", "http://r.io/a", False),
    ("another port", "https://r.io/a", "https://r.io:444/a", False),
    ("a longer name", "https://r.io/a", "https://r.io.evil.example/a", False),
    ("a user's name", "https://r.io/a", "https://r.io@evil.example/a", False),
)
def test_origins_are_compared(one: str, other: str, same: bool) -> None:  # noqa: FBT001
    assert (origin_of(one) == origin_of(other)) is same


class TokenServer:
    """Gives numbered tokens that last as long as it says."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    def __call__(self, _request: TokenRequest) -> Reply:
        self.asked += 1
        return Reply(
            status=200, headers={}, body=f'{{"token": "t{self.asked}"{self._more()}}}'.encode()
        )

    def _more(self) -> str:
        return "".join(f', "{key}": {value}' for key, value in self.answer.items())


@cases(
    "answer lasts",
    ("60 s where nothing is said", {}, 60),
    ("as long as it says", {"expires_in": 300}, 300),
    ("nonsense counts as nothing", {"expires_in": -5}, 60),
    ("a text counts as nothing", {"expires_in": '"x"'}, 60),
)
def test_a_token_is_renewed_before_it_ends(answer: dict[str, Any], lasts: int) -> None:
    now = [1000.0]
    tokens = TokenServer(**answer)
    authorizer = Authorizer(parse_reference("r.io/a"), Login, tokens, clock=lambda: now[0])
    right = (scope("a", "pull"),)
    refused = Reply(status=401, headers={"www-authenticate": 'Bearer realm="https://r.io/t"'})
    assert authorizer.header(right) is None
    assert authorizer.renew(right, refused, None)
    assert authorizer.header(right) == "Bearer t1"
    now[0] += lasts - 15
    assert authorizer.header(right) == "Bearer t1"
    now[0] += 14
    assert authorizer.header(right) == "Bearer t2"
    assert tokens.asked == 2


def test_what_another_thread_renewed_is_used() -> None:
    tokens = TokenServer()
    authorizer = Authorizer(parse_reference("r.io/a"), Login, tokens)
    right = (scope("a", "pull"),)
    refused = Reply(status=401, headers={"www-authenticate": 'Bearer realm="https://r.io/t"'})
    authorizer.renew(right, refused, None)
    assert authorizer.renew(right, refused, None)
    assert tokens.asked == 1


def test_an_encrypted_registry_may_not_send_us_on_unencrypted() -> None:
    client = HttpClient(retries=Retries())
    session = RepositorySession(parse_reference("r.io/a"), client, purpose="push", login=Login)
    with pytest.raises(RegistryAnswerError, match="not encrypted") as caught:
        session.locate("http://localhost/x?secret=1", session.url("blobs/uploads/"))
    assert "X-Forwarded-Proto" in caught.value.fix
    assert "secret" not in caught.value.message
