"""A company's network: an index and git repositories with logins, behind a proxy with another one.

Their names have no address but the proxy's, and their certificates are by the company's authority.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

from tests import need
from tests.kit.package_server import basic, join_sockets

MIRROR = "mirror.corp.example"
PACKAGES = "packages.corp.example"
CODE = "code.corp.example"
USER = "ann"
_MOST_BODY = 1 << 20


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up, or distrust the certificate, are no news."""


@dataclass
class LoginProxy:
    """A proxy that demands a login. `hosts`: name -> port on this machine of what it stands for;
    all other names are the network's.
    """

    hosts: dict[str, int]
    password: str
    reached: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}"

    def place(self, host: str, port: int) -> tuple[str, int]:
        self.reached.add(host)
        return ("127.0.0.1", self.hosts[host]) if host in self.hosts else (host, port)

    @contextlib.contextmanager
    def serving(self) -> Iterator[LoginProxy]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # git first asks how to log in, and then asks again

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_CONNECT(self) -> None:
                if not self._may():
                    return
                host, _, port = self.path.rpartition(":")
                with socket.create_connection(proxy.place(host, int(port)), 20) as other:
                    self.send_response(200)
                    self.end_headers()
                    join_sockets(self.connection, other)
                self.close_connection = True

            def do_GET(self) -> None:  # Debian's mirrors speak http
                if not self._may():
                    return
                parts = urlsplit(self.path)
                place = proxy.place(parts.hostname or "", parts.port or 80)
                with socket.create_connection(place, 20) as other:
                    head = f"{self.command} {parts.path or '/'} HTTP/1.1\r\n"
                    kept = {k: v for k, v in self.headers.items() if "proxy" not in k.lower()}
                    kept["Connection"] = "close"
                    head += "".join(f"{name}: {value}\r\n" for name, value in kept.items())
                    other.sendall(f"{head}\r\n".encode())
                    join_sockets(self.connection, other)
                self.close_connection = True

            do_HEAD = do_GET  # noqa: N815  the standard library's name

            def _may(self) -> bool:
                given = self.headers.get("Proxy-Authorization")
                if given == basic(f"{USER}:{proxy.password}"):
                    return True
                proxy.refused.add(self.path)
                self.send_response(407)
                self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return False

        with _serving(_Quiet(("127.0.0.1", 0), Handler)) as self.port:
            yield self


@contextlib.contextmanager
def git_over_https(repositories: Path, chain: Path, password: str) -> Iterator[int]:
    """git's own server for what is in a directory, with a login; its port."""
    program = Path(_output("git", "--exec-path"), "git-http-backend")
    if not program.is_file():
        need.lacking(f"{program} is missing", "apt-get install git")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            if self.headers.get("Authorization") != basic(f"{USER}:{password}"):
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="code"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            length = min(int(self.headers.get("Content-Length") or 0), _MOST_BODY)
            variables = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(repositories),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(length),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_USER": USER,
            }
            done = subprocess.run(
                [program],
                env=variables,
                input=self.rfile.read(length),
                capture_output=True,
                check=True,
                timeout=60,
            )
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            rows = [line.split(": ", 1) for line in head.decode().splitlines()]
            status = next((value for name, value in rows if name == "Status"), "200")
            self.send_response(int(status.split()[0]))
            for name, value in rows:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  the standard library's name

    server = _Quiet(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    with _serving(server) as port:
        yield port


@contextlib.contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_repository(place: Path, files: Mapping[str, str]) -> str:
    """A bare repository with one commit of these files; the commit."""
    work = place.with_suffix(".work")
    for name, text in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    own |= dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "ann")
    own |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "ann@corp.example")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=work, env=own, check=True, timeout=60)
    subprocess.run(["git", "clone", "-q", "--bare", work, place], env=own, check=True, timeout=60)
    return _output("git", "-C", str(place), "rev-parse", "HEAD")


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()
