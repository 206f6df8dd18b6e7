"""Indexes that misbehave cost seconds, say what is wrong, and never half of an answer."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from images.registry import BadCaBundle
from provision.catalog.index.client import Index, read_page
from provision.catalog.index.fetch import AbsentError, FetchLimits, PageFetcher, SourceError
from provision.catalog.index.wheels import LinuxWheel
from tests.kit.simple_index import Fault, SimpleIndex, make_wheel
from tests.need import program

FAST = FetchLimits(
    connect_s=2.0, read_s=1.0, request_s=3.0, total_s=20.0, pause_s=0.3, backoff_s=0.01
)
NAME = "torch-9.0.0-cp312-cp312-manylinux_2_28_x86_64.whl"
PAGE = "/simple/torch/"


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    wheels = [make_wheel(NAME, ["numpy"], files={"torch/version.py": "cuda = '12.6'\n"})]
    with SimpleIndex(wheels=wheels).serving() as running:
        yield running


def fetcher(limits: FetchLimits = FAST, **env: str) -> PageFetcher:
    return PageFetcher(limits=limits, env=env)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param(Fault(status=500), "HTTP 500", id="in trouble"),
        pytest.param(Fault(status=401), "HTTP 401", id="a login is asked for"),
        pytest.param(Fault(status=403), "HTTP 403", id="forbidden"),
        pytest.param(Fault(status=418), "HTTP 418", id="something odd"),
        pytest.param(Fault(status=404), "HTTP 404", id="not there"),
        pytest.param(
            Fault(status=429, headers={"Retry-After": "600"}),
            "asks to wait 600 s",
            id="come back later",
        ),
        pytest.param(Fault(cut=True), "broke off", id="half a body"),
        pytest.param(Fault(drip=True), "too slow", id="a byte now and then"),
        pytest.param(Fault(hang=True), "did not answer in time", id="silence"),
        pytest.param(Fault(kind="image/png"), "image/png", id="a wrong content type"),
        pytest.param(Fault(body=b"<html>sign in", kind="text/html"), "cut off", id="half a page"),
        pytest.param(Fault(body=b"{]"), "JSON", id="garbage as JSON"),
        pytest.param(
            Fault(status=302, headers={"Location": "file:///etc/passwd"}),
            "is not followed",
            id="a redirect to a file",
        ),
        pytest.param(
            Fault(status=302, headers={"Location": "http://[/"}),
            "is not followed",
            id="a redirect to nowhere",
        ),
        pytest.param(
            Fault(status=302, headers={"Location": PAGE}),
            "redirects more than",
            id="round and round",
        ),
    ],
)
def test_a_page_that_cannot_be_read_says_why_in_seconds(
    index: SimpleIndex, fault: Fault, words: str
) -> None:
    index.faults[PAGE] = fault
    started = time.monotonic()
    with pytest.raises(SourceError, match=words) as caught:
        read_page(f"{index.url}/torch/", fetcher())
    assert time.monotonic() - started < 60
    assert caught.value.fix


def test_a_page_that_is_not_there_is_told_from_one_that_cannot_be_read(index: SimpleIndex) -> None:
    with pytest.raises(AbsentError):
        read_page(f"{index.url}/nosuch/", fetcher())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=500, times=2), id="two errors"),
        pytest.param(Fault(status=429, headers={"Retry-After": "0"}, times=1), id="too many"),
        pytest.param(Fault(status=503, headers={"Retry-After": "soon"}, times=1), id="some day"),
        pytest.param(
            Fault(status=503, headers={"Retry-After": formatdate(0, usegmt=True)}, times=1),
            id="a date that is past",
        ),
        pytest.param(Fault(cut=True, times=1), id="half a body"),
    ],
)
def test_what_may_go_better_is_tried_again(index: SimpleIndex, fault: Fault) -> None:
    index.faults[PAGE] = fault
    assert len(read_page(f"{index.url}/torch/", fetcher()).files) == 1


def test_a_server_that_asks_for_a_short_pause_gets_it(index: SimpleIndex) -> None:
    index.faults[PAGE] = Fault(status=429, headers={"Retry-After": "1"}, times=1)
    started = time.monotonic()
    read_page(f"{index.url}/torch/", fetcher(replace(FAST, pause_s=2.0)))
    assert 1 <= time.monotonic() - started < 60


def test_a_redirect_is_followed_and_addresses_are_relative_to_where_it_leads(
    index: SimpleIndex,
) -> None:
    index.faults["/old/deep/er/torch/"] = Fault(status=301, headers={"Location": PAGE})
    page = read_page(f"http://{index.address}/old/deep/er/torch/", fetcher())
    assert page.files[0].url == f"http://{index.address}/files/{NAME}"


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("chunks", [True, False])
def test_a_packed_page_is_unpacked(index: SimpleIndex, *, json: bool, chunks: bool) -> None:
    index.packs, index.speaks_json, index.in_chunks = True, json, chunks
    index.wheels = [
        make_wheel(f"torch-9.0.{patch}-cp312-cp312-linux_x86_64.whl") for patch in range(30)
    ]
    using = fetcher()
    assert len(read_page(f"{index.url}/torch/", using).files) == 30
    assert using.asked[0].received < 6000  # of more


def test_json_is_preferred_where_an_index_has_both(index: SimpleIndex) -> None:
    assert read_page(f"{index.url}/torch/", fetcher()).files[0].size is not None
    index.speaks_json = False
    assert read_page(f"{index.url}/torch/", fetcher()).files[0].size is None


def test_a_page_that_is_too_large_is_not_read_to_its_end(index: SimpleIndex) -> None:
    index.packs = True  # so that the cap counts what is unpacked
    index.faults[PAGE] = Fault(body=b" " * 5_000_000)
    with pytest.raises(SourceError, match="larger than"):
        read_page(f"{index.url}/torch/", fetcher(replace(FAST, page_bytes=1_000_000)))


def test_a_silent_host_is_not_asked_again(index: SimpleIndex) -> None:
    index.faults["/simple/torch/"] = Fault(hang=True)
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


def test_nobody_there_is_told_by_the_host_alone() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SourceError, match=rf"^127\.0\.0\.1:{port} refuses connections") as caught:
        read_page(f"http://127.0.0.1:{port}/simple/torch/", fetcher())
    assert caught.value.silent


def test_the_whole_has_an_end(index: SimpleIndex) -> None:
    using = fetcher(replace(FAST, total_s=0.0))
    with pytest.raises(SourceError, match="longer than"):
        read_page(f"{index.url}/torch/", using)


def test_what_was_asked_is_counted(index: SimpleIndex) -> None:
    heard: list[str] = []
    using = PageFetcher(limits=FAST, env={}, on_asked=lambda row: heard.append(row.url))
    read_page(f"{index.url}/torch/", using)
    assert heard == [f"{index.url}/torch/"]
    assert [(row.status, row.received > 100) for row in using.asked] == [(200, True)]


# ---- logins ----


def test_the_login_of_an_address_goes_to_its_host_and_into_no_message(index: SimpleIndex) -> None:
    index.login = "ann:can%ary"
    using = fetcher()
    url = using.add_login(index.url.replace("http://", "http://ann:can%25ary@"))
    assert "canary" not in url
    assert "@" not in url
    assert read_page(f"{url}/torch/", using).files


def test_netrc_has_logins_too(index: SimpleIndex, tmp_path: Path) -> None:
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
        assert "authorization" in index.asked[0][2]
        assert "authorization" not in other.asked[0][2]


def test_a_wrong_login_is_told_without_the_login(index: SimpleIndex) -> None:
    index.login = "ann:right"
    using = fetcher()
    url = using.add_login(index.url.replace("http://", "http://ann:canary@"))
    with pytest.raises(SourceError, match="login") as caught:
        read_page(f"{url}/torch/", using)
    assert "canary" not in caught.value.message + caught.value.fix


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A company's authority and a certificate by it for this machine: (bundle, chain)."""
    place, openssl = tmp_path_factory.mktemp("ca"), program("openssl")

    def run(*words: str) -> None:
        argv = [openssl, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        subprocess.run([*argv, *words], cwd=place, check=True, capture_output=True, timeout=60)

    run(
        "-x509",
        "-subj",
        "/CN=Test CA",
        "-addext",
        "keyUsage=critical,keyCertSign",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
    )
    run("-x509", "-subj", "/CN=index", "-addext", "subjectAltName=IP:127.0.0.1",
        "-addext", "basicConstraints=critical,CA:FALSE", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-keyout", "server.key", "-out", "server.pem")  # fmt: skip
    chain = place / "chain.pem"
    chain.write_text((place / "server.pem").read_text() + (place / "server.key").read_text())
    return place / "ca.pem", chain


def test_a_company_authority_is_trusted_when_it_is_named(authority: tuple[Path, Path]) -> None:
    bundle, chain = authority
    with SimpleIndex(wheels=[make_wheel(NAME)], chain=chain).serving() as index:
        using = PageFetcher(ca_bundle=bundle, limits=FAST, env={})
        assert len(read_page(f"{index.url}/torch/", using).files) == 1
        with pytest.raises(SourceError, match="certificate that this host does not trust"):
            read_page(f"{index.url}/torch/", fetcher())


def test_a_redirect_from_https_to_http_is_not_followed(authority: tuple[Path, Path]) -> None:
    bundle, chain = authority
    with SimpleIndex(wheels=[make_wheel(NAME)], chain=chain).serving() as index:
        plain = {"Location": f"http://{index.address}/simple/other/"}
        index.faults[PAGE] = Fault(status=302, headers=plain)
        with pytest.raises(SourceError, match="is not followed"):
            read_page(f"{index.url}/torch/", PageFetcher(ca_bundle=bundle, limits=FAST, env={}))


def test_a_ca_bundle_that_is_none_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("no certificate")
    with pytest.raises(BadCaBundle):
        PageFetcher(ca_bundle=bundle, limits=FAST, env={})


# ---- METADATA and other files of a wheel ----


def index_of(served: SimpleIndex, limits: FetchLimits = FAST) -> Index:
    return Index(served.url, "an index", fetcher(limits))


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
    assert all("range" in headers for _, path, headers in index.asked if path.endswith(".whl"))


@pytest.mark.parametrize(
    ("metadata", "promised", "words"),
    [
        pytest.param(b"Name: torch\nVersion: 9.0.0\n", False, "the index says", id="a checksum"),
        pytest.param(b"Name: other\nVersion: 9.0.0\n", True, "is that of other", id="a project"),
        pytest.param(b"Name: torch\nVersion: 9.1.0\n", True, "torch 9.1.0", id="a version"),
        pytest.param(b"<html>", True, "is not valid", id="a page"),
    ],
)
def test_metadata_of_something_else_is_refused(
    index: SimpleIndex, metadata: bytes, *, promised: bool, words: str
) -> None:
    if promised:
        index.wheels = [replace(index.wheels[0], metadata=metadata)]
    else:
        index.faults[f"/files/{NAME}.metadata"] = Fault(body=metadata)
    asked = index_of(index)
    with pytest.raises(SourceError, match=words):
        asked.read_metadata(wheel_on(asked))


def test_a_server_without_ranges_does_not_send_its_wheels(index: SimpleIndex) -> None:
    index.gives_ranges = index.offers_metadata = False
    asked = index_of(index)
    with pytest.raises(SourceError, match="sends whole files only"):
        asked.read_metadata(wheel_on(asked))


def test_a_file_that_a_wheel_lacks_is_named(index: SimpleIndex) -> None:
    asked = index_of(index)
    with pytest.raises(SourceError, match=r"has no torch/nosuch\.py"):
        asked.peek(wheel_on(asked), "torch/nosuch.py")
