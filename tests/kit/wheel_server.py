"""A server of one wheel on this machine, that misbehaves on request."""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = "torch-2.0.1+cu117-cp311-cp311-manylinux1_x86_64.whl"


class WheelServer:
    """Serves `body` under any path; `mode` names a fault, for the requests from `after` on."""

    def __init__(self, body: bytes, *, tls: ssl.SSLContext | None = None) -> None:
        self.body = body
        self.mode = ""
        self.after = 0
        self.times = 1 << 30
        self.ranges = True
        self.tag = '"one"'
        self.login = ""
        self.seen: list[tuple[str, str, str]] = []
        self.sent = 0
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                with contextlib.suppress(OSError):  # the asking side may be gone
                    server.answer(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                """Say nothing of those who hang up, or distrust the certificate."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://{self.address}/{NAME.replace('+', '%2B')}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        self.sent += len(body)
        handler.wfile.write(body)
        if length is not None:
            handler.close_connection = True

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range", "")
        self.seen.append((handler.path, asked, handler.headers.get("Authorization", "")))
        if self.login and handler.headers.get("Authorization") != self.login:
            return self.send(handler, 401)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        first, last = (int(match[1]), int(match[2])) if match else (0, 0)
        last = min(last, len(self.body) - 1)
        part = self.body[first : last + 1]
        total = len(self.body)
        if self.mode and len(self.seen) > self.after and self.times > 0:
            self.times -= 1
            return self.misbehave(handler, first, last, part)
        if not self.ranges:
            return self.send(handler, 200, self.body)
        return self.send(handler, 206, part, self.head(first, last, total))

    def head(self, first: int, last: int, total: int) -> dict[str, str]:
        return {"Content-Range": f"bytes {first}-{last}/{total}", "ETag": self.tag}

    def misbehave(
        self, handler: BaseHTTPRequestHandler, first: int, last: int, part: bytes
    ) -> None:
        total = len(self.body)
        good = self.head(first, last, total)
        mode, _, word = self.mode.partition(" ")
        if mode == "status":
            return self.send(handler, int(word), b"as told")
        if mode == "hang":
            self.released.wait(60)
            handler.close_connection = True
            return None
        if mode == "drip":
            handler.wfile.write(b"HTTP/1.1 206 Partial\r\nContent-Length: 100000\r\n")
            handler.wfile.write(f"Content-Range: {good['Content-Range']}\r\n\r\n".encode())
            while not self.released.wait(0.01):
                handler.wfile.write(b"P")
            return None
        if mode == "drip-head":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not self.released.wait(0.01):
                handler.wfile.write(b"y")
            return None
        if mode == "cut":
            half = part[: len(part) // 2]
            return self.send(handler, 206, half, good, length=len(part))
        if mode == "short":  # less than asked for, and no word of it
            return self.send(handler, 206, part[:-1], good)
        if mode == "long":
            return self.send(handler, 206, part + b"x", good)
        if mode == "shifted":
            return self.send(handler, 206, part, self.head(first + 1, last + 1, total))
        if mode == "no-range":
            return self.send(handler, 206, part)
        if mode == "no-total":
            return self.send(handler, 206, part, {"Content-Range": f"bytes {first}-{last}/*"})
        if mode == "other-total":
            return self.send(handler, 206, part, self.head(first, last, total + 5))
        if mode == "other-tag":
            return self.send(handler, 206, part, {**good, "ETag": '"two"'})
        if mode == "whole":
            return self.send(handler, 200, self.body)
        if mode == "vast":
            return self.send(handler, 200, b"PK\x03\x04", length=1 << 50)
        if mode == "endless":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + self.body)
            while not self.released.is_set():
                handler.wfile.write(bytes(1 << 16))
            handler.close_connection = True
            return None
        if mode == "page":
            return self.send(handler, 200, b"<!DOCTYPE html><title>Log in</title>")
        if mode == "packed":
            return self.send(handler, 206, part, {**good, "Content-Encoding": "gzip"})
        if mode == "redirect":
            return self.send(handler, 302, headers={"Location": word})
        if mode == "loop":
            return self.send(handler, 302, headers={"Location": handler.path})
        if mode == "nonsense":
            handler.wfile.write(b"\x00\x01\x02 what is this\r\n\r\n")
            handler.close_connection = True
            return None
        if mode == "close":
            handler.close_connection = True
            return None
        raise AssertionError(self.mode)
