"""Whether the host of an index has an address, which is known without uv."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from provision.lock.network import no_such_host

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


@pytest.mark.parametrize(
    ("answer", "proxy", "known"),
    [
        pytest.param(NONE, "", True, id="a host without an address cannot be asked"),
        pytest.param(FOR_NOW, "", False, id="a question that failed for now says nothing"),
        pytest.param(NONE, "http://proxy.test:3128", False, id="a proxy looks it up itself"),
        pytest.param(None, "", False, id="a host with an address is asked by uv"),
    ],
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
