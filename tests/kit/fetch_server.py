"""A server of files on this machine that understands ranges, and misbehaves on request."""

from __future__ import annotations

import contextlib
import hashlib
import re
import ssl
import threading
from typing import Any

from images.wheels.remote_file import Wheel
from tests.kit.web_server import Handler, WebServer

TAG = '"one"'


class _Files(Handler):
    protocol_version = "HTTP/1.1"
    # head and body in one packet: else each answer waits for the other side's delayed ACK
    wbufsize = -1
    server: FetchServer

    def answer(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the asking side may be gone
            self.server._answer(self)
            self.wfile.flush()


class FetchServer(WebServer):
    """Serves `files`; each request takes the next of `faults`, and the last one again and again
    where `for_ever`. A fault is a word, with a number or a word behind it; "" is none.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.for_ever = False
        self.login = ""
        self.tag = TAG
        self.headers: dict[str, str] = {}
        self.seen: list[dict[str, str]] = []
        self.connections: set[Any] = set()
        self.sent = 0
        self.reached = threading.Event()
        self.released = threading.Event()
        self._lock = threading.Lock()
        super().__init__(_Files, tls=tls)
        self.address, self.root = self.host, self.url

    def close(self) -> None:
        self.released.set()
        super().close()

    def wheel(self, body: bytes, name: str = "torch", *, size: int | None = -1) -> Wheel:
        """Serve a wheel, and give the lock's line of it; `size` -1: the true one."""
        file = f"{name}-1.0-py3-none-any.whl"
        self.files[f"/{file}"] = body
        return Wheel(
            name=name,
            version="1.0",
            url=f"{self.root}/{file}",
            size=len(body) if size == -1 else size,
            sha256=hashlib.sha256(body).hexdigest(),
        )

    def ranges(self) -> list[str]:
        return [one["Range"] for one in self.seen]

    def _answer(self, handler: Handler) -> None:
        names = ("Range", "If-Range", "Authorization", "Host", "Accept-Encoding")
        with self._lock:
            self.seen.append(
                {"path": handler.path, **{n: handler.headers.get(n, "") for n in names}}
            )
            self.connections.add(handler.client_address)
            fault = ""
            if self.faults:
                last = self.for_ever and len(self.faults) == 1
                fault = self.faults[0] if last else self.faults.pop(0)
        self.reached.set()
        body = self.files.get(handler.path.partition("?")[0])
        if self.login and handler.headers.get("Authorization") != self.login:
            return self._send(handler, 401, b"who are you?")
        kind, _, word = fault.partition(" ")
        if self._refuse(handler, kind, word):
            return None
        if body is None:
            return self._send(handler, 404, b"not here")
        return self._serve(handler, body, kind, word)

    def _refuse(self, handler: Handler, kind: str, word: str) -> bool:
        """Answer with no file at all."""
        if kind == "status":
            self._send(handler, int(word), b"as told")
        elif kind == "later":
            self._send(handler, 503, b"", {"Retry-After": word})
        elif kind == "redirect":
            self._send(handler, 302, b"", {"Location": word or handler.path})
        elif kind == "page":
            self._send(handler, 200, b"<title>Log in</title>", {"Content-Type": "text/html"})
        elif kind == "vast":
            self._send(handler, 200, b"PK\x03\x04", length=1 << 50)
        elif kind == "hang":
            self.released.wait(60)
            handler.close_connection = True
        elif kind == "drip-head":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not self.released.wait(0.01):
                handler.wfile.write(b"y")
                handler.wfile.flush()
        elif kind == "nonsense":
            handler.wfile.write(b"\x00\x01\x02 what is this\r\n\r\n")
            handler.close_connection = True
        elif kind == "close":
            handler.close_connection = True
        else:
            return False
        return True

    def _serve(self, handler: Handler, body: bytes, kind: str, word: str) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        condition = handler.headers.get("If-Range")
        tag = '"two"' if kind == "other-tag" else self.tag
        first = int(match[1]) if match else 0
        if "whole" in {kind, word} or (condition and condition != tag):
            match, first = None, 0
        if match and first >= len(body):
            return self._send(handler, 416, b"", {"Content-Range": f"bytes */{len(body)}"})
        total = len(body)
        last = min(int(match[2]), total - 1) if match and match[2] else total - 1
        part = body[first : last + 1]
        shown = first + 1 if kind == "shifted" else first
        headers = {"ETag": tag} if tag else {}
        if match:
            said = {"no-total": "*", "other-total": total + 5}.get(kind, total)
            headers["Content-Range"] = f"bytes {shown}-{last}/{said}"
        status = 206 if match else 200
        if kind == "no-range-told":
            headers.pop("Content-Range", None)
        if kind == "wrong":
            part = bytes(byte ^ 1 for byte in part)
        if kind == "packed":
            headers["Content-Encoding"] = "gzip"
        if kind == "longer":
            part += b"x"
        if kind == "shorter":
            part = part[:-1]
        if kind in {"cut", "stall"}:
            here = part[: int(word or len(part) // 2)]
            self._send(handler, status, here, headers, length=len(part))
            if kind == "stall":
                handler.wfile.flush()
                self.released.wait(60)
            return None
        if kind in {"endless", "untold", "drip"}:
            headers |= {"Content-Length": "100000"} if kind == "drip" else {}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            handler.wfile.write(f"HTTP/1.1 {status} OK\r\nConnection: close\r\n{head}\r\n".encode())
            handler.wfile.write(part if kind != "drip" else b"")
            handler.close_connection = True
            while kind == "endless" and not self.released.is_set():
                handler.wfile.write(bytes(1 << 16))
            while kind == "drip" and not self.released.wait(0.01):
                handler.wfile.write(b"P")
                handler.wfile.flush()
            return None
        return self._send(handler, status, part, headers)

    def _send(
        self,
        handler: Handler,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        with self._lock:
            self.sent += len(body)
        handler.reply(status, body, {**self.headers, **(headers or {})}, length=length)
        if length is not None:
            handler.close_connection = True
