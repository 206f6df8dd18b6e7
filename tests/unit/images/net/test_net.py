"""The rules of the one HTTP client: where a redirect may lead, and when a server is asked again."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import formatdate

import pytest

from images.net.address import followed, host_of, shown_url
from images.net.errors import BrokenOff, Kind
from images.net.head import Head, Reply
from images.net.http import HttpClient
from images.net.retries import Retries, Tries, busy, retry_after
from tests.kit.cases import cases
from tests.kit.fake_push_registry import PushRegistry

FAR = "https://a.example/x/y"
PLAIN = "http://a.example/x/y"
NEAR = "http://127.0.0.1:5000/x/y"


@cases(
    "url location expected",
    ("relative to where it was", FAR, "z?q=1", "https://a.example/x/z?q=1"),
    ("another host", FAR, "https://b.example/z", "https://b.example/z"),
    ("the same scheme", FAR, "//b.example/z", "https://b.example/z"),
    ("no login", FAR, "https://me:pw@b.example/z#f", "https://b.example/z"),
    ("unencrypted before", PLAIN, "http://b.example/z", "http://b.example/z"),
    ("on this machine", NEAR, "http://localhost:1/z", "http://localhost:1/z"),
    ("from this machine, encrypted", NEAR, FAR, FAR),
)
def test_a_redirect_leads(url: str, location: str, expected: str) -> None:
    assert followed(url, location) == expected


@cases(
    "url location kind",
    ("from https to http", FAR, PLAIN, "unencrypted"),
    ("from https to http on this machine", FAR, NEAR, "unencrypted"),
    ("from this machine to another, unencrypted", NEAR, PLAIN, "unencrypted"),
    ("nowhere", FAR, "", "redirect"),
    ("a file", FAR, "file:///etc/passwd", "redirect"),
    ("another protocol", FAR, "ftp://b.example:21/z", "redirect"),
    ("half an address", FAR, "https://[", "redirect"),
    ("no port", FAR, "https://b.example:99999/", "redirect"),
    ("for terminals", FAR, "https://b.example/\x1b[2J", "redirect"),
    ("not ASCII", FAR, "https://b.example/ü", "redirect"),
    ("too long", FAR, "/" + "x" * 20_000, "redirect"),
)
def test_a_redirect_is_not_followed(url: str, location: str, kind: Kind) -> None:
    with pytest.raises(BrokenOff, match="is not followed") as caught:
        followed(url, location)
    assert caught.value.kind == kind
    assert caught.value.final
    assert caught.value.host == host_of(url)


def test_nothing_secret_of_an_address_is_shown() -> None:
    assert shown_url("https://me:pw@h.example:1/a?sig=1#f") == "https://h.example:1/a"
    assert host_of("https://me:pw@h.example:1/a") == "h.example:1"
    assert host_of("https://[::1]:2/a") == "[::1]:2"


class Server:
    """Answers and breaks off as configured."""

    def __init__(self, *statuses: int | BrokenOff, **headers: str) -> None:
        self.left = list(statuses)
        self.headers = headers

    def __call__(self) -> Reply:
        found = self.left.pop(0)
        if isinstance(found, BrokenOff):
            raise found
        return Reply(status=found, headers=self.headers, url=FAR)


def slept(server: Server, retries: Retries) -> tuple[int, list[float]]:
    pauses: list[float] = []
    return Tries(retries, sleep=pauses.append).run(server).status, pauses


def test_a_server_is_asked_again_with_longer_and_longer_pauses() -> None:
    status, pauses = slept(Server(503, BrokenOff("x"), 500, 200), Retries(first_wait_s=1))
    assert status == 200
    for pause, longest in zip(pauses, (1, 2, 4), strict=True):
        assert 0.8 * longest <= pause <= longest


def test_the_last_answer_is_given_when_the_tries_are_used_up() -> None:
    assert slept(Server(503, 503, 502, 200), Retries(tries=3))[0] == 502


@pytest.mark.parametrize("status", [200, 302, 401, 404, 416, 501])
def test_what_would_not_go_better_is_asked_once(status: int) -> None:
    assert slept(Server(status), Retries()) == (status, [])


def test_what_can_never_go_better_is_told_at_once() -> None:
    server = Server(BrokenOff("shows another certificate", kind="certificate"), 200)
    with pytest.raises(BrokenOff, match="certificate") as caught:
        slept(server, Retries())
    assert "--ca-bundle" in caught.value.fix
    assert server.left == [200]


def test_a_server_gets_the_pause_that_it_asks_for_up_to_the_longest() -> None:
    assert slept(Server(429, 200, **{"retry-after": "7"}), Retries())[1] == [7]
    assert slept(Server(429, 200, **{"retry-after": "700"}), Retries(longest_wait_s=9))[1] == [9]


def test_progress_begins_the_count_anew() -> None:
    tries = Tries(Retries(tries=2), sleep=lambda _: None)
    trouble = BrokenOff("broke off")
    assert [tries.again(trouble, progress=progress) for progress in (True, True, False)] == [
        True,
        True,
        False,
    ]


def test_who_waits_hears_why_without_secrets() -> None:
    heard: list[str] = []
    retries = Retries(tries=3, on_wait=heard.append)
    slept(Server(busy(Head(status=503, headers={}, url=f"{FAR}?sig=1")), 503, 200), retries)
    assert heard == ["a.example answered HTTP 503; trying again in 1 s"]


@cases(
    "text expected",
    ("seconds", "12", 12),
    ("a date", formatdate(1060, usegmt=True), 60),
    ("a date that is past", formatdate(0, usegmt=True), 0),
    ("nonsense", "soon", None),
    ("too many digits", "9" * 20, None),
    ("nothing", "", None),
)
def test_a_servers_wish_is_read(text: str, expected: float | None) -> None:
    assert retry_after(Head(status=429, headers={"retry-after": text}), 1000) == expected


@pytest.fixture
def server() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    yield fake
    fake.close()


def test_what_is_redirected_goes_through_the_proxy_of_where_it_leads(server: PushRegistry) -> None:
    server.rule("GET", "", status=307, headers={"Location": f"http://localhost:{server.port}/v2/"})
    asked: list[str] = []

    def proxy(url: str) -> None:
        asked.append(host_of(url))

    client = HttpClient(proxy=proxy)
    client.send("GET", f"http://{server.address}/v2/a")
    client.close()
    assert asked == [server.address, f"localhost:{server.port}"]


def test_each_answer_is_heard_of_once_with_where_it_came_from(server: PushRegistry) -> None:
    server.rule("GET", "/v2/a", status=307, headers={"Location": "/v2/"}, times=2)
    heard: list[tuple[str, int, int]] = []
    client = HttpClient(on_answered=lambda url, status, size, _: heard.append((url, status, size)))
    url = f"http://{server.address}/v2/a"
    assert client.send("GET", url).status == 200
    assert client.send("GET", url, follow=False).status == 307
    client.close()
    assert heard == [(f"http://{server.address}/v2/", 200, 2), (url, 307, 0)]
