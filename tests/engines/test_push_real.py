"""Pushing to a real registry, Debian's docker-registry, by all that may go wrong on the way.

What the double of the unit tests answers is held here against the real one, exchange by exchange.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import socket
import subprocess
import tarfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import urllib3

from images.net.retries import Retries
from images.oci.errors import DigestMismatchError
from images.oci.model import (
    CONFIG,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    descriptor_of,
    digest_of,
    to_bytes,
)
from images.oci.sources import Stream, Unpacked
from images.registry.auth import Login
from images.registry.errors import RegistryDeniedError, RegistryUnreachableError
from images.registry.reader import RepositoryReader
from images.registry.referrers import fallback_tag
from images.registry.target import RegistryTarget
from tests import need
from tests.engines.real_registry import serving
from tests.kit.fake_push_registry import PushRegistry
from tests.kit.web_server import Handler, WebServer

MB = 1 << 20
PATIENCE = Retries(first_wait_s=0.05)
# of "pass-word", by libxcrypt's bcrypt; the registry reads no other kind
HTPASSWD = "me:$2y$05$abcdefghijklmnopqrstuulQElbHkP7vjLqXxb3Lzm18cJsfRyGH6\n"


def opened(address: str, name: str, login: Login | None = None) -> RegistryTarget:
    held = login or Login()
    return RegistryTarget.open(f"{address}/{name}", login=lambda: held, retries=PATIENCE)


def stream_of(content: bytes, unpacked: Unpacked) -> Callable[[], Stream]:
    def stream() -> Stream:
        for at in range(0, len(content), 300_000):
            yield content[at : at + 300_000]
        return unpacked

    return stream


def noise(size: int, seed: bytes = b"noise") -> bytes:
    """Bytes that are the same each time and that nothing makes smaller."""
    return hashlib.shake_256(seed).digest(size)


def send(target: RegistryTarget, content: bytes, *, known: bool = True) -> Descriptor:
    blob = descriptor_of(LAYER_GZIP, content)
    told: list[int] = []
    unpacked = Unpacked(diff_id=blob.digest, size=len(content))
    written = target.write(
        stream_of(content, unpacked), expected=blob if known else None, on_bytes=told.append
    )
    assert (written.digest, written.size) == (blob.digest, blob.size)
    assert sum(told) == blob.size
    return blob


def push_image(target: RegistryTarget, text: bytes = b"hello") -> Descriptor:
    """Push a whole image of one layer."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("hello.txt")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    diff_id = digest_of(packed.getvalue())
    layer = send(target, gzip.compress(packed.getvalue(), mtime=0))
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["cat", "/hello.txt"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": target.write_bytes(to_bytes(config), CONFIG).to_json(),
        "layers": [layer.to_json()],
    }
    return target.publish(to_bytes(manifest), MANIFEST, name="1")


def holds(address: str, name: str, blob: Descriptor) -> bool:
    """Whether the registry gives these bytes, by a client that is not ours."""
    reply = urllib3.request("GET", f"http://{address}/v2/{name}/blobs/{blob.digest}", retries=False)
    return reply.status == 200 and digest_of(reply.data) == blob.digest


# --- what others make of it ---


def test_others_accept_what_was_pushed(registry: str, tmp_path: Path) -> None:
    skopeo, umoci = need.program("skopeo"), need.program("umoci")
    target = opened(registry, "team/image:1")
    pushed = push_image(target)
    target.close()
    name = f"docker://{registry}/team/image:1"
    shown = subprocess.run(
        [skopeo, "inspect", "--tls-verify=false", name], check=True, capture_output=True
    )
    assert json.loads(shown.stdout)["Digest"] == pushed.digest
    layout = f"oci:{tmp_path}/oci:1"
    copy = [skopeo, "--insecure-policy", "copy", "-q", "--src-tls-verify=false", name, layout]
    subprocess.run(copy, check=True)
    assert (tmp_path / "oci/blobs/sha256" / pushed.hex).is_file()
    unpacked = tmp_path / "bundle"
    raw = [umoci, "raw", "unpack", "--rootless", "--image", f"{tmp_path}/oci:1", str(unpacked)]
    subprocess.run(raw, check=True, capture_output=True)
    assert (unpacked / "hello.txt").read_bytes() == b"hello"


def test_what_was_pushed_is_read_again(registry: str) -> None:
    target = opened(registry, "team/again:1")
    pushed = push_image(target)
    target.close()
    reader = RepositoryReader.open(f"{registry}/team/again:1", login=Login)
    manifest = reader.manifest()
    assert manifest.digest == pushed.digest
    layer = json.loads(manifest.content)["layers"][0]
    content = b"".join(reader.blob(layer["digest"], layer["size"]))
    assert gzip.decompress(content)
    half = len(content) // 2
    begun = hashlib.sha256(content[:half])
    rest = reader.blob(layer["digest"], layer["size"], offset=half, hashed=begun)
    assert b"".join(rest) == content[half:]
    reader.close()


# --- blobs ---


@pytest.mark.parametrize("size", [0, 1, 5 * MB + 3])
@pytest.mark.parametrize("known", [True, False])
def test_a_blob_arrives(registry: str, size: int, known: bool) -> None:  # noqa: FBT001
    target = opened(registry, "team/blobs:1")
    content = noise(size, b"known" if known else b"not known")
    assert not target.has(descriptor_of(LAYER_GZIP, content)) or size == 0
    blob = send(target, content, known=known)
    fresh = opened(registry, "team/blobs:1")
    assert fresh.has(blob)
    assert not fresh.has(Descriptor(media_type="x", digest=blob.digest, size=size + 1))
    assert holds(registry, "team/blobs", blob)
    for one in (target, fresh):
        one.close()


def test_a_mount_sends_nothing(registry: str) -> None:
    base, app = opened(registry, "team/base:1"), opened(registry, "team/app:1")
    blob = send(base, noise(MB))
    assert not app.has(blob)
    assert app.mount(blob, "team/base")
    assert holds(registry, "team/app", blob)
    absent = descriptor_of(LAYER_GZIP, noise(2 * MB, b"absent"))
    assert not app.mount(absent, "team/base")
    send(app, noise(2 * MB, b"absent"))  # by the upload that the mount began
    assert holds(registry, "team/app", absent)
    for one in (base, app):
        one.close()


def test_a_blob_that_is_removed_is_sent_again(registry: str) -> None:
    target = opened(registry, "team/removed:1")
    blob = send(target, noise(MB, b"removed"))
    url = f"http://{registry}/v2/team/removed/blobs/{blob.digest}"
    assert urllib3.request("DELETE", url, retries=False).status == 202
    fresh = opened(registry, "team/removed:1")
    assert not fresh.has(blob)
    send(fresh, noise(MB, b"removed"))
    assert holds(registry, "team/removed", blob)
    for one in (target, fresh):
        one.close()


def test_other_bytes_are_not_committed(registry: str) -> None:
    target = opened(registry, "team/other:1")
    expected = descriptor_of(LAYER_GZIP, noise(MB, b"expected"))
    other = noise(MB, b"other")
    stream = stream_of(other, Unpacked(diff_id=expected.digest, size=1))
    with pytest.raises(DigestMismatchError):
        target.write(stream, expected=expected, on_bytes=lambda _: None)
    assert not holds(registry, "team/other", expected)
    assert not holds(registry, "team/other", descriptor_of(LAYER_GZIP, other))
    target.close()


# --- a bad line ---


class CuttingProxy:
    """Passes connections on, and cuts each after the next of so many bytes towards the registry."""

    def __init__(self, address: str, cuts: list[int]) -> None:
        host, _, port = address.partition(":")
        self._behind = (host, int(port))
        self.cuts = cuts
        self.made = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        left = [self.cuts.pop(0)] if self.cuts else None
        with near, suppress(OSError), socket.create_connection(self._behind) as far:
            back = threading.Thread(target=self._pass, args=(far, near, None), daemon=True)
            back.start()
            self._pass(near, far, left)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, limit: list[int] | None) -> None:
        """Hand on until one side closes, or the limit is passed; then neither side has a line."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if limit is not None:
                    limit[0] -= len(data)
                    if limit[0] < 0:
                        self.made += 1
                        break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_push_survives_a_line_that_breaks(registry: str, known: bool) -> None:  # noqa: FBT001
    proxy = CuttingProxy(registry, [3 * MB, 1000, 5 * MB, 200_000])
    target = opened(proxy.address, "team/cut:1")
    blob = send(target, noise(8 * MB, b"cut" if known else b"not known"), known=known)
    assert proxy.made == 4
    assert holds(registry, "team/cut", blob)
    target.close()
    proxy.close()


def test_a_push_over_a_line_that_always_breaks_says_how_far_it_got(registry: str) -> None:
    proxy = CuttingProxy(registry, [2 * MB] * 200)
    target = opened(proxy.address, "team/cut:1")
    with pytest.raises(RegistryUnreachableError, match="bytes had arrived") as caught:
        send(target, noise(8 * MB, b"never"))
    assert caught.value.exit_code == 5
    assert not holds(registry, "team/cut", descriptor_of(LAYER_GZIP, noise(8 * MB, b"never")))
    target.close()
    proxy.close()


# --- what is attached ---


def test_what_is_attached_is_listed_under_the_fallback_tag(registry: str) -> None:
    target = opened(registry, "team/attached:1")
    image = push_image(target, b"attached")
    kinds = ["application/vnd.cyclonedx+json", "application/vnd.in-toto+json"]
    made = [
        target.attach(image, artifact_type=kind, content=kind.encode(), media_type=kind)
        for kind in [*kinds, kinds[0]]
    ]
    assert made[0] == made[2]
    assert target.referrers(image) == (made[0], made[1])
    assert target.referrers(image, kinds[1]) == (made[1],)
    assert target.read_artifact(made[1]) == kinds[1].encode()
    url = f"http://{registry}/v2/team/attached/manifests/{fallback_tag(image)}"
    accept = {"Accept": "application/vnd.oci.image.index.v1+json"}
    index = urllib3.request("GET", url, headers=accept, retries=False).json()
    assert [one["artifactType"] for one in index["manifests"]] == kinds
    target.close()


# --- logins ---


def test_a_login_is_needed_and_accepted(tmp_path: Path) -> None:
    users = tmp_path / "htpasswd"
    users.write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "here", "path": str(users)}}
    with serving(tmp_path / "registry", auth=auth) as address:
        for login, words in (
            (Login(), "a login that may push to it is needed"),
            (Login("me", "wrong-word"), "may not push to it"),
        ):
            target = opened(address, "team/app:1", login)
            with pytest.raises(RegistryDeniedError, match=words) as caught:
                push_image(target)
            assert "wrong-word" not in caught.value.message + caught.value.detail
            target.close()
        target = opened(address, "team/app:1", Login("me", "pass-word"))
        pushed = push_image(target)
        target.close()
        reader = RepositoryReader.open(
            f"{address}/team/app:1", login=lambda: Login("me", "pass-word")
        )
        assert reader.manifest().digest == pushed.digest
        reader.close()


class TokenServer:
    """Gives tokens as the specification says, signed by a key that the registry trusts."""

    def __init__(self, place: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens")])
        now = datetime.now(timezone.utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.bundle = place / "tokens.pem"
        self.bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._x5c = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()
        self.asked: list[list[str]] = []
        self.lasts_s = 60
        fake = self

        class Tokens(Handler):
            def answer(self) -> None:
                query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
                body = json.dumps({"token": fake.token(query.get("scope", []))}).encode()
                self.reply(200, body)

        self.server = WebServer(Tokens)
        self.realm = f"{self.server.url}/token"

    def token(self, scopes: list[str]) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        self.asked.append(scopes)
        now = int(time.time())
        access = [
            {"type": kind, "name": name, "actions": actions.split(",")}
            for kind, name, actions in (one.split(":") for one in scopes)
        ]
        head = {"typ": "JWT", "alg": "RS256", "x5c": [self._x5c]}
        # the registry forgives a minute of a clock that is wrong
        ends = now + self.lasts_s - 60
        claims = {
            "iss": "tokens", "sub": "me", "aud": "here", "exp": ends, "nbf": now - 100,
            "iat": now - 100, "jti": str(len(self.asked)), "access": access,
        }  # fmt: skip
        parts = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
            for part in (head, claims)
        ]
        signed = self.key.sign(b".".join(parts), padding.PKCS1v15(), hashes.SHA256())
        return b".".join([*parts, base64.urlsafe_b64encode(signed).rstrip(b"=")]).decode()

    def close(self) -> None:
        self.server.close()


def plain(scopes: list[str]) -> tuple[str, ...]:
    """Scopes in one order: the registry names actions in any."""
    parts = (scope.rpartition(":") for scope in scopes)
    return tuple(sorted(f"{name}:{','.join(sorted(words.split(',')))}" for name, _, words in parts))


def test_tokens_are_fetched_for_what_is_done_and_renewed(tmp_path: Path) -> None:
    tokens = TokenServer(tmp_path)
    auth = {
        "token": {
            "realm": tokens.realm, "service": "here", "issuer": "tokens",
            "rootcertbundle": str(tokens.bundle),
        }
    }  # fmt: skip
    with serving(tmp_path / "registry", auth=auth) as address:
        base = opened(address, "team/base:1", Login("me", "pass-word"))
        blob = send(base, noise(MB))
        assert [plain(scopes) for scopes in tokens.asked] == [("repository:team/base:pull,push",)]
        app = opened(address, "team/app:1", Login("me", "pass-word"))
        assert app.mount(blob, "team/base")
        wanted = {plain(scopes) for scopes in tokens.asked[1:]}
        assert wanted == {("repository:team/app:pull,push", "repository:team/base:pull")}
        tokens.lasts_s = 2
        push_image(app)
        before = len(tokens.asked)
        time.sleep(2.5)
        push_image(app, b"later, when the token has ended")
        assert len(tokens.asked) > before
        for one in (base, app):
            one.close()
    tokens.close()


# --- the double of the unit tests ---


def exchange(address: str) -> list[object]:
    """Do what a client may do, right and wrong, and note what is answered."""
    http = urllib3.PoolManager(retries=False)
    root = f"http://{address}/v2/d/a"
    content, digest = b"x" * 1000, digest_of(b"x" * 1000)
    noted: list[object] = []

    def ask(method: str, url: str, *names: str, **more: Any) -> urllib3.BaseHTTPResponse:
        url = urllib.parse.urljoin(root, url)
        reply = http.request(method, url, **more)
        noted.append((method, reply.status, *(reply.headers.get(name) for name in names)))
        return reply

    def joined(reply: urllib3.BaseHTTPResponse, query: str) -> str:
        return f"{reply.headers['Location']}&{query}"

    ask("HEAD", f"{root}/blobs/{digest}")
    begun = ask("POST", f"{root}/blobs/uploads/", "Range", "Content-Length")
    ask("GET", begun.headers["Location"], "Range")
    sent = ask("PATCH", begun.headers["Location"], "Range", body=content[:600])
    ask("GET", sent.headers["Location"], "Range")
    sent = ask("PATCH", sent.headers["Location"], "Range", body=iter([content[600:]]), chunked=True)
    wrong = digest_of(b"wrong")
    ask("PUT", joined(sent, f"digest={digest}"), "Docker-Content-Digest")
    ask("HEAD", f"{root}/blobs/{digest}", "Content-Length", "Docker-Content-Digest")
    part = {"Range": "bytes=10-19"}
    ask("GET", f"{root}/blobs/{digest}", "Content-Range", "Content-Length", headers=part)
    ask("GET", f"{root}/blobs/{digest}", "Content-Range", headers={"Range": "bytes=990-"})
    begun = ask("POST", f"{root}/blobs/uploads/")
    ask("PUT", joined(begun, f"digest={wrong}"), body=content)
    begun = ask("POST", f"{root}/blobs/uploads/")
    ask("PUT", joined(begun, f"digest={digest}"), "Docker-Content-Digest", body=content)
    begun = ask("POST", f"{root}/blobs/uploads/")
    ask("DELETE", begun.headers["Location"])
    ask("GET", begun.headers["Location"])
    begun = ask("POST", f"{root}/blobs/uploads/")
    cut_off(begun.headers["Location"], address)
    ask("GET", begun.headers["Location"])
    ask("PATCH", begun.headers["Location"], body=content)
    mount = f"mount={digest}&from=d/a"
    ask("POST", f"http://{address}/v2/d/b/blobs/uploads/?{mount}", "Docker-Content-Digest")
    ask("POST", f"http://{address}/v2/d/b/blobs/uploads/?mount={wrong}&from=d/a", "Range")
    manifest = to_bytes({
        "schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
        "config": {"mediaType": CONFIG, "digest": digest, "size": 1000},
    })  # fmt: skip
    kind = {"Content-Type": MANIFEST}
    told = ("Docker-Content-Digest", "Content-Type")
    ask("GET", f"{root}/manifests/1")
    ask("PUT", f"{root}/manifests/1", told[0], body=manifest, headers=kind)
    ask("PUT", f"{root}/manifests/{wrong}", body=manifest, headers=kind)
    for method in ("GET", "HEAD"):
        ask(method, f"{root}/manifests/1", *told, headers={"Accept": MANIFEST})
        ask(method, f"{root}/manifests/{digest_of(manifest)}", *told, headers={"Accept": MANIFEST})
    ask("GET", f"{root}/referrers/{digest_of(manifest)}")
    http.clear()
    return noted


def cut_off(location: str, address: str) -> None:
    """Begin a chunked PATCH, and be gone in its middle."""
    host, _, port = address.partition(":")
    parts = urllib.parse.urlsplit(location)
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(
            f"PATCH {parts.path}?{parts.query} HTTP/1.1\r\nHost: {address}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n400\r\n".encode()
            + b"y" * 500
        )
        time.sleep(0.3)
    time.sleep(0.3)


def test_the_double_answers_as_the_real_one_does(registry: str) -> None:
    double = PushRegistry()
    double.forgets, double.api = True, False
    real, made_up = exchange(registry), exchange(double.address)
    double.close()
    assert len(real) > 25
    assert made_up == real


def test_a_double_that_answers_otherwise_is_found_out(registry: str) -> None:
    double = PushRegistry()
    double.forgets, double.api = False, False  # distribution 3 keeps what broke off
    made_up = exchange(double.address)
    double.close()
    assert made_up != exchange(registry)
