"""Locking against indexes that misbehave: a local server plays them, uv is the real one."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from images.system import process
from provision.build.base import BuildSettings
from provision.build.pipeline import lock_for
from provision.catalog.loading import load
from provision.errors import IndexUnreachableError
from provision.lock import solve as lock
from provision.lock import uv
from provision.model.plan import Base, IndexCandidate, Plan, Request
from provision.output.console import Console
from provision.resolve import resolve
from tests.kit.hosts import host

MANIFESTS = (
    '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": ['
    '{"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 7, "digest": '
    f'"sha256:{"e" * 64}", "platform": {{"os": "linux", "architecture": "amd64"}}}}]}}'
)
WHEEL = "torch-2.0.1{local}-cp311-cp311-linux_x86_64.whl"


def wheel(name: str, version: str, tags: str, requires: str = "") -> bytes:
    """A wheel with nothing in it but what an installer reads."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags}\n",
        f"{info}/RECORD": "",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return buffer.getvalue()


def torch(local: str) -> tuple[str, bytes]:
    name = WHEEL.format(local=local)
    return name, wheel("torch", f"2.0.1{local}", "cp311-cp311-linux_x86_64")


NUMPY = (
    "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl",
    wheel("numpy", "1.26.4", "cp311-cp311-manylinux_2_17_x86_64"),
)


