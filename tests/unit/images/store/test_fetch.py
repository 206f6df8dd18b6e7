"""Wheels from where the lock says into the store: every fault of a server has its sentence."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.errors import DiskFullError, Failure
from images.net.errors import BadCaBundle
from images.net.retries import Retries
from images.net.secrets import Secrets
from images.oci.errors import DigestMismatchError
from images.store import download, fetch
from images.store.errors import CalledOffError, OfflineError
from images.store.fetch import Fetcher
from images.store.store import Store
from images.store.upkeep import hash_file
from images.wheels.errors import WheelUnreachableError, WheelUnreadableError
from images.wheels.remote_file import Wheel
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.fetch_server import FetchServer
from tests.kit.private_index import Authority, make_authority
from tests.kit.programs import run_program

BODY = hashlib.shake_256(b"a wheel").digest(3 << 20)
OTHER = hashlib.shake_256(b"another").digest(1000)
PASSWORD = "p:ss wörd"
LOGIN = f"Basic {base64.b64encode(f'ann:{PASSWORD}'.encode()).decode()}"
NETRC = f'machine 127.0.0.1 login ann password "{PASSWORD}"\n'


@pytest.fixture
def server() -> Iterator[FetchServer]:
    with closing(FetchServer()) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "cache") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PATIENCE_S", 5.0)
    monkeypatch.setattr(download, "PATIENCE", Retries(tries=4, first_wait_s=0.01))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


class Heard:
    """What a progress bar is told."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.notes: list[str] = []
        self._lock = threading.Lock()

    def on_bytes(self, name: str, count: int) -> None:
        with self._lock:
            self.bytes[name] = self.bytes.get(name, 0) + count
            assert self.bytes[name] >= 0


def bring(store: Store, wheel: Wheel, heard: Heard | None = None, **more: Any) -> Path:
    heard = heard or Heard()
    with Fetcher(store, on_bytes=heard.on_bytes, on_note=heard.notes.append, **more) as fetcher:
        return fetcher.fetch(wheel)


