"""A web server on 127.0.0.1 whose answers are set path by path, and a proxy before it."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

JSON = "application/vnd.pypi.simple.v1+json"
HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer. `cut` sends half of the body, `hang` nothing, `garbage` no HTTP."""

    body: bytes = b""
    kind: str = "application/octet-stream"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False
    garbage: bool = False


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def html_page(*links: str, base: str = "") -> Reply:
    """An index page as PEP 503 has it."""
    anchors = "".join(f'<a href="{link}">file</a><br>\n' for link in links)
    head = f'<base href="{base}">' if base else ""
    text = f"<!DOCTYPE html><html><head>{head}</head><body>{anchors}</body></html>"
    return Reply(body=text.encode(), kind=HTML)


def json_page(*links: str) -> Reply:
    """An index page as PEP 691 has it."""
    files = [{"filename": link.rpartition("/")[2], "url": link, "hashes": {}} for link in links]
    body = json.dumps({"meta": {"api-version": "1.0"}, "name": "pip", "files": files})
    return Reply(body=body.encode(), kind=JSON)


class Server:
    """Serves `replies`: path -> the answers to the first, second, ... request; the last one stays.

    `seen` are the requests: path -> their headers. `login` is required for all, where it is set;
    with `mutual` a client certificate is, too, which `chain` vouches for.
    """

    def __init__(self, *, chain: Path | None = None, mutual: bool = False) -> None:
        self.replies: dict[str, Sequence[Reply]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.login = ""
        self.over = threading.Event()
        self.server = _Http(("127.0.0.1", 0), _handler(self))
        self.port = self.server.server_address[1]
        if chain is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(chain)
            if mutual:
                context.load_verify_locations(chain)
                context.verify_mode = ssl.CERT_REQUIRED
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http{'s' if chain else ''}://{self.host}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]

    def reply_to(self, path: str, headers: Mapping[str, str]) -> Reply:
        """The answer to a request with these headers."""
        del headers
        replies = self.replies.get(path, [Reply(status=404)])
        return replies[min(self.paths().count(path), len(replies)) - 1]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up or distrust the certificate."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                self._answer()

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.seen.append((self.path, headers))
            reply = server.reply_to(self.path, headers)
            if server.login and headers.get("authorization") != basic(server.login):
                reply = Reply(status=401, headers={"WWW-Authenticate": "Basic"})
            if reply.hang:
                server.over.wait(60)
            elif reply.garbage:
                self.wfile.write(b"\x00\x01 what is this\r\n\r\n")
            else:
                self.send_response(reply.status)
                headers = {"Content-Type": reply.kind, "Content-Length": str(len(reply.body))}
                for name, value in {**headers, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body[: len(reply.body) // 2] if reply.cut else reply.body)

    return Handler


class Proxy:
    """An HTTP proxy that leads every request, also for unknown hosts, to `target`."""

    def __init__(self, target: Server, *, login: str = "") -> None:
        self.target = target
        self.login = login
        self.seen: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                proxy.seen.append(self.path)
                if self._may():
                    path = urlsplit(self.path).path
                    proxy.target.seen.append((path, {}))
                    reply = proxy.target.reply_to(path, {})
                    self.send_response(reply.status)
                    self.send_header("Content-Type", reply.kind)
                    self.end_headers()
                    self.wfile.write(reply.body)

            def do_CONNECT(self) -> None:
                proxy.seen.append(self.path)
                if self._may():
                    self.send_response(200)
                    self.end_headers()
                    with socket.create_connection(("127.0.0.1", proxy.target.port)) as other:
                        join_sockets(self.connection, other)

            def _may(self) -> bool:
                given = self.headers.get("Proxy-Authorization")
                if proxy.login and given != basic(proxy.login):
                    self.send_error(407)
                    return False
                return True

        self.server = _Http(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def join_sockets(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until one side has ended, and then what the other had sent by then."""
    ends = {one: other, other: one}
    limit_s = 30.0
    while ready := select.select(list(ends), [], [], limit_s)[0]:
        for side in ready:
            try:
                data = side.recv(1 << 16)
                ends[side].sendall(data)
            except OSError:
                data = b""
            if not data:
                ends.pop(side)
                limit_s = 0


@contextlib.contextmanager
def serving(*, chain: Path | None = None, mutual: bool = False) -> Iterator[Server]:
    server = Server(chain=chain, mutual=mutual)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def proxying(target: Server, *, login: str = "") -> Iterator[Proxy]:
    proxy = Proxy(target, login=login)
    try:
        yield proxy
    finally:
        proxy.close()
