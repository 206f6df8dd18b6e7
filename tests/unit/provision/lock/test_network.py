"""Whether the host of an index has an address, which is known without uv."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.host.uv import index_logins
from provision.lock.network import no_such_host
from provision.lock.uv import access_refused
from tests.kit.cases import cases

NONE = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
FOR_NOW = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    no_such_host.cache_clear()
    yield
    no_such_host.cache_clear()


@cases(
    "answer proxy known",
    ("a host without an address cannot be asked", NONE, "", True),
    ("a question that failed for now says nothing", FOR_NOW, "", False),
    ("a proxy looks it up itself", NONE, "http://proxy.test:3128", False),
    ("a host with an address is asked by uv", None, "", False),
)
def test_an_index_is_left_out_only_if_its_host_has_no_address(
    answer: OSError | None, proxy: str, *, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*_: object) -> list[object]:
        if answer is not None:
            raise answer
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    if proxy:
        monkeypatch.setenv("https_proxy", proxy)
    why = no_such_host("https://wheels.test/simple/")
    assert (why is not None) == known
    assert why is None or "Name or service not known" in why


URL = "https://p.example/simple/"
MINE = {"p.example": ("me", "w/d")}


@cases(
    "env toml names expected",
    ("no login", {}, "", {"corp": URL}, {}),
    ("an address with a name", {"UV_INDEX": "corp=https://me:w%2Fd@p.example/simple"}, "", {},
     MINE),
    ("the second address of a variable",
     {"UV_EXTRA_INDEX_URL": "https://o.example/ https://me:w%2Fd@p.example/s"}, "", {}, MINE),
    ("a page of links", {"UV_FIND_LINKS": "/a,https://me:w%2Fd@p.example/s"}, "", {}, MINE),
    ("variables for a name of the project",
     {"UV_INDEX_MY_CORP_USERNAME": "me", "UV_INDEX_MY_CORP_PASSWORD": "w/d"}, "", {"my-corp": URL},
     MINE),
    ("variables for a name of the configuration",
     {"UV_INDEX_CORP_USERNAME": "me", "UV_INDEX_CORP_PASSWORD": "w/d"},
     f'[[index]]\nname = "corp"\nurl = "{URL}"', {}, MINE),
    ("an address of the configuration", {}, 'extra-index-url = ["https://me:w%2Fd@p.example/s"]',
     {}, MINE),
    ("the login in an address is the stronger",
     {"UV_INDEX_CORP_USERNAME": "other", "UV_INDEX_URL": "https://me:w%2Fd@p.example/"}, "",
     {"corp": URL}, MINE),
    ("addresses that are malformed", {"UV_INDEX": "https://[/"}, "index = 3", {"x": "http://["},
     {}),
)  # fmt: skip
def test_the_logins_of_the_users_indexes(
    env: dict[str, str],
    toml: str,
    names: dict[str, str],
    expected: dict[str, tuple[str, str]],
    tmp_path: Path,
) -> None:
    (tmp_path / "uv.toml").write_text(toml)
    own = {"HOME": str(tmp_path), "PATH": "", "UV_CONFIG_FILE": str(tmp_path / "uv.toml"), **env}
    assert index_logins(own, names) == expected


@cases(
    "reason host says",
    ("an index that demands a login",
     ("refused: An index URL (https://p.example:4/s/) could not be queried due to a "
      "lack of valid authentication credentials (401 Unauthorized)"), "p.example",
     "machine p.example login USER"),
    ("a proxy that does", "unreachable: tunnel error: proxy authorization required", "",
     "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"),
    ("an authority that is not trusted", "unreachable: invalid peer certificate: UnknownIssuer", "",
     "--ca-bundle FILE"),
)  # fmt: skip
def test_a_refused_access_names_what_to_type(reason: str, host: str, says: str) -> None:
    found = access_refused(["unreachable: dns error", reason])
    assert found is not None
    assert found[0] == host
    assert says in found[2]


def test_other_reasons_are_no_refused_access() -> None:
    assert access_refused(["unreachable: dns error", "no solution: x"]) is None