def refusal(
    store: Store, wheel: Wheel, kind: type[Failure] = WheelUnreachableError, **more: Any
) -> str:
    """What a user is told; within the time that everything here has."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        bring(store, wheel, **more)
    assert time.monotonic() - started < 60
    assert caught.value.fix
    said = f"{caught.value.message}\n{caught.value.fix}\n{caught.value.detail}"
    assert PASSWORD not in said
    assert "signature" not in said
    assert store.wheel(wheel.sha256) is None
    return said


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PATIENCE_S", 0.4)


def partial(store: Store) -> list[str]:
    return sorted(path.name for path in (store.directory / "partial").iterdir())


def test_a_wheel_comes_into_the_store_once(server: FetchServer, store: Store) -> None:
    wheel, heard = server.wheel(BODY), Heard()
    path = bring(store, wheel, heard)
    assert (path.name, path.read_bytes()) == ("torch-1.0-py3-none-any.whl", BODY)
    assert heard.bytes == {"torch": len(BODY)}
    assert bring(store, wheel) == path
    assert len(server.seen) == 1
    assert server.seen[0]["Accept-Encoding"] == "identity"
    assert server.seen[0]["Authorization"] == ""
    assert partial(store) == []


def test_connections_are_kept(server: FetchServer, store: Store) -> None:
    wheels = [server.wheel(bytes([i]) * 1000 * i, f"w{i}") for i in range(1, 9)]
    with Fetcher(store, workers=1) as fetcher:
        fetcher.prefetch(wheels)
        found = [fetcher.fetch(wheel) for wheel in wheels]
        assert fetcher.downloaded == sum(len(path.read_bytes()) for path in found)
    assert len({one["path"] for one in server.seen}) == len(server.seen) == 8
    assert len(server.connections) == 1


@pytest.mark.usefixtures("_impatient")
def test_several_are_fetched_at_once(server: FetchServer, store: Store) -> None:
    wheels = [server.wheel(BODY[i:], f"w{i}") for i in range(4)]
    server.faults = ["stall 1000"] * 3
    with Fetcher(store) as fetcher:
        fetcher.prefetch(wheels)
        end = time.monotonic() + 60
        while len(server.seen) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(server.seen) >= 4
        assert all(fetcher.fetch(wheel).read_bytes() == BODY[i:] for i, wheel in enumerate(wheels))


def test_who_is_waited_for_comes_before_the_biggest(server: FetchServer, store: Store) -> None:
    wheels = [server.wheel(bytes([i]) * 1000 * i, f"w{i}") for i in range(1, 7)]
    with Fetcher(store, workers=0) as fetcher:  # nobody takes a job but this test
        fetcher.prefetch(wheels, first={wheels[0].sha256})
        fetcher._enqueue(wheels[1], asked=True)
        jobs = [fetcher._next_job() for _ in wheels]
    sizes = [job.wheel.size for job in jobs if job is not None]
    assert sizes == [2000, 1000, 6000, 5000, 4000, 3000]


@cases(
    "faults",
    ("one break", ["cut 1000000"]),
    ("three, each with something new", ["cut 500000"] * 3),
    ("then other trouble", ["cut 1200000", "status 503", "nonsense"]),
    ("and nothing new twice", ["cut 100", "cut 0", "cut 0"]),
    ("silence in the middle", ["stall 1000000"]),
)
def test_what_breaks_off_goes_on_where_it_stopped(
    server: FetchServer, store: Store, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if faults[0].startswith("stall"):
        monkeypatch.setattr(fetch, "PATIENCE_S", 0.4)
    wheel, heard = server.wheel(BODY), Heard()
    server.faults = list(faults)
    assert bring(store, wheel, heard).read_bytes() == BODY
    assert heard.bytes == {"torch": len(BODY)}
    starts = [int(r.removeprefix("bytes=").removesuffix("-")) for r in server.ranges() if r]
    assert starts
    assert starts == sorted(starts)
    assert all(one["If-Range"] == '"one"' for one in server.seen if one["Range"])
    assert server.sent <= len(BODY) + (1 << 18)  # next to nothing twice


@cases(
    "faults",
    ("a server that ignores ranges", ["cut 1000000", "whole"]),
    ("another ETag", ["cut 1000000", "other-tag"]),
    ("another part than asked for", ["cut 1000000", "shifted"]),
    ("a part without a word of which", ["cut 1000000", "no-range-told"]),
    ("a part that does not exist", ["cut 1000000", "status 416"]),
)
def test_where_it_cannot_go_on_it_begins_again(
    server: FetchServer, store: Store, faults: list[str]
) -> None:
    wheel, heard = server.wheel(BODY), Heard()
    server.faults = faults
    with Fetcher(store, on_bytes=heard.on_bytes) as fetcher:
        assert fetcher.fetch(wheel).read_bytes() == BODY
        assert fetcher.downloaded == 1_000_000 + len(BODY)  # no part was taken in vain
    assert heard.bytes == {"torch": len(BODY)}


def test_parts_of_two_files_are_noticed_and_fetched_again(
    server: FetchServer, store: Store
) -> None:
    wheel = server.wheel(BODY)
    server.tag, server.faults = "", ["cut 1000000", "wrong"]
    assert bring(store, wheel).read_bytes() == BODY
    assert server.ranges() == ["", "bytes=1000000-", ""]


def test_a_weak_tag_is_no_reason_to_trust_a_part(server: FetchServer, store: Store) -> None:
    wheel = server.wheel(BODY)
    server.tag, server.faults = 'W/"one"', ["cut 1000000"]
    assert bring(store, wheel).read_bytes() == BODY
    assert [one["If-Range"] for one in server.seen] == ["", ""]


def test_what_a_dead_process_left_is_used(server: FetchServer, store: Store) -> None:
    wheel, heard = server.wheel(BODY), Heard()
    (store.directory / "partial" / f"wheel-{wheel.sha256}").write_bytes(BODY[:2_000_000])
    assert bring(store, wheel, heard).read_bytes() == BODY
    assert server.ranges() == ["bytes=2000000-"]
    assert heard.bytes == {"torch": len(BODY)}


@cases(
    "left",
    ("other bytes", bytes(2_000_000)),
    ("as many, but others", bytes(len(BODY))),
    ("more than all", BODY + b"more"),
    ("all of it", BODY),
)
@pytest.mark.parametrize("size", [-1, None], ids=["size known", "size unknown"])
def test_what_a_dead_process_left_is_never_believed(
    server: FetchServer, store: Store, left: bytes, size: int | None
) -> None:
    wheel = server.wheel(BODY, size=size)
    (store.directory / "partial" / f"wheel-{wheel.sha256}").write_bytes(left)
    assert bring(store, wheel).read_bytes() == BODY


def test_a_download_that_was_called_off_goes_on_in_the_next_build(
    server: FetchServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PATIENCE_S", 60.0)  # it is called off, and gives up nothing itself
    wheel = server.wheel(BODY)
    server.faults = ["stall 2000000"]
    with Fetcher(store) as fetcher:
        fetcher.prefetch([wheel])
        path = store.directory / "partial" / f"wheel-{wheel.sha256}"
        end = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size >= 1_700_000):
            assert time.monotonic() < end
            time.sleep(0.01)
    assert bring(store, wheel).read_bytes() == BODY
    first, second = server.ranges()
    assert first == ""
    assert 1_700_000 <= int(second.removeprefix("bytes=").removesuffix("-")) <= 2_000_000


@cases(
    "fault said",
    ("not there", "status 404", "does not have it any more (HTTP 404)"),
    ("gone", "status 410", "provision lock"),
    ("a login is wanted", "status 401", "there is no login for it"),
    ("forbidden", "status 403", "machine 127.0.0.1 login USER"),
    ("the proxy's login", "status 407", "the proxy wants a login"),
    ("too many requests", "status 429", "too many requests from here"),
    ("an error of its own", "status 500", "answered HTTP 500"),
    ("a status of no meaning", "status 418", "answered HTTP 418"),
    ("a part that nobody asked for", "status 206", "was asked for all"),
    ("no answer", "close", "broke off"),
    ("no HTTP", "nonsense", "broke off"),
    ("silence", "hang", "was silent for 0.4 s"),
    ("headers without end", "drip-head", "was silent for 0.4 s"),
    ("always cut off at once", "cut 0", "broke off"),
    ("always cut off soon", "cut 99", " bytes of 3.1 MB"),
    ("always silent after a few bytes", "stall 100", "was silent for 0.4 s"),
    ("a login page", "page", "answered with a web page"),
    ("compressed on the way", "packed", "compresses what was asked for"),
    ("a redirect to itself", "redirect", "redirects more than 5 times"),
    ("a redirect to no HTTP", "redirect ftp://x/y", "is not followed"),
    ("to a local file", "redirect file:///etc/passwd", "is not followed"),
    ("a redirect to nowhere", "redirect http://:0/", "is not followed"),
)
def test_every_refusal_has_its_sentence(
    server: FetchServer, store: Store, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault.startswith(("hang", "drip", "stall")):
        monkeypatch.setattr(download, "PATIENCE", Retries(tries=2, first_wait_s=0.01))
        monkeypatch.setattr(fetch, "PATIENCE_S", 0.4)
    wheel = server.wheel(BODY)
    server.faults, server.for_ever = [fault], True
    told = refusal(store, replace(wheel, url=f"{wheel.url}?signature=abc"))
    assert said in told
    assert "torch 1.0 could not be fetched" in told
    assert server.address in told


@cases(
    "fault size said",
    ("other bytes", "wrong", -1, "expected"),
    ("a byte more than locked", "longer", -1, f"expected {len(BODY)} bytes"),
    ("a byte less than locked", "shorter", -1, f"found {len(BODY) - 1} bytes"),
    ("a byte more, where no size is locked", "longer", None, "expected"),
    ("without end", "endless", -1, f"expected {len(BODY)} bytes, found more"),
)
def test_another_file_than_the_locked_one_is_refused(
    server: FetchServer, store: Store, fault: str, size: int | None, said: str
) -> None:
    wheel = server.wheel(BODY, size=size)
    server.faults, server.for_ever = [fault], True
    told = refusal(store, wheel, DigestMismatchError)
    assert said in told
    assert "torch" in told
    assert partial(store) == []


def test_a_wrong_wheel_is_named_with_both_digests(server: FetchServer, store: Store) -> None:
    wheel = server.wheel(BODY)
    server.files["/torch-1.0-py3-none-any.whl"] = BODY[::-1]
    told = refusal(store, wheel, DigestMismatchError)
    assert wheel.sha256 in told
    assert hashlib.sha256(BODY[::-1]).hexdigest() in told


def test_a_body_without_a_length_ends_where_it_ends(server: FetchServer, store: Store) -> None:
    server.faults, server.for_ever = ["untold"], True
    assert bring(store, server.wheel(BODY, size=None)).read_bytes() == BODY


def test_a_body_without_end_is_cut_off_where_no_size_is_known(
    server: FetchServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 8 << 20)
    server.faults, server.for_ever = ["endless"], True
    refusal(store, server.wheel(BODY, size=None), DigestMismatchError)
    assert partial(store) == []


def test_a_busy_server_is_asked_when_it_says(server: FetchServer, store: Store) -> None:
    server.faults = ["later 1"]
    began = time.monotonic()
    bring(store, server.wheel(BODY))
    assert 0.9 < time.monotonic() - began < 60


def test_a_server_that_always_breaks_off_is_left_in_the_end(
    server: FetchServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_WORTH_BYTES", 0)
    monkeypatch.setattr(download, "_MOST_TRIES", 20)
    server.faults, server.for_ever = ["cut 1"], True
    assert "broke off 20 times" in refusal(store, server.wheel(BODY))
    assert len(server.seen) == 20


def test_a_server_that_never_gives_the_end_is_left_in_the_end(
    server: FetchServer, store: Store
) -> None:
    """Without ranges each try brings the same first part: that is no progress."""
    server.faults = [*itertools.repeat("whole", 0), "cut 2500000"]
    server.for_ever = True
    server.tag = ""
    wheel = server.wheel(BODY)
    real = server._serve

    def without_ranges(handler: Any, body: bytes, kind: str, word: str) -> None:
        del handler.headers["Range"]
        real(handler, body, kind, word)

    server._serve = without_ranges  # type: ignore[method-assign]
    assert "after 2.5 MB of 3.1 MB" in refusal(store, wheel)
    assert len(server.seen) <= 6


# Logins, redirects, certificates.


def test_a_login_goes_to_exactly_its_host(server: FetchServer, store: Store) -> None:
    server.login = LOGIN
    wheel = server.wheel(BODY)
    assert bring(store, wheel, secrets=Secrets(netrc=NETRC)).read_bytes() == BODY
    server.seen.clear()
    other = NETRC.replace("127.0.0.1", "27.0.0.1")
    told = refusal(store, server.wheel(OTHER, "other"), secrets=Secrets(netrc=other))
    assert "there is no login for it" in told
    assert [one["Authorization"] for one in server.seen] == [""]


def test_a_wrong_login_is_told_as_such(server: FetchServer, store: Store) -> None:
    server.login = "Basic other"
    told = refusal(store, server.wheel(BODY), secrets=Secrets(netrc=NETRC))
    assert "was shown a login" in told


def test_a_redirect_to_another_host_takes_no_login_along(server: FetchServer, store: Store) -> None:
    with closing(FetchServer()) as storage:
        wheel = server.wheel(BODY)
        target = storage.wheel(BODY)
        server.faults = [f"redirect {target.url}?signature=abc"]
        netrc = Secrets(netrc=NETRC)
        assert bring(store, wheel, secrets=netrc).read_bytes() == BODY
        assert [one["Authorization"] for one in server.seen] == [LOGIN]
        assert [one["Authorization"] for one in storage.seen] == [""]


def test_a_redirect_that_fails_shows_no_signature(server: FetchServer, store: Store) -> None:
    with closing(FetchServer()) as storage:
        storage.faults, storage.for_ever = ["status 403"], True
        wheel = server.wheel(BODY)
        server.faults = [f"redirect {storage.root}/x?signature=abc"]
        assert "HTTP 403" in refusal(store, wheel)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"), "Ünser Büro")


@pytest.fixture
def secure(authority: Authority) -> Iterator[FetchServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.chain)
    with closing(FetchServer(tls=context)) as running:
        yield running


def test_a_company_authority_is_trusted_when_it_is_named(
    secure: FetchServer, store: Store, authority: Authority
) -> None:
    wheel = secure.wheel(BODY)
    told = refusal(store, wheel)
    assert "certificate that this host does not trust" in told
    assert "--ca-bundle" in told
    bundle = authority.bundle.read_text()
    assert bring(store, wheel, secrets=Secrets(ca_bundle=bundle)).read_bytes() == BODY


def test_a_bundle_that_is_none_is_told(secure: FetchServer, store: Store) -> None:
    with pytest.raises(BadCaBundle):
        bring(store, secure.wheel(BODY), secrets=Secrets(ca_bundle="no certificate"))


def test_a_redirect_from_https_to_http_is_not_followed(
    secure: FetchServer, server: FetchServer, store: Store, authority: Authority
) -> None:
    wheel = secure.wheel(BODY)
    secure.faults = [f"redirect {server.wheel(BODY).url}"]
    bundle = authority.bundle.read_text()
    told = refusal(store, wheel, secrets=Secrets(ca_bundle=bundle))
    assert "is not followed" in told
    assert server.seen == []


def test_a_proxy_of_the_environment_is_asked(
    server: FetchServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = server.wheel(BODY)
    monkeypatch.setenv("http_proxy", server.root)
    away = replace(wheel, url=wheel.url.replace(server.address, "wheels.invalid"))
    server.files[away.url] = BODY
    assert bring(store, away).read_bytes() == BODY
    assert server.seen[0]["Host"] == "wheels.invalid"


# Addresses that are none, and wheels of this machine.


@cases(
    "url",
    ("FTP", "ftp://host/torch-1.0-py3-none-any.whl"),
    ("data", "data:,torch-1.0-py3-none-any.whl"),
    ("a file of another host", "file://host/torch-1.0-py3-none-any.whl"),
    ("no file name", "https://host/"),
    ("no wheel", "https://host/a.tar.gz"),
    ("a way out", "https://host/..%2F..%2Fx.whl"),
    ("nothing but an ending", "https://host/.whl"),
    ("no host", "https:///torch-1.0-py3-none-any.whl"),
    ("a port that is none", "https://host:x/torch-1.0-py3-none-any.whl"),
    ("a bracket left open", "https://[::1/torch-1.0-py3-none-any.whl"),
    ("nothing", ""),
)
def test_an_address_that_cannot_be_used_is_told(store: Store, url: str) -> None:
    wheel = Wheel(name="torch", version="1.0", url=url, size=1, sha256="ab" * 32)
    with pytest.raises(WheelUnreadableError) as caught:
        bring(store, wheel)
    assert "provision lock" in caught.value.fix


@cases(
    "write",
    ("a file address", lambda path: path.as_uri()),
    ("a file address with localhost", lambda path: f"file://localhost{path}"),
    ("a path", str),
)
def test_a_wheel_of_this_machine_is_used_where_it_lies(
    store: Store, tmp_path: Path, write: Callable[[Path], str]
) -> None:
    path = tmp_path / "a b" / "torch-1.0-py3-none-any.whl"
    path.parent.mkdir()
    path.write_bytes(BODY)
    sha256 = hashlib.sha256(BODY).hexdigest()
    wheel = Wheel(name="torch", version="1.0", url=write(path), size=None, sha256=sha256)
    heard = Heard()
    assert bring(store, wheel, heard, offline=True) == path
    assert heard.bytes == {"torch": len(BODY)}
    assert sum(one.count for one in store.du() if one.kind == "wheels") == 0


@pytest.fixture
def local(tmp_path: Path) -> tuple[Path, Wheel]:
    """A wheel of this machine that has lain there for an hour."""
    path = tmp_path / "torch-1.0-py3-none-any.whl"
    path.write_bytes(BODY)
    os.utime(path, (time.time() - 3600,) * 2)
    sha256 = hashlib.sha256(BODY).hexdigest()
    return path, Wheel(name="torch", version="1.0", url=path.as_uri(), size=None, sha256=sha256)


def count_hashing(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    from images.store import local as module

    hashed: list[Path] = []

    def count(path: Path, on_bytes: Callable[[int], None]) -> str | None:
        hashed.append(path)
        return hash_file(path, on_bytes)

    monkeypatch.setattr(module, "hash_file", count)
    return hashed


def test_a_wheel_of_this_machine_is_hashed_once(
    store: Store, local: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    from images.store import local as module

    path, wheel = local
    hashed = count_hashing(monkeypatch)
    monkeypatch.setattr(module, "_SETTLED_S", 0.0)
    heard = Heard()
    bring(store, wheel)
    bring(store, wheel, heard)
    assert hashed == [path]
    assert heard.bytes == {"torch": len(BODY)}
    # another content of the same size, with the old time set again
    times = path.stat()
    path.write_bytes(BODY[::-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(DigestMismatchError, match=path.name):
        bring(store, wheel)


def test_a_file_that_has_just_changed_is_hashed_again(
    store: Store, local: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wheel = local
    hashed = count_hashing(monkeypatch)
    bring(store, wheel)
    bring(store, wheel)
    assert hashed == [path, path]


def replaced_by(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def replace_it(path: Path) -> None:
        path.unlink()
        make(path)

    return replace_it


@cases(
    "change said",
    ("gone", Path.unlink, "is not there"),
    ("a directory by now", replaced_by(os.mkdir), "is no file"),
    ("a pipe by now", replaced_by(os.mkfifo), "is no file"),
    ("cut short", lambda path: os.truncate(path, 5), "expected"),
)
def test_what_is_wrong_with_a_wheel_of_this_machine_is_told(
    store: Store, local: tuple[Path, Wheel], change: Callable[[Path], None], said: str
) -> None:
    path, wheel = local
    change(path)
    with pytest.raises((WheelUnreachableError, DigestMismatchError), match=said) as caught:
        bring(store, wheel)
    assert str(path) in caught.value.message
    assert "provision lock" in caught.value.fix


# Offline, room, ends.


def test_offline_names_what_is_missing_and_how_much(server: FetchServer, store: Store) -> None:
    here = server.wheel(OTHER, "here")
    bring(store, here)
    server.seen.clear()
    wheels = [here, server.wheel(BODY), server.wheel(BODY * 2, "other", size=None)]
    with Fetcher(store, offline=True) as fetcher:
        assert fetcher.fetch(here).exists()
        with pytest.raises(OfflineError) as caught:
            fetcher.prefetch(wheels)
        with pytest.raises(OfflineError, match="1 of the lock's wheels"):
            fetcher.fetch(wheels[1])
    said = caught.value.message
    assert "2 of the lock's wheels" in said
    assert "3.1 MB: torch 1.0 (3.1 MB), other 1.0 (size unknown)" in said
    assert server.seen == []


def test_room_is_looked_for_before_the_first_byte(server: FetchServer, store: Store) -> None:
    wheel = replace(server.wheel(BODY), size=1 << 60)
    with Fetcher(store) as fetcher, pytest.raises(DiskFullError):
        fetcher.prefetch([wheel])
    assert server.seen == []


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(
    server: FetchServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        if len(data) > 100 and os.fstat(descriptor).st_size > 1_000_000:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(DiskFullError):
        bring(store, server.wheel(BODY))
    monkeypatch.undo()
    assert partial(store) == []


def test_a_failure_is_the_wheels_own(server: FetchServer, store: Store) -> None:
    good, bad = server.wheel(BODY), replace(server.wheel(OTHER, "bad"), url=f"{server.root}/b.whl")
    with Fetcher(store) as fetcher:
        fetcher.prefetch([bad, good])
        assert fetcher.fetch(good).read_bytes() == BODY
        for _ in range(2):
            with pytest.raises(WheelUnreachableError, match="bad"):
                fetcher.fetch(bad)


def test_closing_frees_those_who_wait(server: FetchServer, store: Store) -> None:
    server.faults, server.for_ever = ["hang"], True
    wheels = [server.wheel(BODY[i:], f"w{i}") for i in range(6)]
    ends: list[BaseException] = []
    fetcher = Fetcher(store)
    fetcher.prefetch(wheels)

    def wait(wheel: Wheel) -> None:
        try:
            fetcher.fetch(wheel)
        except CalledOffError as error:
            ends.append(error)

    threads = [threading.Thread(target=wait, args=(wheel,)) for wheel in wheels]
    for thread in threads:
        thread.start()
    server.reached.wait(60)
    began = time.monotonic()
    fetcher.close()
    for thread in threads:
        thread.join(60)
    assert len(ends) == 6
    assert time.monotonic() - began < 50
    with pytest.raises(CalledOffError):
        fetcher.fetch(server.wheel(OTHER, "late"))


def test_a_callback_that_fails_fails_the_fetch_and_not_the_process(
    server: FetchServer, store: Store
) -> None:
    def on_bytes(*_: object) -> None:
        raise ZeroDivisionError

    with Fetcher(store, on_bytes=on_bytes) as fetcher, pytest.raises(ZeroDivisionError):
        fetcher.fetch(server.wheel(BODY))


_CHILD = (
    "import pathlib, sys\n"
    "from images.wheels.remote_file import Wheel\n"
    "from images.store.fetch import Fetcher\n"
    "from images.store.store import Store\n"
    "root, url, size, sha256 = sys.argv[1:]\n"
    "wheel = Wheel(name='torch', version='1.0', url=url, size=int(size), sha256=sha256)\n"
    "with Store.open(pathlib.Path(root)) as store:\n"
    "    with Fetcher(store, on_note=lambda text: print(text, flush=True)) as fetcher:\n"
    "        fetcher.prefetch([wheel])\n"
    "        print('begun', flush=True)\n"
    "        path = fetcher.fetch(wheel)\n"
    "        print(path, flush=True)\n"
)


def child(store: Store, wheel: Wheel) -> subprocess.Popen[str]:
    root = str(store.directory.parent)
    argv = [sys.executable, "-c", _CHILD, root, wheel.url, str(wheel.size), wheel.sha256]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_ctrl_c_ends_a_build_at_once_whatever_it_waits_for(
    server: FetchServer, store: Store
) -> None:
    server.faults, server.for_ever = ["hang"], True
    with child(store, server.wheel(BODY)) as process:
        assert server.reached.wait(60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    Store.open(store.directory.parent).close()
    assert partial(store) == []


def test_of_two_builds_one_fetches_and_the_other_waits_and_hears(
    server: FetchServer, store: Store
) -> None:
    wheel, heard = server.wheel(BODY), Heard()
    server.faults = ["stall 2000000"]
    with child(store, wheel) as process:
        assert server.reached.wait(60)
        path = store.directory / "partial" / f"wheel-{wheel.sha256}"
        while not (path.exists() and path.stat().st_size > 1_000_000):
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        fetcher = Fetcher(store, on_bytes=heard.on_bytes, on_note=heard.notes.append)
        with fetcher:
            fetcher.prefetch([wheel])
            end = time.monotonic() + 60
            while not heard.bytes.get("torch") and time.monotonic() < end:
                time.sleep(0.01)
            assert heard.bytes["torch"] > 1_000_000  # the other's progress is ours
            process.send_signal(signal.SIGKILL)
            assert fetcher.fetch(wheel).read_bytes() == BODY
    assert len(heard.notes) == 1
    assert "another build is fetching torch-1.0-py3-none-any.whl" in heard.notes[0]
    assert heard.bytes == {"torch": len(BODY)}
    assert len(server.seen) == 2
    assert server.ranges()[1].startswith("bytes=")  # and what it left is not lost


def test_nothing_heavy_is_imported_before_a_download(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from images.store.fetch import Fetcher\n"
        "from images.store.store import Store\n"
        "with Store.open(pathlib.Path(sys.argv[1])) as store, Fetcher(store) as fetcher:\n"
        "    store.blob('ab' * 32)\n"
        "print([name for name in ('urllib3', 'ssl', 'rich', 'docker') if name in sys.modules])\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    done = run_program(argv, cwd=ROOT, check=True)
    assert done.stdout in {"[]\n", "['ssl']\n"}


def test_an_address_that_nobody_listens_at_is_told(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/torch-1.0-py3-none-any.whl"
        wheel = Wheel(name="torch", version="1.0", url=url, size=1, sha256="ab" * 32)
        assert "refuses connections" in refusal(store, wheel)
