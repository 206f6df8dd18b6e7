"""A package index on 127.0.0.1 for uv, which misbehaves on request, and wheels for it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest

from provision.lock.lockfile import Lock
from provision.lock.places import page_has_wheels
from provision.lock.solve import find_wheels, lock_of
from provision.model.plan import Plan, Request
from tests.kit.web_server import Handler, WebServer, basic, part_of

MANIFESTS = (
    '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": ['
    '{"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 7, "digest": '
    f'"sha256:{"e" * 64}", "platform": {{"os": "linux", "architecture": "amd64"}}}}]}}'
)
WHEEL = "torch-2.0.1{local}-cp311-cp311-linux_x86_64.whl"


def wheel(
    name: str, version: str, tags: str, requires: str = "", more: Mapping[str, bytes] | None = None
) -> bytes:
    """A wheel with nothing in it but what an installer reads, and `more` files; always the same
    bytes, as it may be made again for each request.
    """
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags}\n",
        f"{info}/RECORD": "",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(_entry(path), text)
        for path, content in (more or {}).items():
            archive.writestr(_entry(path), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _entry(path: str) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(path)  # of 1980, not of now
    found.external_attr = 0o600 << 16
    return found


def metadata_of(data: bytes) -> bytes:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        return archive.read(name)


def pure(name: str, version: str, *requires: str, extras: Sequence[str] = ()) -> tuple[str, bytes]:
    """A wheel for any Python."""
    text = "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    text += "".join(f"Requires-Dist: {line}\n" for line in requires)
    return f"{name}-{version}-py3-none-any.whl", wheel(name, version, "py3-none-any", text)


def sdist(name: str, version: str, setup: str = "", **files: str) -> tuple[str, bytes]:
    """A source archive: its name and its bytes. `files` are more of it, `pyproject` its
    pyproject.toml.
    """
    data = io.BytesIO()
    top = f"{name}-{version}"
    texts = {"setup.py": setup, **files}
    if "pyproject" in texts:
        texts["pyproject.toml"] = texts.pop("pyproject")
    texts["PKG-INFO"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path, text in texts.items():
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return f"{top}.tar.gz", data.getvalue()


def torch(local: str) -> tuple[str, bytes]:
    name = WHEEL.format(local=local)
    return name, wheel("torch", f"2.0.1{local}", "cp311-cp311-linux_x86_64")


NUMPY = (
    "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl",
    wheel("numpy", "1.26.4", "cp311-cp311-manylinux_2_17_x86_64"),
)


def make_lock(
    plan: Plan,
    request: Request,
    *,
    ca_bundle: Path | None,
    offline: bool,
    tell: Callable[[str], None],
) -> Lock:
    """A lock from the plan's indexes."""
    found = find_wheels(plan, request, ca_bundle=ca_bundle, offline=offline, tell=tell)
    return lock_of(found, ca_bundle=ca_bundle, offline=offline)


@dataclass
class LocalIndex:
    """Several indexes on one port: the first word of the path says how it behaves."""

    asked: list[str] = field(default_factory=list)
    hanging: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    more: list[tuple[str, bytes]] = field(default_factory=list)  # what "simple" has beside NumPy
    listed: list[tuple[str, bytes]] = field(default_factory=list)  # what the listings have
    port: int = 0

    def url(self, behaviour: str, login: str = "") -> str:
        return f"http://{login}127.0.0.1:{self.port}/{behaviour}/"

    def files(self, behaviour: str) -> dict[str, bytes]:
        return dict(
            {
                "good": [torch("+cu117")],
                "wrong-hash": [torch("+cu117")],
                "login": [torch("+cu117")],
                "plain": [torch("")],
                "cpu": [torch("+cpu")],
                "simple": [NUMPY, *self.more],
                "listing": self.listed,
                "bare-listing": self.listed,
            }.get(behaviour, [])
        )

    @contextlib.contextmanager
    def serving(self) -> Iterator[LocalIndex]:
        index = self

        class Answers(Handler):
            def answer(self) -> None:
                index.asked.append(self.path)
                status, kind, data, more = index.reply(self.path, self.headers["Authorization"])
                headers = {"Content-Type": kind, **more}
                if status == 200:
                    status, data, part = part_of(data, self.headers["Range"])
                    headers |= part
                self.reply(status, data, headers)

        with WebServer(Answers) as server:
            self.port = server.port
            try:
                yield self
            finally:
                self.release.set()

    def reply(self, path: str, login: str | None) -> tuple[int, str, bytes, dict[str, str]]:
        behaviour, _, rest = unquote(path).strip("/").partition("/")
        files = self.files(behaviour)
        name = rest.rpartition("/")[2]
        if behaviour == "v2":  # an image registry, for those who need one
            kind = "application/vnd.oci.image.index.v1+json"
            return 200, kind, MANIFESTS.encode(), {}
        if behaviour == "hang":
            self.hanging.set()
            self.release.wait(timeout=120)
            return 503, "text/plain", b"", {}
        if behaviour == "broken":
            return 500, "text/plain", b"no", {}
        if behaviour == "denied":
            return 403, "text/plain", b"not you", {}
        if behaviour == "login" and login != basic("ci:canary"):
            return 401, "text/plain", b"who?", {"WWW-Authenticate": 'Basic realm="x"'}
        if behaviour == "truncated":
            return 200, "text/html", b"<!DOCTYPE html><html><bo", {"Content-Length": "4000"}
        if name.endswith(".metadata") and name.removesuffix(".metadata") in files:  # PEP 658
            return 200, "text/plain", metadata_of(files[name.removesuffix(".metadata")]), {}
        if name in files:
            return 200, "application/octet-stream", files[name], {}
        is_directory = behaviour.endswith("listing")  # no index, which has a page for each project
        own = [
            (file, data)
            for file, data in files.items()
            if rest == ("" if is_directory else file.partition("-")[0].replace("_", "-"))
        ]
        if not own:
            return 404, "text/plain", b"no such project", {}

        def hash_of(data: bytes) -> str:
            if behaviour == "bare-listing":
                return ""
            wrong = behaviour == "wrong-hash"
            return f"#sha256={'0' * 64 if wrong else hashlib.sha256(data).hexdigest()}"

        links = "".join(
            f'<a href="/{behaviour}/files/{file.replace("+", "%2B")}{hash_of(data)}">{file}</a><br>'
            for file, data in own
        )
        page = f"<!DOCTYPE html><html><body>{links}</body></html>"
        return 200, "text/html", page.encode(), {}


@contextlib.contextmanager
def serving_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalIndex]:
    """The index as uv's default one, and none of the machine's configuration."""
    page_has_wheels.cache_clear()  # another server may have had the port
    with LocalIndex().serving() as server:
        for name in ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {
            "HOME": str(tmp_path),
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "UV_NO_CONFIG": "1",
            "UV_DEFAULT_INDEX": server.url("simple"),
            "UV_HTTP_TIMEOUT": "1",
            "UV_HTTP_RETRIES": "0",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        with _pythons_known(tmp_path / "cache"):
            yield server


@contextlib.contextmanager
def _pythons_known(cache: Path) -> Iterator[None]:
    """What uv keeps of the Pythons that it has asked about themselves, from test to test."""
    shared = Path(os.environ["TESTS_SHARED"]) / "uv"
    for place in (shared, cache):
        place.mkdir(exist_ok=True)
    for known in shared.iterdir():
        (cache / known.name).symlink_to(known)
    yield
    for found in cache.glob("interpreter-*"):
        with contextlib.suppress(OSError):  # another process was first
            found.rename(shared / found.name)
