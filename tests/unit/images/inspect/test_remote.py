"""Wheels on a server: only parts travel, every fault of a server is named, and nothing hangs."""

from __future__ import annotations

import base64
import re
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from images.errors import Failure
from images.inspect import remote
from images.inspect.measuring import measure
from images.net.errors import BadCaBundle
from images.net.retries import Retries
from images.wheels.errors import WheelUnreachableError, WheelUnreadableError
from tests.kit.cases import cases
from tests.kit.fetch_server import FetchServer
from tests.kit.private_index import make_authority
from tests.kit.wheel_maker import torch_wheel

BODY = torch_wheel(size=4 << 20)
FLAGS = ("sm_70", "sm_80", "compute_80")
NAME = "torch-2.0.1+cu117-cp311-cp311-manylinux1_x86_64.whl"


class Server(FetchServer):
    """Serves one wheel, at `url`."""

    def __init__(self, body: bytes = BODY, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        path = f"/{NAME.replace('+', '%2B')}"
        self.files[path] = body
        self.url = f"{self.root}{path}"

    def always(self, fault: str, *, after: int = 0) -> None:
        """Answer with a fault for ever, after some answers without one."""
        self.faults, self.for_ever = [*[""] * after, fault], True


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as running:
        yield running


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", 5.0)
    monkeypatch.setattr(remote, "TRIES", Retries(tries=3, first_wait_s=0.01))
    monkeypatch.setattr(remote, "MAX_DOWNLOAD_BYTES", 16 << 20)


def refusal(url: str, kind: type[Failure] = WheelUnreachableError) -> str:
    """What a user is told; within the time that everything here has."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        measure(url)
    assert time.monotonic() - started < 60
    assert caught.value.fix
    return caught.value.message


def test_only_the_parts_that_are_needed_travel(server: Server) -> None:
    code = measure(server.url)
    assert code.flags == FLAGS
    assert code.version == "2.0.1+cu117"
    assert code.platform_tags == ("manylinux1_x86_64",)
    assert code.bytes_total == len(BODY)
    assert code.bytes_read == server.sent
    assert code.bytes_read < code.bytes_total / 2
    assert code.notes == ()


def test_a_deep_reading_is_the_same_from_far_and_near(server: Server, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(BODY)
    far, near = measure(server.url, deep=True), measure(str(path), deep=True)
    assert far.libraries == near.libraries != ()
    assert (far.sm, far.ptx, far.notes) == (near.sm, near.ptx, near.notes)


def test_a_server_without_ranges_is_read_as_a_whole_and_that_is_said(server: Server) -> None:
    server.always("whole")
    heard: list[tuple[str, int, int]] = []
    code = measure(server.url, on_progress=lambda *said: heard.append(said))
    assert (NAME, *[len(BODY)] * 2) in heard
    assert code.flags == FLAGS
    assert code.bytes_read == code.bytes_total == len(BODY)
    assert code.notes == (
        f"The server does not answer range requests: all {len(BODY)} bytes were fetched.",
    )
    assert len(server.seen) == 1


@cases(
    "mode",
    ("an error of its own", "status 500"),
    ("rate-limiting", "status 429"),
    ("no answer at all", "close"),
    ("no HTTP", "nonsense"),
    ("silence", "hang"),
)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_passes_is_tried_again(
    server: Server, mode: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "hang":
        monkeypatch.setattr(remote, "PATIENCE_S", 0.5)
    server.faults = [*[""] * after, mode, mode]
    assert measure(server.url).flags == FLAGS


def test_what_breaks_off_is_taken_up_where_it_stopped(server: Server) -> None:
    server.faults = ["", "cut", "cut"]
    code = measure(server.url)
    assert code.flags == FLAGS
    again = server.ranges()[1:4]
    starts = [int(asked.partition("=")[2].partition("-")[0]) for asked in again]
    assert starts == sorted(set(starts))
    assert len({asked.rpartition("-")[2] for asked in again}) == 1


@cases(
    "mode after said",
    ("an error of its own", "status 503", 0, "HTTP 503"),
    ("not there", "status 404", 0, "does not have it"),
    ("not for us", "status 403", 0, "does not hand it to us"),
    ("something else", "status 418", 0, "HTTP 418"),
    ("a part that is gone", "status 416", 1, "does not exist"),
    ("silence", "hang", 0, "silent for 0.5 s"),
    ("silence later", "hang", 2, "silent for 0.5 s"),
    ("a byte now and then", "drip", 1, "silent for 0.5 s"),
    ("a header now and then", "drip-head", 0, "silent for 0.5 s"),
    ("no answer", "close", 0, "broke off"),
    ("no HTTP", "nonsense", 0, "broke off"),
    ("cut at once", "cut", 0, "answered a request|broke off|stopped"),
    ("cut each time", "cut", 1, "broke off|stopped"),
    ("less than it said", "shorter", 1, "broke off|stopped"),
    ("more than asked", "longer", 1, "answered a request"),
    ("another part, at once", "shifted", 0, "bytes 1-3/"),
    ("another part", "shifted", 1, "answered a request for bytes"),
    ("no word of which part", "no-range-told", 0, "no Content-Range"),
    ("no word of which part, later", "no-range-told", 1, "no Content-Range"),
    ("no word of the size", "no-total", 0, "answered a request"),
    ("another size", "other-total", 1, "changed while it was read"),
    ("another ETag", "other-tag", 2, "changed while it was read"),
    ("the whole instead of a part", "whole", 1, "HTTP 200"),
    ("a petabyte", "vast", 0, "range requests"),
    ("without an end", "endless whole", 0, "sends more bytes"),
    ("compressed", "packed", 0, "compresses"),
    ("in circles", "redirect", 0, "redirects more than"),
    ("to a file", "redirect file:///etc/passwd", 0, "not followed"),
    ("to nowhere", "redirect http://:0/", 0, "not followed"),
)
def test_a_server_at_fault_is_named(
    server: Server, mode: str, after: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "silent" in said:
        monkeypatch.setattr(remote, "PATIENCE_S", 0.5)
    server.always(mode, after=after)
    message = refusal(server.url)
    assert re.search(said, message), message
    assert server.address in message


@cases(
    "mode said", ("a login page", "page", "a web page"), ("an empty file", "status 416", "is empty")
)
def test_an_address_of_something_else_is_named(server: Server, mode: str, said: str) -> None:
    server.always(mode)
    assert said in refusal(server.url, WheelUnreadableError)


@cases(
    "body said",
    ("a page in parts", b"<!DOCTYPE html>" * 999, "a web page"),
    ("two bytes", b"PK", "something that is no wheel"),
    ("a library", b"\x7fELF" * 999, "something that is no wheel"),
    ("half a wheel", BODY[: len(BODY) // 2], "no zip directory"),
)
@pytest.mark.parametrize("ranges", [True, False])
def test_another_file_is_named(body: bytes, said: str, ranges: bool) -> None:  # noqa: FBT001
    with closing(Server(body)) as server:
        server.always("" if ranges else "whole")
        assert said in refusal(server.url, WheelUnreadableError)


@cases(
    "url",
    ("no host", "http://"),
    ("half an address", "http://["),
    ("a port that is no number", "http://127.0.0.1:port/a.whl"),
    ("a login without a host", "HTTP://user:secret@:80/a.whl"),
)
def test_an_address_that_is_none_is_named(url: str) -> None:
    message = refusal(url, WheelUnreadableError)
    assert "secret" not in message


def test_nobody_there_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    assert "refuses connections" in refusal(f"http://127.0.0.1:{port}/a.whl")


def test_a_name_without_an_address_is_said() -> None:
    message = refusal("http://nobody.invalid/a.whl")
    assert "look-up failed" in message or "silent" in message or "did not answer" in message


def test_a_bad_ca_bundle_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificates")
    with pytest.raises(BadCaBundle):
        measure(server.url, ca_bundle=tmp_path / "ca.pem")


def test_a_certificate_that_nobody_trusts_is_named_and_a_bundle_helps(
    server: Server, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path, "here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.chain)
    with closing(Server(tls=context)) as secure:
        assert "does not trust" in refusal(secure.url)
        assert measure(secure.url, ca_bundle=authority.bundle).flags == FLAGS
        secure.always(f"redirect {server.url}")
        with pytest.raises(WheelUnreachableError, match="not followed"):
            measure(secure.url, ca_bundle=authority.bundle)


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def test_a_login_is_used_and_never_shown(server: Server) -> None:
    server.login = basic("me:p@ss/word")
    url = server.url.replace("http://", "http://me:p%40ss%2Fword@") + "?sig=s3cret#sha256=00"
    code = measure(url)
    assert code.flags == FLAGS
    assert code.source == server.url
    assert "s3cret" in server.seen[0]["path"]
    server.always("status 403", after=2)
    message = refusal(url)
    for secret in ("me:", "p%40ss", "p@ss", "s3cret"):
        assert secret not in message


def test_a_wrong_login_is_refused_without_being_shown(server: Server) -> None:
    server.login = basic("me:right")
    message = refusal(server.url.replace("http://", "http://me:wrong@"))
    assert "HTTP 401" in message
    assert "wrong" not in message


def test_a_redirect_is_followed_once_and_the_login_stays_behind(server: Server) -> None:
    server.login = basic("me:secret")
    with closing(Server()) as storage:
        server.always(f"redirect {storage.url}?signed=yes")
        code = measure(server.url.replace("http://", "http://me:secret@"))
        assert code.flags == FLAGS
        assert code.source == server.url
        assert len(server.seen) == 1
        assert {one["Authorization"] for one in storage.seen} == {""}


def test_a_redirect_that_has_expired_is_asked_for_again(server: Server) -> None:
    with closing(Server()) as storage:
        server.always(f"redirect {storage.url}")
        storage.faults = ["", "", "status 403"]
        assert measure(server.url).flags == FLAGS
        assert len(server.seen) == 2


def test_nothing_is_left_where_temporary_files_go(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server.always("whole")
    measure(server.url)
    server.always("endless whole")
    refusal(server.url)
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_the_whole_is_said(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    server.always("whole")
    assert "0 free" in refusal(server.url)


@cases("ending", ("done", measure), ("interrupted", lambda url: measure(url, on_progress=_stop)))
def test_no_thread_stays_behind(server: Server, ending: Callable[[str], object]) -> None:
    with suppress(KeyboardInterrupt):
        ending(server.url)
    deadline = time.monotonic() + 60
    while any(thread.name == "wheel" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt
