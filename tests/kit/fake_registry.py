"""A registry on this machine that misbehaves on request."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from images.oci import model

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


def packed(document: object) -> bytes:
    return json.dumps(document).encode()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


CONFIG = packed({"os": "linux", "architecture": "amd64"})
MANIFEST = packed({
    "schemaVersion": 2,
    "mediaType": model.MANIFEST,
    "config": {"digest": digest_of(CONFIG)},
    "layers": [],
})  # fmt: skip
INDEX = packed({
    "schemaVersion": 2,
    "mediaType": model.INDEX,
    "manifests": [
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {"digest": DIGEST, "platform": {"os": "unknown", "architecture": "unknown"}},
    ],
})  # fmt: skip


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
