"""Indexes that misbehave cost seconds, say what is wrong, and never half of an answer.

Redirects, certificates and netrc files are tested in tests/unit/images.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from provision.catalog.index.client import Index, read_page
from provision.catalog.index.fetch import AbsentError, FetchLimits, PageFetcher, SourceError
from provision.catalog.index.wheels import LinuxWheel
from tests.kit.cases import cases
from tests.kit.simple_index import QUICK, Fault, SimpleIndex, make_wheel

NAME = "torch-9.0.0-cp312-cp312-manylinux_2_28_x86_64.whl"
PAGE = "/simple/torch/"


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    wheels = [make_wheel(NAME, ["numpy"])]
    with SimpleIndex(wheels=wheels).serving() as running:
        yield running


def fetcher(limits: FetchLimits = QUICK, **env: str) -> PageFetcher:
    return PageFetcher(limits=limits, env=env)


@cases(
    "fault words",
    ("in trouble", Fault(status=500), "HTTP 500"),
    ("a login is asked for", Fault(status=401), "HTTP 401"),
    ("something odd", Fault(status=418), "HTTP 418"),
    ("come back later", Fault(status=429, headers={"Retry-After": "600"}), "asks to wait 600 s"),
    ("half a body", Fault(cut=True), "broke off"),
    ("silence", Fault(hang=True), "did not answer in time"),
    ("a wrong content type", Fault(kind="image/png"), "image/png"),
    ("half a page", Fault(body=b"<html>sign in", kind="text/html"), "cut off"),
    ("a redirect to a file", Fault(status=302, headers={"Location": "file:///etc/passwd"}),
     "is not followed"),
)  # fmt: skip
def test_a_page_that_cannot_be_read_says_why(index: SimpleIndex, fault: Fault, words: str) -> None:
    index.faults[PAGE] = fault
    with pytest.raises(SourceError, match=words) as caught:
        read_page(f"{index.url}/torch/", fetcher())
    assert caught.value.fix


def test_a_page_that_is_not_there_is_another_error(index: SimpleIndex) -> None:
    with pytest.raises(AbsentError, match="HTTP 404"):
        read_page(f"{index.url}/nosuch/", fetcher())


@cases(
    "fault",
    ("two errors", Fault(status=500, times=2)),
    ("too many", Fault(status=429, headers={"Retry-After": "0"}, times=1)),
    ("some day", Fault(status=503, headers={"Retry-After": "soon"}, times=1)),
    ("a date that is past",
     Fault(status=503, headers={"Retry-After": formatdate(0, usegmt=True)}, times=1)),
    ("half a body", Fault(cut=True, times=1)),
)  # fmt: skip
def test_what_may_go_better_is_tried_again(index: SimpleIndex, fault: Fault) -> None:
    index.faults[PAGE] = fault
    assert len(read_page(f"{index.url}/torch/", fetcher()).files) == 1


def test_addresses_are_relative_to_where_a_redirect_leads(index: SimpleIndex) -> None:
    index.faults["/old/deep/er/torch/"] = Fault(status=301, headers={"Location": PAGE})
    page = read_page(f"http://{index.address}/old/deep/er/torch/", fetcher())
    assert page.files[0].url == f"http://{index.address}/files/{NAME}"


@pytest.mark.parametrize("json", [True, False])
def test_a_packed_page_is_unpacked(index: SimpleIndex, *, json: bool) -> None:
    index.packs, index.speaks_json = True, json
    index.wheels = [
        make_wheel(f"torch-9.0.{patch}-cp312-cp312-linux_x86_64.whl") for patch in range(30)
    ]
    using = fetcher()
    files = read_page(f"{index.url}/torch/", using).files
    assert len(files) == 30
    assert (files[0].size is not None) is json  # JSON is preferred where an index has both
    (asked,) = using.requests
    assert (asked.url, asked.status, asked.received < 6000) == (f"{index.url}/torch/", 200, True)


def test_a_page_that_is_too_large_is_not_read_to_its_end(index: SimpleIndex) -> None:
    index.packs = True  # so that the cap counts what is unpacked
    index.faults[PAGE] = Fault(body=b" " * 5_000_000)
    with pytest.raises(SourceError, match="larger than"):
        read_page(f"{index.url}/torch/", fetcher(replace(QUICK, page_bytes=1_000_000)))


def test_a_silent_host_is_not_asked_again(index: SimpleIndex) -> None:
    index.faults[PAGE] = Fault(hang=True)
    using = fetcher()
    for _ in range(5):
        with pytest.raises(SourceError, match="did not answer in time"):
            read_page(f"{index.url}/torch/", using)
    assert len(index.asked) == 1


def test_a_host_that_answered_before_is_waited_for_once_more(index: SimpleIndex) -> None:
    using = fetcher()
    read_page(f"{index.url}/torch/", using)
    index.faults[PAGE] = Fault(hang=True, times=1)
    read_page(f"{index.url}/torch/", using)


def test_a_host_without_a_server_is_named_alone() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SourceError, match=rf"^127\.0\.0\.1:{port} refuses connections") as caught:
        read_page(f"http://127.0.0.1:{port}/simple/torch/", fetcher())
    assert caught.value.silent


def test_the_whole_has_an_end(index: SimpleIndex) -> None:
    with pytest.raises(SourceError, match="longer than"):
        read_page(f"{index.url}/torch/", fetcher(replace(QUICK, total_s=0.0)))


# ---- logins ----


def test_a_netrc_has_logins(index: SimpleIndex, tmp_path: Path) -> None:
    index.login = "ann:canary"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password canary\n")
    read_page(f"{index.url}/torch/", fetcher(NETRC=str(netrc)))


def test_a_login_does_not_follow_a_redirect_to_another_host(index: SimpleIndex) -> None:
    with SimpleIndex(wheels=index.wheels).serving() as other:
        index.faults[PAGE] = Fault(status=302, headers={"Location": f"{other.url}/torch/"})
        using = fetcher()
        url = using.add_login(index.url.replace("http://", "http://ann:canary@"))
        read_page(f"{url}/torch/", using)
        assert "authorization" in index.asked[0][1]
        assert "authorization" not in other.asked[0][1]


def test_a_wrong_login_is_in_no_message(index: SimpleIndex) -> None:
    index.login = "ann:right"
    using = fetcher()
    url = using.add_login(index.url.replace("http://", "http://ann:canary@"))
    with pytest.raises(SourceError, match="login") as caught:
        read_page(f"{url}/torch/", using)
    assert "canary" not in url + caught.value.message + caught.value.fix


# ---- METADATA and other files of a wheel ----


def wheel_on(index: Index) -> LinuxWheel:
    return index.wheels("torch")[0]


@pytest.mark.parametrize("offers", [True, False])
def test_metadata_is_read_beside_the_wheel_or_out_of_it(
    index: SimpleIndex, *, offers: bool
) -> None:
    index.offers_metadata = offers
    index.login = "ann:can%ary"
    asked = Index(index.url.replace("http://", "http://ann:can%25ary@"), "it", fetcher())
    metadata = asked.read_metadata(wheel_on(asked))
    assert [str(requirement) for requirement in metadata.requires] == ["numpy"]
    assert all("range" in headers for path, headers in index.asked if path.endswith(".whl"))


@cases(
    "metadata promised words",
    ("a checksum", b"Name: torch\nVersion: 9.0.0\n", False, "the index says"),
    ("a project", b"Name: other\nVersion: 9.0.0\n", True, "is that of other"),
    ("a version", b"Name: torch\nVersion: 9.1.0\n", True, "torch 9.1.0"),
    ("a page", b"<html>", True, "is not valid"),
)
def test_metadata_of_something_else_is_refused(
    index: SimpleIndex, metadata: bytes, *, promised: bool, words: str
) -> None:
    if promised:
        index.wheels = [replace(index.wheels[0], metadata=metadata)]
    else:
        index.faults[f"/files/{NAME}.metadata"] = Fault(body=metadata)
    asked = Index(index.url, "it", fetcher())
    with pytest.raises(SourceError, match=words):
        asked.read_metadata(wheel_on(asked))


@cases(
    "ranges words",
    ("no ranges: not the whole wheel", False, "sends whole files only"),
    ("no such file", True, r"has no torch/nosuch\.py"),
)
def test_a_file_inside_a_wheel_that_cannot_be_read(
    index: SimpleIndex, *, ranges: bool, words: str
) -> None:
    index.gives_ranges = ranges
    asked = Index(index.url, "it", fetcher())
    with pytest.raises(SourceError, match=words):
        asked.peek(wheel_on(asked), "torch/nosuch.py")
