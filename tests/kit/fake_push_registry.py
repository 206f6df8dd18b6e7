"""A registry on this machine that takes uploads, by the specification, and fails where it is told.

`tests/engines/test_push_real.py` holds the same exchanges against Debian's docker-registry: what
both can do, this one answers alike. Flavours: `forgets` (an upload that broke off is gone, as in
distribution 2.8; else it can be gone on with, as in 3), `api` (it lists referrers itself).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import ssl
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit.web_server import Handler, WebServer, basic, part_of

INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Rule:
    """What is done instead of an answer, to the next `times` requests that match."""

    method: str
    path: str
    times: int = 1
    skip: int = 0
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    """Take as many bytes of the body, then break the connection."""
    cut_answer: bool = False
    """Do what was asked, and break the connection instead of saying so."""
    hang: bool = False
    drip: bool = False
    stall_after: int | None = None
    """Take as many bytes of the body, then neither read nor answer."""


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body_bytes: int = 0
    connection: int = 0

    @property
    def authorization(self) -> str:
        return self.headers.get("authorization", "")


@dataclass
class Upload:
    repository: str
    data: bytearray = field(default_factory=bytearray)


class _CutError(Exception):
    pass


class _Exchange(Handler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: PushRegistry

    def answer(self) -> None:
        try:
            self.server.answer(self)
        except (OSError, _CutError):
            self.server._break(self)


class PushRegistry(WebServer):
    """The whole of it; every attribute may be changed while it runs."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.uploads: dict[str, Upload] = {}
        self.rules: list[Rule] = []
        self.seen: list[Seen] = []
        self.forgets = False
        self.api = True
        self.page = 0
        self.max_body = 0
        self.takes_at_most = 0
        self.chunk_min = 0
        self.lies = ""
        self.absolute = False
        self.storage = ""
        self.realm = ""
        self.token_uses = 0
        self.grants: Callable[[str], bool] = lambda _scope: True
        self.users = {"me": "s3cret-word"}
        self.tokens: dict[str, tuple[list[str], int]] = {}
        self.token_requests: list[tuple[str, dict[str, list[str]]]] = []
        self.released = threading.Event()
        self.lock = threading.Lock()
        super().__init__(_Exchange, tls=tls)
        self.address = self.host

    def close(self) -> None:
        self.released.set()
        super().close()

    def rule(self, method: str, path: str, **how: Any) -> None:
        self.rules.append(Rule(method=method, path=path, **how))

    def count(self, method: str, path: str = "") -> int:
        return sum(one.method == method and path in one.path for one in self.seen)

    # --- the exchange ---

    def answer(self, handler: Handler) -> None:
        parts = urllib.parse.urlsplit(handler.path)
        seen = Seen(
            handler.command,
            parts.path,
            dict(urllib.parse.parse_qsl(parts.query)),
            {name.lower(): value for name, value in handler.headers.items()},
            connection=handler.client_address[1],
        )
        self.seen.append(seen)
        rule = self._rule(seen)
        if rule is not None and (rule.hang or rule.drip):
            return self._never(handler, drip=rule.drip)
        if rule is not None and rule.status:
            self._drain(handler, seen)
            return self.send(handler, rule.status, rule.body, rule.headers)
        body = self._body(handler, seen, rule)
        if parts.path == "/token":
            return self._token(handler, seen, b"".join(body))
        if parts.path.startswith("/storage/"):
            return self._storage(handler, seen)
        refused = self._unauthorized(seen)
        if refused:
            self._drain_rest(body)
            challenge = {"WWW-Authenticate": refused}
            return self.send(handler, 401, errors("UNAUTHORIZED", "log in"), challenge)
        try:
            status, headers, content = self.route(seen, body)
        except _CutError:
            return self._break(handler)
        if rule is not None and rule.cut_answer:
            return self._break(handler)
        if status == 413:
            handler.close_connection = True
        return self.send(handler, status, content, headers)

    def route(self, seen: Seen, body: Iterator[bytes]) -> tuple[int, dict[str, str], bytes]:
        found = re.fullmatch(
            r"/v2/(.+)/(blobs/uploads/|blobs/uploads|blobs|manifests|referrers)(?:/?([^/]*))",
            seen.path,
        )
        if found is None:
            self._drain_rest(body)
            return (200, {}, b"{}") if seen.path == "/v2/" else not_found("NOT_FOUND")
        repository, kind, name = found.groups()
        if kind.startswith("blobs/uploads"):
            if seen.method == "POST":
                self._drain_rest(body)
                return self._begin(seen, repository)
            return self._upload(seen, name, body)
        content = b"".join(body)
        if kind == "blobs":
            return self._blob(seen, repository, name)
        if kind == "referrers":
            return self._referrers(seen, repository, name)
        return self._manifest(seen, repository, name, content)

    def _begin(self, seen: Seen, repository: str) -> tuple[int, dict[str, str], bytes]:
        mount, source = seen.query.get("mount"), seen.query.get("from")
        if mount and source and (source, mount) in self.blobs:
            self.blobs[repository, mount] = self.blobs[source, mount]
            return (
                201,
                {"Docker-Content-Digest": mount, "Location": f"/v2/{repository}/blobs/{mount}"},
                b"",
            )
        with self.lock:
            name = f"u{len(self.seen)}-{len(self.uploads)}"
            self.uploads[name] = Upload(repository)
        headers = self._where(name)
        if self.chunk_min:
            headers["OCI-Chunk-Min-Length"] = str(self.chunk_min)
        return 202, headers, b""

    def _where(self, name: str) -> dict[str, str]:
        upload = self.uploads[name]
        path = f"/v2/{upload.repository}/blobs/uploads/{name}?_state={len(upload.data)}"
        return {
            "Location": f"http://{self.address}{path}" if self.absolute else path,
            "Range": f"0-{max(0, len(upload.data) - 1)}",
            "Docker-Upload-UUID": name,
        }

    def _upload(
        self, seen: Seen, name: str, body: Iterator[bytes]
    ) -> tuple[int, dict[str, str], bytes]:
        upload = self.uploads.get(name)
        stale = upload is not None and seen.query.get("_state") != str(len(upload.data))
        if upload is not None and stale and self.forgets:
            del self.uploads[name]
            upload = None
        if upload is None:
            self._drain_rest(body)
            return not_found("BLOB_UPLOAD_UNKNOWN")
        if seen.method == "GET":
            return 204, self._where(name), b""
        if seen.method == "DELETE":
            del self.uploads[name]
            return 204, {}, b""
        content_range = seen.headers.get("content-range", "")
        if stale or (content_range and content_range.split("-")[0] != str(len(upload.data))):
            self._drain_rest(body)
            return 416, self._where(name), b""
        refused = self._take(upload, seen, body)
        if refused:
            return refused
        if seen.method == "PATCH":
            return 202, self._where(name), b""
        digest = seen.query.get("digest", "")
        if digest_of(bytes(upload.data)) != digest:
            return (
                400,
                {},
                errors("DIGEST_INVALID", "provided digest did not match uploaded content"),
            )
        del self.uploads[name]
        self.blobs[upload.repository, digest] = bytes(upload.data)
        told = {"Docker-Content-Digest": self.lies or digest} if self.lies != "silent" else {}
        return 201, {"Location": f"/v2/{upload.repository}/blobs/{digest}", **told}, b""

    def _take(
        self, upload: Upload, seen: Seen, body: Iterator[bytes]
    ) -> tuple[int, dict[str, str], bytes] | None:
        started = len(upload.data)
        for piece in body:
            if self.max_body and len(upload.data) - started + len(piece) > self.max_body:
                return 413, {"Connection": "close"}, b"<html>413 Request Entity Too Large</html>"
            upload.data += piece
        if self.takes_at_most and len(upload.data) - started > self.takes_at_most:
            del upload.data[started + self.takes_at_most :]
        assert seen.body_bytes >= 0
        return None

    def _blob(self, seen: Seen, repository: str, digest: str) -> tuple[int, dict[str, str], bytes]:
        content = self.blobs.get((repository, digest))
        if content is None:
            return not_found("BLOB_UNKNOWN")
        if self.storage:
            return 307, {"Location": f"{self.storage}/storage/{repository}/{digest}?sig=1"}, b""
        return ranged(seen, content, {"Docker-Content-Digest": digest})

    def _storage(self, handler: Handler, seen: Seen) -> None:
        _, _, rest = seen.path.partition("/storage/")
        repository, _, digest = rest.rpartition("/")
        content = self.blobs[repository, digest]
        status, headers, body = ranged(seen, content, {})
        self.send(handler, status, body, headers)

    def _manifest(
        self, seen: Seen, repository: str, name: str, content: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if seen.method == "PUT":
            digest = digest_of(content)
            if name.startswith("sha256:") and name != digest:
                return 400, {}, errors("DIGEST_INVALID", "it has another")
            kind = seen.headers.get("content-type", "")
            self.manifests[repository, name] = self.manifests[repository, digest] = (content, kind)
            subject = json.loads(content).get("subject")
            told = {"OCI-Subject": subject["digest"]} if subject and self.api else {}
            announced = {"Docker-Content-Digest": self.lies or digest}
            if self.lies == "silent":
                announced = {}
            return 201, {**announced, **told}, b""
        found = self.manifests.get((repository, name))
        if found is None:
            return not_found("MANIFEST_UNKNOWN")
        digest = digest_of(found[0])
        return 200, {"Content-Type": found[1], "Docker-Content-Digest": digest}, found[0]

    def _referrers(
        self, seen: Seen, repository: str, subject: str
    ) -> tuple[int, dict[str, str], bytes]:
        if not self.api:
            return 404, {"Content-Type": "text/plain; charset=utf-8"}, b"404 page not found\n"
        entries: dict[str, dict[str, Any]] = {}
        for (where, _), (content, kind) in list(self.manifests.items()):
            document = json.loads(content)
            if where == repository and (document.get("subject") or {}).get("digest") == subject:
                entries[digest_of(content)] = {
                    "mediaType": kind,
                    "digest": digest_of(content),
                    "size": len(content),
                    "artifactType": document.get("artifactType"),
                    "annotations": document.get("annotations") or {},
                }
        listed = list(entries.values())
        headers = {"Content-Type": INDEX}
        if self.page:
            first = int(seen.query.get("first", "0"))
            if first + self.page < len(listed):
                headers["Link"] = f'<{seen.path}?first={first + self.page}>; rel="next"'
            listed = listed[first : first + self.page]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}
        return 200, headers, json.dumps(index).encode()

    # --- logins ---

    def _unauthorized(self, seen: Seen) -> str:
        if not self.realm:
            return ""
        found = re.match(r"/v2/(.+?)/(?:blobs|manifests|referrers)", seen.path)
        repository = found[1] if found else ""
        actions = ["pull"] if seen.method in {"GET", "HEAD"} else ["pull", "push"]
        if "/uploads/" in seen.path:
            actions = ["pull", "push"]
        need = f"repository:{repository}:{','.join(actions)}"
        if self.realm == "basic":
            wanted = {basic(f"{name}:{word}") for name, word in self.users.items()}
            return "" if seen.authorization in wanted else 'Basic realm="here"'
        token = seen.authorization.removeprefix("Bearer ")
        scopes, uses = self.tokens.get(token, ([], 0))
        has = {
            f"{s.rpartition(':')[0]}:{a}" for s in scopes for a in s.rpartition(":")[2].split(",")
        }
        wants = {f"repository:{repository}:{action}" for action in actions}
        if seen.query.get("from"):
            wants.add(f"repository:{seen.query['from']}:pull")
        if wants <= has and (not self.token_uses or uses < self.token_uses):
            self.tokens[token] = (scopes, uses + 1)
            return ""
        return f'Bearer realm="{self.realm}",service="here",scope="{need}"'

    def _token(self, handler: Handler, seen: Seen, body: bytes) -> None:
        fields = urllib.parse.parse_qs(
            f"{urllib.parse.urlsplit(handler.path).query}&{body.decode()}"
        )
        self.token_requests.append((seen.authorization, fields))
        if seen.authorization.startswith("Basic "):
            name, _, word = base64.b64decode(seen.authorization[6:]).decode().partition(":")
            if self.users.get(name) != word:
                return self.send(handler, 401, errors("UNAUTHORIZED", f"{word} is wrong"), {})
        wanted = [one for text in fields.get("scope", []) for one in text.split(" ")]
        token = f"token-{len(self.token_requests)}"
        self.tokens[token] = ([one for one in wanted if self.grants(one)], 0)
        document = {"token": token, "expires_in": 300}
        return self.send(handler, 200, json.dumps(document).encode(), {})

    # --- the wire ---

    def _rule(self, seen: Seen) -> Rule | None:
        with self.lock:
            for rule in self.rules:
                if rule.method in {seen.method, "*"} and re.search(rule.path, seen.path):
                    if rule.skip:
                        rule.skip -= 1
                        continue
                    rule.times -= 1
                    if rule.times <= 0:
                        self.rules.remove(rule)
                    return rule
        return None

    def _body(self, handler: Handler, seen: Seen, rule: Rule | None) -> Iterator[bytes]:
        left = None if rule is None else rule.cut_after
        stall = None if rule is None else rule.stall_after
        for piece in read_body(handler):
            part = piece if left is None else piece[:left]
            seen.body_bytes += len(part)
            yield part
            if left is not None:
                left -= len(part)
                if left <= 0:
                    raise _CutError
            if stall is not None and seen.body_bytes >= stall:
                self.released.wait(30)
                raise _CutError

    def _drain(self, handler: Handler, seen: Seen) -> None:
        for piece in read_body(handler):
            seen.body_bytes += len(piece)

    @staticmethod
    def _drain_rest(body: Iterator[bytes]) -> None:
        for _ in body:
            pass

    def _never(self, handler: Handler, *, drip: bool) -> None:
        handler.close_connection = True
        if drip:
            handler.wfile.write(b"HTTP/1.1 202 Accepted\r\nX-Drip: ")
        while not self.released.wait(0.02):
            if drip:
                handler.wfile.write(b"x")

    @staticmethod
    def _break(handler: Handler) -> None:
        """Break a connection as a crash does, by a reset."""
        handler.close_connection = True
        linger = struct.pack("ii", 1, 0)
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        handler.connection.close()

    def send(self, handler: Handler, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        handler.reply(status, body, headers)


def read_body(handler: Handler) -> Iterator[bytes]:
    """Read a request's body by its framing, piece by piece, as it arrives."""
    if handler.headers.get("Transfer-Encoding", "").lower() == "chunked":
        while size := int(handler.rfile.readline().strip() or b"0", 16):
            yield from read_exactly(handler, size)
            handler.rfile.readline()
        handler.rfile.readline()
    else:
        yield from read_exactly(handler, int(handler.headers.get("Content-Length") or 0))


def read_exactly(handler: Handler, size: int) -> Iterator[bytes]:
    while size:
        piece = handler.rfile.read1(min(size, 1 << 16))
        if not piece:
            raise _CutError
        size -= len(piece)
        yield piece


def ranged(
    seen: Seen, content: bytes, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """Answer with a part where one is asked for."""
    status, part, more = part_of(content, seen.headers.get("range"))
    return status, {**headers, **more}, part


def errors(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


def not_found(code: str) -> tuple[int, dict[str, str], bytes]:
    return 404, {}, errors(code, f"{code.lower().replace('_', ' ')}")
