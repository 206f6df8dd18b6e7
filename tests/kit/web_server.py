"""HTTP servers on this machine: what those of the other files are made from."""

from __future__ import annotations

import base64
import re
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """`answer` is called for every request. Writes no log."""

    disable_nagle_algorithm = True

    def answer(self) -> None:
        raise NotImplementedError

    def _any(self) -> None:
        self.answer()

    do_CONNECT = do_DELETE = do_GET = do_HEAD = do_PATCH = do_POST = do_PUT = _any  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def reply(
        self,
        status: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        """Send a whole answer; with `length`, one that claims another size."""
        size = str(len(body) if length is None else length)
        own = {} if status == 204 else {"Content-Length": size}
        self.send_response(status)
        for name, value in {**own, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class WebServer(ThreadingHTTPServer):
    """Serves from when it is made until `close`, or the end of its `with` block. `tls` is a
    context, or a file with a certificate and its key; each client is greeted in its own thread.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        *,
        tls: ssl.SSLContext | Path | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        super().__init__(address, handler)
        if isinstance(tls, Path):
            chain, tls = tls, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(chain)
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http{'s' if tls else ''}://{self.host}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up or distrust the certificate."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def part_of(body: bytes, wanted: str | None) -> tuple[int, bytes, dict[str, str]]:
    """Status, bytes and headers of an answer with the wanted part ("bytes=0-3"), or with all."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
    if not found:
        return 200, body, {}
    start = int(found[1])
    part = body[start : int(found[2]) + 1 if found[2] else None]
    return 206, part, {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(body)}"}
