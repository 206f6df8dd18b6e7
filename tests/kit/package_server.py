"""A web server on 127.0.0.1 whose answers are set path by path, and a proxy before it."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.kit.web_server import Handler, WebServer, basic

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


class _Paths(Handler):
    server: Server

    def answer(self) -> None:
        with contextlib.suppress(OSError):
            self._answer()

    def _answer(self) -> None:
        server = self.server
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
            size = len(reply.body)
            body = reply.body[: size // 2] if reply.cut else reply.body
            headers = {"Content-Type": reply.kind, **reply.headers}
            self.reply(reply.status, body, headers, length=size)


class Server(WebServer):
    """Serves `replies`: path -> the answers to the first, second, ... request; the last one stays.

    `seen` are the requests: path -> their headers. `login` is required for all, where it is set;
    with `mutual` a client certificate is, too, which `chain` vouches for.
    """

    def __init__(self, *, chain: Path | None = None, mutual: bool = False) -> None:
        self.replies: dict[str, Sequence[Reply]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.login = ""
        self.over = threading.Event()
        context = None
        if chain is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(chain)
            if mutual:
                context.load_verify_locations(chain)
                context.verify_mode = ssl.CERT_REQUIRED
        super().__init__(_Paths, tls=context)

    def close(self) -> None:
        self.over.set()
        super().close()

    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]

    def reply_to(self, path: str, headers: Mapping[str, str]) -> Reply:
        """The answer to a request with these headers."""
        del headers
        replies = self.replies.get(path, [Reply(status=404)])
        return replies[min(self.paths().count(path), len(replies)) - 1]


class _Ways(Handler):
    server: Proxy

    def answer(self) -> None:
        self.server.seen.append(self.path)
        login, target = self.server.login, self.server.target
        if login and self.headers.get("Proxy-Authorization") != basic(login):
            self.send_error(407)
        elif self.command == "CONNECT":
            self.send_response(200)
            self.end_headers()
            with socket.create_connection(("127.0.0.1", target.port)) as other:
                join_sockets(self.connection, other)
        else:
            path = urlsplit(self.path).path
            target.seen.append((path, {}))
            reply = target.reply_to(path, {})
            self.reply(reply.status, reply.body, {"Content-Type": reply.kind})


class Proxy(WebServer):
    """An HTTP proxy that leads every request, also for unknown hosts, to `target`."""

    def __init__(self, target: Server, *, login: str = "") -> None:
        self.target = target
        self.login = login
        self.seen: list[str] = []
        super().__init__(_Ways)


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
