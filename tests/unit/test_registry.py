"""Asking a registry: names, logins, and everything a server may do wrong."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from images import registry
from images.errors import Failure
from images.registry import (
    Answer,
    BadCaBundle,
    BadReference,
    Challenge,
    ImageNotFoundError,
    Login,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
    parse_challenges,
    parse_reference,
    resolve_digest,
)

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "registry_name", "repository", "tag", "digest"),
    [
        pytest.param("debian", "docker.io", "library/debian", "latest", None, id="a bare name"),
        pytest.param("debian:12", "docker.io", "library/debian", "12", None, id="a name and a tag"),
        pytest.param("nvidia/cuda:1.2-x", "docker.io", "nvidia/cuda", "1.2-x", None, id="an owner"),
        pytest.param(
            "index.docker.io/a", "docker.io", "library/a", "latest", None, id="the old host"
        ),
        pytest.param(
            "nvcr.io/nvidia/k/p:24", "nvcr.io", "nvidia/k/p", "24", None, id="a deep path"
        ),
        pytest.param("localhost/a", "localhost", "a", "latest", None, id="localhost is a host"),
        pytest.param("h:5000/a", "h:5000", "a", "latest", None, id="a port makes a host"),
        pytest.param("[::1]:5000/a:b", "[::1]:5000", "a", "b", None, id="an IPv6 address"),
        pytest.param("Host/a", "Host", "a", "latest", None, id="upper case makes a host"),
        pytest.param(f"a@{DIGEST}", "docker.io", "library/a", None, DIGEST, id="a digest alone"),
        pytest.param(f"r.io/a:1@{DIGEST}", "r.io", "a", "1", DIGEST, id="a tag and a digest"),
        pytest.param("a__b/c-d.e:T_1", "docker.io", "a__b/c-d.e", "T_1", None, id="separators"),
    ],
)
def test_a_name_is_read_by_dockers_rules(
    text: str, registry_name: str, repository: str, tag: str | None, digest: str | None
) -> None:
    found = parse_reference(text)
    assert (found.registry, found.repository) == (registry_name, repository)
    assert (found.tag, found.digest) == (tag, digest)
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(" debian", id="a space"),
        pytest.param("https://docker.io/debian", id="a scheme"),
        pytest.param("Debian", id="upper case in the path"),
        pytest.param("debian:", id="an empty tag"),
        pytest.param("debian:a b", id="a space in the tag"),
        pytest.param(f"debian:{'x' * 129}", id="a tag that is too long"),
        pytest.param("debian@sha256:abc", id="a short digest"),
        pytest.param("debian@", id="an empty digest"),
        pytest.param(f"debian@md5:{HEX}", id="another algorithm"),
        pytest.param("a//b", id="an empty part"),
        pytest.param("-a/b", id="a leading dash"),
        pytest.param("host.:80/x", id="a host with an empty label"),
        pytest.param("h:port/x", id="a port that is no number"),
        pytest.param("../etc/passwd", id="dots"),
        pytest.param("a/b\n:c", id="a newline"),
        pytest.param("debian:1\n", id="a newline at the end"),
        pytest.param("/".join(["a" * 50] * 6), id="too long"),
        pytest.param("debian:\u0661", id="a digit that is not ASCII"),
    ],
)
def test_what_is_no_name_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        parse_reference(text)
    assert caught.value.exit_code == 2
    assert "debian:12-slim" in caught.value.fix


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(
            'Bearer realm="https://a/t",service="s, t",scope="repository:x:pull,push"',
            [Challenge("bearer", {"realm": "https://a/t", "service": "s, t",
                                  "scope": "repository:x:pull,push"})],
            id="commas inside quotes",
        ),
        pytest.param("Basic realm=x", [Challenge("basic", {"realm": "x"})], id="no quotes"),
        pytest.param(
            'Basic realm="a", Bearer realm="b"',
            [Challenge("basic", {"realm": "a"}), Challenge("bearer", {"realm": "b"})],
            id="two in one line",
        ),
        pytest.param(r'Basic realm="a\"b"', [Challenge("basic", {"realm": 'a"b'})], id="escapes"),
        pytest.param("", [], id="none"),
        pytest.param("nonsense", [], id="nonsense"),
    ],
)  # fmt: skip
def test_challenges_are_read(header: str, expected: list[Challenge]) -> None:
    assert list(parse_challenges(header)) == expected


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        pytest.param({}, "https://r.io/", None, id="none is set"),
        pytest.param({"https_proxy": "p:3128"}, "https://r.io/", "http://p:3128", id="no scheme"),
        pytest.param({"https_proxy": "http://p"}, "http://r.io/", None, id="for the other scheme"),
        pytest.param({"all_proxy": "http://p"}, "https://r.io/", "http://p", id="for all"),
        pytest.param(
            {"https_proxy": "http://p", "no_proxy": ".r.io"},
            "https://a.r.io/",
            None,
            id="an exception",
        ),
        pytest.param({"http_proxy": "http://p"}, "http://127.0.0.1:1/", None, id="this machine"),
    ],
)
def test_the_proxy_is_the_environments(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], url: str, expected: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert registry.proxy_for(url) == expected


def test_a_bad_ca_bundle_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificates")
    with pytest.raises(BadCaBundle, match=r"ca\.pem"):
        resolve_digest("localhost:1/a", arch="amd64", ca_bundle=tmp_path / "ca.pem")


# --- a server ---------------------------------------------------------------------------------


def packed(document: object) -> bytes:
    return json.dumps(document).encode()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


CONFIG = packed({"os": "linux", "architecture": "amd64"})
MANIFEST = packed({
    "schemaVersion": 2,
    "mediaType": registry.MANIFEST_TYPES[0],
    "config": {"digest": digest_of(CONFIG)},
    "layers": [],
})  # fmt: skip
INDEX = packed({
    "schemaVersion": 2,
    "mediaType": registry.INDEX_TYPES[0],
    "manifests": [
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {"digest": DIGEST, "platform": {"os": "unknown", "architecture": "unknown"}},
    ],
})  # fmt: skip
NO_LOGIN = Login()


class FakeRegistry:
    """A registry that misbehaves on request."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {
            "/v2/team/index/manifests/1": INDEX,
            "/v2/team/image/manifests/1": MANIFEST,
            f"/v2/team/image/manifests/{digest_of(MANIFEST)}": MANIFEST,
            f"/v2/team/image/blobs/{digest_of(CONFIG)}": CONFIG,
        }
        self.headers: dict[str, str] = {}
        self.fail_first = 0
        self.status = 0
        self.mode = ""
        self.realm = ""
        self.token = "t0ken"
        self.seen: list[tuple[str, str, str]] = []
        self.forms: list[dict[str, list[str]]] = []
        self.released = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                fake.answer(self)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                fake.forms.append(urllib.parse.parse_qs(self.rfile.read(length).decode()))
                fake.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def send(
        self, handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if self.mode == "truncate":
            body = body[: len(body) // 2]
            handler.close_connection = True
        handler.wfile.write(body)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urllib.parse.urlsplit(handler.path)
        authorization = handler.headers.get("Authorization", "")
        self.seen.append((handler.command, handler.path, authorization))
        if path.path == "/token":
            if self.mode == "refuse login" and authorization:
                return self.send(handler, 401, b'{"details": "incorrect username"}', {})
            return self.send(handler, 200, packed({"token": self.token}), {})
        if self.mode == "hang":
            self.released.wait(60)
            return None
        if self.mode == "drip":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            with contextlib.suppress(OSError):
                while not self.released.wait(0.01):
                    handler.wfile.write(b" ")
            return None
        if self.fail_first:
            self.fail_first -= 1
            return self.send(handler, 503, b"", {"Retry-After": "600"})
        if self.status:
            return self.send(handler, self.status, b'{"errors": ["as told"]}', self.headers)
        if self.mode == "basic" and not authorization:
            return self.send(handler, 401, b"", {"WWW-Authenticate": 'Basic realm="r"'})
        if self.realm and authorization != f"Bearer {self.token}":
            challenge = f'Bearer realm="{self.realm}",service="here",scope="repository:x:pull"'
            return self.send(handler, 401, b"{}", {"WWW-Authenticate": challenge})
        if self.mode == "redirect" and not path.query:
            return self.send(handler, 307, b"", {"Location": f"{path.path}?moved=1"})
        if self.mode == "elsewhere" and "127.0.0.1" in handler.headers["Host"]:
            other = f"http://localhost:{self.server.server_address[1]}{path.path}"
            return self.send(handler, 307, b"", {"Location": other})
        if self.mode == "loop":
            return self.send(handler, 307, b"", {"Location": handler.path})
        if self.mode == "astray":
            return self.send(handler, 302, b"", {"Location": "file:///etc/passwd"})
        return self.found(handler, path.path)

    def found(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        body = self.bodies.get(path)
        if body is None:
            return self.send(handler, 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}', {})
        return self.send(
            handler, 200, body, {"Docker-Content-Digest": digest_of(body), **self.headers}
        )


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
        "x": ["1"], "service": ["here"], "scope": ["repository:x:pull"],
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
        pytest.param(429, RegistryDeniedError, id="too many requests is denied"),
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
    document = {"mediaType": registry.INDEX_TYPES[1], "manifests": entries}
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


def test_a_login_is_not_sent_unencrypted() -> None:
    challenge = {"www-authenticate": 'Bearer realm="http://evil/token"'}
    sent: list[str] = []

    def http(
        _method: str, url: str, _headers: Mapping[str, str], _body: bytes | None = None
    ) -> Answer:
        sent.append(url)
        return Answer(status=401, headers=challenge, body=b"")

    with pytest.raises(RegistryAnswerError, match="not encrypted"):
        resolve_digest("r.io/a:1", arch="amd64", http=http, login=lambda: Login("me", "pw"))
    assert sent == ["https://r.io/v2/a/manifests/1"]


# --- docker's configuration -------------------------------------------------------------------


@pytest.fixture
def docker_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_login_of_the_file_is_found(docker_config: Path) -> None:
    auth = base64.b64encode(b"me:secret").decode()
    (docker_config / "config.json").write_text(json.dumps({"auths": {"r.io": {"auth": auth}}}))
    found = registry.read_login("r.io")
    assert (found.username, found.password) == ("me", "secret")
    assert not registry.read_login("other.io")
    assert "secret" not in repr(found)


def test_a_login_of_a_helper_is_found(docker_config: Path) -> None:
    helper = docker_config / "docker-credential-fake"
    helper.write_text(
        '#!/bin/sh\nread -r x; echo "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"idt\\"}"\n'
    )
    helper.chmod(0o755)
    (docker_config / "config.json").write_text(json.dumps({"credHelpers": {"r.io": "fake"}}))
    assert registry.read_login("r.io").identity_token == "idt"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"credsStore": "absent"}', id="a helper that is not installed"),
        pytest.param('{"auths": {"r.io": {"auth": "%%%"}}}', id="not base64"),
        pytest.param('{"auths": {"r.io": 1}}', id="not an entry"),
        pytest.param('{"auths": []}', id="a list"),
        pytest.param("[]", id="another document"),
        pytest.param("not json", id="not JSON"),
    ],
)
def test_a_broken_configuration_is_no_login(docker_config: Path, text: str) -> None:
    (docker_config / "config.json").write_text(text)
    assert not registry.read_login("r.io")
