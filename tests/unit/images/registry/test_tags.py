"""Lists of tags, from registries that have many, and from some that are none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from images.registry.auth import Login
from images.registry.errors import (
    ImageNotFoundError,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)
from images.registry.tags import list_tags, next_page
from tests.kit.cases import cases
from tests.kit.fake_push_registry import PushRegistry
from tests.kit.simple_index import Fault, SimpleIndex

PATH = "/v2/team/image/tags/list"


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    tags = [f"1.{number}" for number in range(25)]
    with SimpleIndex(wheels=[], images={"team/image": tags}).serving() as running:
        yield running


@pytest.fixture
def registry() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    yield fake
    fake.close()


def tags_of(address: str, *, timeout_s: float = 5.0) -> tuple[str, ...]:
    return list_tags(f"{address}/team/image", timeout_s=timeout_s, login=Login)


@pytest.mark.parametrize("page", [1000, 25, 24, 10, 1])
def test_every_page_is_read(index: SimpleIndex, page: int) -> None:
    index.page_of_tags = page
    assert tags_of(index.address) == tuple(f"1.{number}" for number in range(25))


def test_a_repository_without_tags_has_none(registry: PushRegistry) -> None:
    registry.rule("GET", "tags/list", status=200, body=b'{"name": "team/image", "tags": null}')
    assert tags_of(registry.address) == ()


@cases(
    "link query",
    ("an address", '</v2/a/tags/list?n=2&last=x>; rel="next"', "n=2&last=x"),
    ("a host", "<http://h.example/v2/a/tags/list?last=x>; rel=next", "last=x"),
    ("of several", '</v2/a?n=1>; rel="prev", </v2/a?n=2>; rel="next"', "n=2"),
    ("only backwards", '</v2/a?n=1>; rel="prev"', None),
    ("without a query", '</v2/a/tags/list>; rel="next"', None),
    ("no address", '<http://[>; rel="next"', None),
    ("the last page", "", None),
)
def test_the_next_page_is_found(link: str, query: str | None) -> None:
    assert next_page(link) == query


def test_a_list_that_leads_back_to_itself_ends(registry: PushRegistry) -> None:
    link = {"Link": f'<{PATH}?n=1000>; rel="next"'}
    registry.rule("GET", "tags/list", status=200, headers=link, body=b'{"tags": ["1"]}', times=99)
    with pytest.raises(RegistryAnswerError, match="does not end"):
        tags_of(registry.address)


@cases(
    "status error",
    ("a login is asked for, in no known way", 401, RegistryDeniedError),
    ("not there", 404, ImageNotFoundError),
    ("too often", 429, RegistryDeniedError),
    ("in trouble", 500, RegistryUnreachableError),
)
def test_a_refusal_is_a_failure_with_a_way_out(
    registry: PushRegistry, status: int, error: type[RegistryDeniedError]
) -> None:
    registry.rule("GET", "tags/list", status=status, times=99)
    with pytest.raises(error, match=registry.address) as caught:
        tags_of(registry.address)
    assert ":latest" not in caught.value.message
    assert caught.value.fix


@cases(
    "body",
    ("a login page", b"<html>sign in</html>"),
    ("no list", b'{"tags": "1"}'),
    ("cut off", b'{"tags": ["1"'),
)
def test_another_answer_is_no_list(index: SimpleIndex, body: bytes) -> None:
    index.faults[PATH] = Fault(body=body)
    with pytest.raises(RegistryAnswerError):
        tags_of(index.address)


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_registry_that_keeps_one_waiting_costs_its_limit(
    registry: PushRegistry, how: str
) -> None:
    registry.rule("GET", "tags/list", times=99, **{how: True})
    started = time.monotonic()
    with pytest.raises(RegistryUnreachableError):
        tags_of(registry.address, timeout_s=0.5)
    assert time.monotonic() - started < 40