class Quiet(ThreadingHTTPServer):
    """A client that is interrupted, or that tires of waiting, is no news."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        del request, client_address


@dataclass
class LocalIndex:
    """Several indexes on one port: the first word of the path says how it behaves."""

    asked: list[str] = field(default_factory=list)
    hanging: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    more: list[tuple[str, bytes]] = field(default_factory=list)  # what "simple" has beside NumPy
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
            }.get(behaviour, [])
        )

    @contextlib.contextmanager
    def serving(self) -> Iterator[LocalIndex]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words: object) -> None:
                del words

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                index.asked.append(self.path)
                status, kind, data, headers = index.reply(self.path, self.headers["Authorization"])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if body:
                    self.wfile.write(data)

        server = Quiet(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.release.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def reply(self, path: str, login: str | None) -> tuple[int, str, bytes, dict[str, str]]:
        behaviour, _, rest = unquote(path).strip("/").partition("/")
        files = self.files(behaviour)
        name = rest.rpartition("/")[2]
        wanted = base64.b64encode(b"ci:canary").decode()
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
        if behaviour == "login" and login != f"Basic {wanted}":
            return 401, "text/plain", b"who?", {"WWW-Authenticate": 'Basic realm="x"'}
        if behaviour == "truncated":
            return 200, "text/html", b"<!DOCTYPE html><html><bo", {"Content-Length": "4000"}
        if name in files:
            return 200, "application/octet-stream", files[name], {}
        own = [(file, data) for file, data in files.items() if file.startswith(f"{rest}-")]
        if not own:
            return 404, "text/plain", b"no such project", {}
        digest = "0" * 64 if behaviour == "wrong-hash" else ""
        links = "".join(
            f'<a href="/{behaviour}/files/{file.replace("+", "%2B")}'
            f'#sha256={digest or hashlib.sha256(data).hexdigest()}">{file}</a><br>'
            for file, data in own
        )
        page = f"<!DOCTYPE html><html><body>{links}</body></html>"
        return 200, "text/html", page.encode(), {}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalIndex]:
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
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def candidate(url: str | None, name: str = "asked", build: str = "+cu117") -> IndexCandidate:
    return IndexCandidate(name=name, url=url, requirement=f"torch==2.0.1{build}", why="a test")


def plan(*candidates: IndexCandidate) -> Plan:
    return Plan(
        verdict="direct",
        framework="pytorch",
        framework_version="2.0.1",
        cuda="11.7",
        wheel_tag="cu117",
        python="3.11",
        arch="x86_64",
        base=Base(kind="registry", reference="b:1", python="3.11", glibc="2.36"),
        requirements=("numpy<2",),
        indexes=candidates,
    )


def ask(row: IndexCandidate) -> lock.Attempt:
    return lock.ask_index(row, plan(row), ca_bundle=None, offline=False)


@pytest.mark.parametrize(
    ("behaviour", "build", "outcome", "words"),
    [
        pytest.param("good", "+cu117", "locked", "has it", id="an index that has it serves"),
        pytest.param("plain", "", "locked", "has it", id="the plain version may be the build"),
        pytest.param(
            "wrong-hash", "+cu117", "locked", "has it", id="a wrong hash shows at build time only"
        ),
        pytest.param(
            "nothing", "+cu117", "absent", "no solution", id="an index without torch is told so"
        ),
        pytest.param(
            "cpu", "+cu117", "absent", "no version of torch", id="only another build is there"
        ),
        pytest.param(
            "cpu", "", "absent", "has torch 2.0.1+cpu", id="another build under the same version"
        ),
        pytest.param("broken", "+cu117", "unreachable", "500", id="a server with errors"),
        pytest.param("login", "+cu117", "unreachable", "401", id="a login is asked for"),
        pytest.param("denied", "+cu117", "unreachable", "403", id="a login that may not"),
        pytest.param("hang", "+cu117", "unreachable", "unreachable", id="a silent server"),
        pytest.param("truncated", "+cu117", "unreachable", "unreachable", id="half a page"),
    ],
)
def test_an_index_is_judged_by_its_behaviour(
    index: LocalIndex, behaviour: str, build: str, outcome: str, words: str
) -> None:
    attempt = ask(candidate(index.url(behaviour), build=build))
    assert (attempt.outcome, words in attempt.reason) == (outcome, True), attempt.reason


def test_a_refused_connection_is_out_of_reach(index: LocalIndex) -> None:
    attempt = ask(candidate(f"http://127.0.0.1:{free_port()}/simple/"))
    assert (attempt.outcome, "unreachable" in attempt.reason) == ("unreachable", True)
    assert index.asked == []


def test_the_first_index_that_has_it_serves_and_the_log_says_why_the_others_did_not(
    index: LocalIndex,
) -> None:
    told: list[str] = []
    made = lock.make_lock(
        plan(
            candidate(index.url("broken"), "first"),
            candidate(index.url("cpu"), "second"),
            candidate(index.url("good"), "third"),
            candidate(index.url("plain"), "fourth", ""),
        ),
        Request(),
        ca_bundle=None,
        offline=False,
        tell=told.append,
    )
    assert [line.split(" ")[0] for line in told] == ["first", "second"]
    assert "500" in told[0]
    assert made.plan.index == index.url("good")
    assert [w.name for w in made.wheels] == ["numpy", "torch"]
    because = made.plan.reasons[-1].message
    assert because.startswith("The wheels come from third")
    assert "first unreachable" in because
    assert not [path for path in index.asked if path.startswith("/plain/")]


def test_the_sizes_that_a_page_does_not_tell_are_asked_for(index: LocalIndex) -> None:
    row = candidate(index.url("good"))
    made = lock.make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=print)
    sizes = {w.name: w.size for w in made.wheels}
    assert sizes == {"torch": len(torch("+cu117")[1]), "numpy": len(NUMPY[1])}
    assert made.download_bytes == sum(size or 0 for size in sizes.values())


def test_a_wrong_hash_of_the_page_is_what_the_lock_will_hold_the_download_to(
    index: LocalIndex,
) -> None:
    row = candidate(index.url("wrong-hash"))
    made = lock.make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=print)
    assert {w.sha256 for w in made.wheels if w.name == "torch"} == {"0" * 64}


def test_a_login_in_the_address_serves_and_is_written_nowhere(index: LocalIndex) -> None:
    row = candidate(index.url("login", "ci:canary@"), "--index")
    told: list[str] = []
    made = lock.make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=told.append)
    assert "canary" not in made.text
    assert made.plan.index == index.url("login")
    assert told == []


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("candidate", id="of the index that was named"),
        pytest.param("default", id="of the default index"),
    ],
)
def test_a_password_is_not_in_what_a_failure_says(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    url = index.url("broken", "ci:canary@")
    if where == "default":
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
    attempt = ask(candidate(url if where == "candidate" else None))
    assert attempt.outcome == "unreachable"
    assert "canary" not in attempt.reason


def test_a_short_name_beside_a_password_does_not_garble_the_answer(index: LocalIndex) -> None:
    attempt = ask(candidate(index.url("nothing", "o:canary@")))
    assert (attempt.outcome, "no solution" in attempt.reason) == ("absent", True)


def test_when_no_index_serves_each_is_named_with_its_reason(index: LocalIndex) -> None:
    rows = (candidate(index.url("broken"), "first"), candidate(index.url("cpu"), "second"))
    with pytest.raises(IndexUnreachableError) as caught:
        lock.make_lock(plan(*rows), Request(), ca_bundle=None, offline=False, tell=print)
    assert caught.value.exit_code == 5
    assert [line.split(" ")[0] for line in caught.value.detail.splitlines()] == ["first", "second"]
    assert "--index" in caught.value.fix


def pure(name: str, version: str) -> tuple[str, bytes]:
    """A wheel for any Python."""
    return f"{name}-{version}-py3-none-any.whl", wheel(name, version, "py3-none-any")


@pytest.mark.parametrize(
    ("wheels", "offline", "fix"),
    [
        pytest.param(
            [pure("torch", "2.7.1"), pure("pip", "26.0")], False,
            "PyPI answers and has PyTorch 2.7.1 for CUDA 12.6: --cuda 12.6 --framework-version "
            "2.7.1. Else check the network", id="the default index has another build"),
        pytest.param([pure("torch", "2.9.1")], False, "Check the network",
                     id="it has not what the catalog says"),
        pytest.param([pure("torch", "2.7.1"), pure("pip", "26.0")], True, "Check the network",
                     id="nothing may be asked"),
    ],
)  # fmt: skip
def test_out_of_reach_the_newest_within_reach_is_named(
    index: LocalIndex, wheels: list[tuple[str, bytes]], fix: str, *, offline: bool, tmp_path: Path
) -> None:
    index.more = wheels
    hosts = [host("550.54.14", "8.6")]
    request = Request(cuda="12.6", python="3.11")
    made = resolve(hosts, request, load())
    assert made.wheel_tag == "cu126"
    gone = replace(made.indexes[0], url=index.url("broken"))
    settings = BuildSettings(ca=None, offline=offline, state=tmp_path, env={})
    with pytest.raises(IndexUnreachableError) as caught:
        lock_for(replace(made, indexes=(gone,)), hosts, request, load(), settings, Console())
    assert caught.value.exit_code == 5
    assert caught.value.fix.startswith(fix)


def test_when_every_index_answered_and_none_has_it_the_packages_are_to_blame(
    index: LocalIndex,
) -> None:
    with pytest.raises(lock.NoSolutionError) as caught:
        lock.make_lock(
            plan(candidate(index.url("nothing"))),
            Request(companions=("nosuchthing",)),
            ca_bundle=None,
            offline=False,
            tell=print,
        )
    assert caught.value.exit_code == 3
    assert "with nosuchthing" in caught.value.message


def test_an_index_that_never_ends_its_answer_costs_a_line_and_not_the_job(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "600")
    monkeypatch.setattr(lock, "_UV_TIMEOUT_S", 1.0)
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    attempt = ask(candidate(index.url("hang")))
    assert (attempt.outcome, "no complete answer" in attempt.reason) == ("unreachable", True)


def test_offline_nothing_is_asked(index: LocalIndex) -> None:
    row = candidate(index.url("good"))
    attempt = lock.ask_index(row, plan(row), ca_bundle=None, offline=True)
    assert (attempt.outcome, "--offline" in attempt.reason) == ("unreachable", True)
    assert index.asked == []


def test_the_environment_may_set_the_patience() -> None:
    patient = {"UV_HTTP_TIMEOUT": "120", "UV_HTTP_RETRIES": "7", "UV_DEFAULT_INDEX": "x"}
    found = uv.uv_environment(patient, None)
    assert (found["UV_HTTP_TIMEOUT"], found["UV_HTTP_RETRIES"]) == ("120", "7")
    usual = uv.uv_environment({"UV_DEFAULT_INDEX": "x"}, None)
    assert (usual["UV_HTTP_TIMEOUT"], usual["UV_HTTP_RETRIES"]) == ("15", "1")


@pytest.mark.parametrize(
    "without",
    [
        pytest.param("a home that can be written to", id="no home that can be written to"),
        pytest.param("Python on PATH", id="no Python on PATH"),
        pytest.param("a working directory", id="a working directory that is gone"),
    ],
)
def test_uv_works_without(
    index: LocalIndex, without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "a home that can be written to":
        (tmp_path / "file").touch()
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        monkeypatch.delenv("XDG_CACHE_HOME")
    elif without == "Python on PATH":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
    attempt = ask(candidate(index.url("good")))
    if without == "a working directory":
        monkeypatch.chdir(tmp_path)
    assert attempt.outcome == "locked", attempt.reason


def test_a_machine_on_which_uv_cannot_work_is_no_fault_of_an_index(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = tmp_path / "uv"
    limited.write_text(f'#!/bin/sh\nulimit -n 8\nexec {uv.uv_program()} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(uv, "uv_program", lambda: str(limited))
    row = candidate(index.url("good"))
    with pytest.raises(lock.UvBrokenError, match="Too many open files") as caught:
        lock.make_lock(plan(row), Request(), ca_bundle=None, offline=False, tell=print)
    assert caught.value.fix == "Allow more open files: ulimit -n 4096"


def test_a_login_is_on_no_command_line(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user may read the command lines of all: a program in uv's place writes its own down."""
    said = tmp_path / "said"
    fake = tmp_path / "uv"
    fake.write_text(f'#!/bin/sh\necho "$@" >{said}\necho "$UV_INDEX" >>{said}\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(uv, "uv_program", lambda: str(fake))
    ask(candidate(index.url("good").replace("://", "://user:s3cret@")))
    words, variable = said.read_text().splitlines()
    assert "s3cret" not in words
    assert "s3cret" in variable
