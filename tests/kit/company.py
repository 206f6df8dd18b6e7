"""A company's network: an index and git repositories with logins, behind a proxy with another one.

Their names have no address but the proxy's, and their certificates are by the company's authority.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from tests import need
from tests.kit.package_server import join_sockets
from tests.kit.programs import run_program
from tests.kit.web_server import Handler, WebServer, basic

MIRROR = "mirror.corp.example"
PACKAGES = "packages.corp.example"
CODE = "code.corp.example"
USER = "ann"
_MOST_BODY = 1 << 20


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

        class Ways(Handler):
            protocol_version = "HTTP/1.1"  # git first asks how to log in, and then asks again

            def answer(self) -> None:
                if not self._may():
                    return
                leads = self.command == "CONNECT"  # Debian's mirrors speak http
                parts = urlsplit(f"//{self.path}" if leads else self.path)
                place = proxy.place(parts.hostname or "", parts.port or 80)
                with socket.create_connection(place, 20) as other:
                    if leads:
                        self.send_response(200)
                        self.end_headers()
                    else:
                        head = f"{self.command} {parts.path or '/'} HTTP/1.1\r\n"
                        kept = {k: v for k, v in self.headers.items() if "proxy" not in k.lower()}
                        kept["Connection"] = "close"
                        head += "".join(f"{name}: {value}\r\n" for name, value in kept.items())
                        other.sendall(f"{head}\r\n".encode())
                    join_sockets(self.connection, other)
                self.close_connection = True

            def _may(self) -> bool:
                given = self.headers.get("Proxy-Authorization")
                if given == basic(f"{USER}:{proxy.password}"):
                    return True
                proxy.refused.add(self.path)
                self.reply(407, b"", {"Proxy-Authenticate": 'Basic realm="proxy"'})
                return False

        with WebServer(Ways) as server:
            self.port = server.port
            yield self


@contextlib.contextmanager
def git_over_https(repositories: Path, chain: Path, password: str) -> Iterator[int]:
    """git's own server for what is in a directory, with a login; its port."""
    program = Path(_output("git", "--exec-path"), "git-http-backend")
    if not program.is_file():
        need.lacking(f"{program} is missing", "apt-get install git")

    class Repositories(Handler):
        def answer(self) -> None:
            if self.headers.get("Authorization") != basic(f"{USER}:{password}"):
                return self.reply(401, b"", {"WWW-Authenticate": 'Basic realm="code"'})
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
            return self.reply(int(status.split()[0]), body, dict(rows))

    with WebServer(Repositories, tls=chain) as server:
        yield server.port


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
    done = run_program(argv, check=True)
    return done.stdout.strip()
