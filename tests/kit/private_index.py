"""A company's package index: TLS by its own authority, a login, and wheels made for the test."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import select
import socket
import subprocess
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from tests import need
from tests.kit.web_server import Handler, WebServer, basic

USER = "ann"
SIGNATURE = "canary-in-the-signature-7c15"
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True)
class Authority:
    """A certificate authority and a server's certificate by it, for one address."""

    address: str
    bundle: Path
    chain: Path


def make_authority(place: Path, comment: str, *names: str) -> Authority:
    """Make both; `comment` is in the bundle, as such files often say whose they are. `names`
    of hosts are in the certificate beside this machine's addresses.
    """
    openssl, address = need.program("openssl"), own_address()
    known = ",".join((f"IP:{address}", "IP:127.0.0.1", *(f"DNS:{name}" for name in names)))

    def run(*args: str) -> None:
        subprocess.run([openssl, *args], cwd=place, check=True, capture_output=True, timeout=60)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    run(*new, "-x509", "-subj", "/CN=Test CA", "-addext", "keyUsage=critical,keyCertSign",
        "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    run(*new, "-x509", "-subj", "/CN=index", "-addext", f"subjectAltName={known}",
        "-addext", "basicConstraints=critical,CA:FALSE", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-keyout", "server.key", "-out", "server.pem")  # fmt: skip
    bundle, chain = place / "bundle.pem", place / "chain.pem"
    bundle.write_text(f"# {comment}\n{(place / 'ca.pem').read_text()}")
    chain.write_text((place / "server.pem").read_text() + (place / "server.key").read_text())
    return Authority(address, bundle, chain)


def own_address() -> str:
    """An address of this machine that a build reaches from either network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # nothing is sent
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
    return address


@dataclass(frozen=True)
class Wheel:
    """A wheel; `claims` is the size that the index tells, where that is not its true one."""

    name: str
    data: bytes
    metadata: bytes = b""
    claims: int | None = None

    @property
    def project(self) -> str:
        return self.name.partition("-")[0].replace("_", "-")


def _hash_of(data: bytes) -> str:
    """As RECORD has it: unpadded base64 for addresses."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def make_wheel(
    name: str, files: Mapping[str, bytes], *, claims: int | None = None, zeros: int = 0
) -> Wheel:
    """A wheel from its file name and its files; `zeros` bytes more, which take no space in it."""
    project, version, *_, tags = name.removesuffix(".whl").split("-", 2)
    info = f"{project}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode()
    pure = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tags}\n"
    parts = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": pure.encode()}
    if zeros:
        parts[f"{project}/zeros.bin"] = bytes(zeros)
    rows = [f"{path},{_hash_of(data)},{len(data)}\n" for path, data in parts.items()]
    parts[f"{info}/RECORD"] = "".join((*rows, f"{info}/RECORD,,\n")).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, data in parts.items():
            archive.writestr(path, data)
    return Wheel(name, buffer.getvalue(), metadata, claims)


@dataclass
class Index:
    """A running index. A wheel named in `held` is given by half and then kept waiting for."""

    address: str
    wheels: dict[str, Wheel]
    password: str
    held: str = ""
    port: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    logins: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"https://{USER}:{quote(self.password, safe='')}@{self.address}:{self.port}/simple/"


class _Handler(Handler):
    server: _Server
    timeout = 20

    def answer(self) -> None:
        index, path = self.server.index, unquote(self.path.partition("?")[0])
        if path.startswith("/signed/"):  # as in a bucket: no login, and a signature in the query
            signed = index.wheels.get(path.removeprefix("/signed/"))
            may = signed is not None and self.path.endswith(f"?signature={SIGNATURE}")
            data = signed.data if signed is not None and may else b""
            self._send(200 if may else 403, data, "application/octet-stream")
        elif not self._may():
            self._send(401)
        elif path.startswith("/simple/"):
            project = path.removeprefix("/simple/").strip("/")
            found = [w for w in index.wheels.values() if w.project == project]
            self._send(200 if found else 404, _page(project, found) if found else b"", _JSON)
        elif (wheel := index.wheels.get(path.removeprefix("/files/"))) is not None:
            self._wheel(wheel)
        elif (wheel := index.wheels.get(path[len("/files/") : -len(".metadata")])) is not None:
            self._send(200, wheel.metadata)
        else:
            self._send(404)

    def _may(self) -> bool:
        if not self.server.index.password:  # everybody's
            return True
        login = basic(f"{USER}:{self.server.index.password}")
        given = self.headers.get("Authorization") == login
        if given:
            agent = self.headers.get("User-Agent", "").partition("/")[0]
            self.server.index.logins.add(agent)
        return given

    def _wheel(self, wheel: Wheel) -> None:
        index = self.server.index
        if self.command == "HEAD" or wheel.name != index.held:
            self._send(200, wheel.data, "application/octet-stream")
            return
        self.reply(200, wheel.data[: len(wheel.data) // 2], length=len(wheel.data))
        index.reached.set()
        while not index.over.is_set():
            if select.select([self.connection], [], [], 0.1)[0]:
                break
        index.left.set()

    def _send(self, status: int, data: bytes = b"", kind: str = "text/plain") -> None:
        challenge = {"WWW-Authenticate": 'Basic realm="index"'} if status == 401 else {}
        self.reply(status, data, {"Content-Type": kind, **challenge})


class _Server(WebServer):
    block_on_close = True
    daemon_threads = False

    def __init__(self, index: Index, chain: Path) -> None:
        self.index = index
        super().__init__(_Handler, tls=chain, address=("", 0))

    def close(self) -> None:
        self.index.over.set()
        super().close()


def _page(project: str, wheels: list[Wheel]) -> bytes:
    files = [
        {
            "filename": wheel.name,
            "url": f"/files/{quote(wheel.name)}",
            "hashes": {"sha256": hashlib.sha256(wheel.data).hexdigest()},
            "size": wheel.claims or len(wheel.data),
            "core-metadata": {"sha256": hashlib.sha256(wheel.metadata).hexdigest()}
            if wheel.metadata
            else False,
        }
        for wheel in wheels
    ]
    versions = sorted({wheel.name.split("-")[1] for wheel in wheels})
    page = {"meta": {"api-version": "1.1"}, "name": project, "files": files, "versions": versions}
    return json.dumps(page).encode()


@contextmanager
def serve(authority: Authority, *wheels: Wheel, password: str, held: str = "") -> Iterator[Index]:
    """The index, up while the block runs."""
    index = Index(authority.address, {wheel.name: wheel for wheel in wheels}, password, held)
    with _Server(index, authority.chain) as server:
        index.port = server.port
        yield index
