"""The places that a project or the environment names, and mirrors that serve a directory listing.
uv and the server are real.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.errors import IndexUnreachableError
from provision.lock.lockfile import parse_lock
from provision.lock.places import (
    is_listing,
    naming_silent,
    refuse_silent,
    uv_places,
    with_silent_pages,
)
from provision.lock.solve import NoSolutionError, find_wheels, lock_of
from provision.model.plan import Base, DeclaredIndex, IndexCandidate, Plan, Request
from tests.kit.cases import cases
from tests.kit.local_index import LocalIndex, pure, serving_uv, torch

TORCH = torch("+cu117")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalIndex]:
    with serving_uv(monkeypatch, tmp_path) as server:
        server.listed = [TORCH]
        yield server


def nobody() -> str:
    """An index at a port where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"http://127.0.0.1:{door.getsockname()[1]}/whl/cu117"


def plan(*indexes: IndexCandidate, more: tuple[str, ...] = ()) -> Plan:
    return Plan(
        verdict="direct",
        framework="pytorch",
        framework_version="2.0.1",
        cuda="11.7",
        wheel_tag="cu117",
        python="3.11",
        arch="x86_64",
        base=Base(kind="registry", reference="b:1", python="3.11", glibc="2.36"),
        requirements=("numpy<2", *more),
        indexes=indexes,
    )


def candidate(url: str, name: str = "PyTorch index (cu117)") -> IndexCandidate:
    return IndexCandidate(name=name, url=url, requirement="torch==2.0.1+cu117", why="a test")


def indexes_of(plan: Plan, request: Request) -> dict[str, str]:
    """The packages of the lock, with the index of each."""
    found = find_wheels(plan, request, ca_bundle=None, offline=False, tell=print)
    lock = lock_of(found, ca_bundle=None, offline=False)
    torch = next(wheel for wheel in lock.wheels if wheel.name == "torch")
    assert torch.sha256 == hashlib.sha256(TORCH[1]).hexdigest()
    return {str(one.name): str(one.index) for one in parse_lock(lock.text).packages}


@pytest.mark.parametrize(
    ("behaviour", "listing"),
    [
        ("listing", True), ("bare-listing", True), ("simple", False), ("denied", False),
        ("broken", False), ("truncated", False),
    ],
)  # fmt: skip
def test_a_page_of_links_is_known_by_its_links(
    behaviour: str, index: LocalIndex, *, listing: bool
) -> None:
    assert is_listing(index.url(behaviour), None) == listing


@pytest.mark.parametrize("behaviour", ["listing", "bare-listing"])
def test_a_mirror_that_serves_a_listing_is_an_index(behaviour: str, index: LocalIndex) -> None:
    """Without hashes on the page uv downloads the wheel for its hash."""
    url = index.url(behaviour)
    found = indexes_of(plan(candidate(url, "--index"), candidate(nobody())), Request(index_url=url))
    assert found == {"torch": url, "numpy": index.url("simple")}


@pytest.mark.parametrize(
    ("kind", "behaviour"), [("links", "listing"), ("index", "listing"), ("index", "good")]
)
def test_what_a_project_names_is_asked(kind: str, behaviour: str, index: LocalIndex) -> None:
    place = DeclaredIndex(index.url(behaviour), kind, "requirements.txt, line 1")  # type: ignore[arg-type]
    request = Request(indexes=(place,), declared_in="requirements.txt")
    assert indexes_of(plan(candidate(nobody())), request)["torch"] == place.url


@pytest.mark.parametrize(
    ("variable", "behaviour"),
    [("UV_FIND_LINKS", "listing"), ("UV_INDEX", "good"), ("UV_EXTRA_INDEX_URL", "good")],
)
def test_what_the_environment_names_is_asked_for_the_build(
    variable: str, behaviour: str, index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, index.url(behaviour))
    assert indexes_of(plan(candidate(nobody())), Request())["torch"] == index.url(behaviour)


def test_an_index_of_the_environment_counts_beside_the_plan_s(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan's index took its place in UV_INDEX."""
    index.more = [pure("ours", "1.0")]
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url("nothing"))
    monkeypatch.setenv("UV_INDEX", index.url("simple"))
    good = candidate(index.url("good"))
    assert indexes_of(plan(good, more=("ours",)), Request())["ours"] == index.url("simple")


def test_the_first_index_of_the_file_that_has_a_package_has_it_alone(index: LocalIndex) -> None:
    """uv's safe strategy: a newer version on a later index, which anybody may upload, is not
    taken.
    """
    index.listed = []
    index.more = [pure("ours", "9.0")]
    first = DeclaredIndex(index.url("good"), "index")
    last = DeclaredIndex(index.url("simple"), "index")
    for order in ((first, last), (last, first)):
        request = Request(indexes=order, declared_in="requirements.txt")
        found = indexes_of(plan(candidate(nobody()), more=("ours",)), request)
        assert found == {
            "torch": index.url("good"),
            "numpy": index.url("simple"),
            "ours": index.url("simple"),
        }


INDEX, OTHER = DeclaredIndex("https://a.test/simple", "index"), "https://b.test/simple"
DEFAULT = DeclaredIndex("https://d.test/simple", "default")
LINKS = DeclaredIndex("https://l.test/page,1.html", "links")


@cases(
    "index declared env expected",
    ("nothing-is-added", None, (), {"UV_INDEX": OTHER}, {}),
    ("the-plan-s-goes-first", "https://x.test/simple", (INDEX,), {"UV_INDEX": OTHER},
     {"UV_INDEX": f"https://x.test/simple {INDEX.url} {OTHER}"}),
    ("a-comma-is-escaped", None, (LINKS,), {"UV_FIND_LINKS": OTHER},
     {"UV_FIND_LINKS": f"https://l.test/page%2C1.html,{OTHER}"}),
    ("a-default", None, (DEFAULT,), {}, {"UV_DEFAULT_INDEX": DEFAULT.url}),
    ("the-user-s-default-is-kept", None, (DEFAULT,), {"UV_DEFAULT_INDEX": OTHER}, {}),
    ("the-user-s-older-variable-is-kept", None, (DEFAULT,), {"UV_INDEX_URL": OTHER}, {}),
)  # fmt: skip
def test_uv_is_given_the_places_in_their_order(
    index: str | None,
    declared: tuple[DeclaredIndex, ...],
    env: dict[str, str],
    expected: dict[str, str],
) -> None:
    assert uv_places(index, declared, env, ca_bundle=None, offline=True) == expected


def test_a_page_that_does_not_answer_is_left_out_and_named_in_a_refusal(index: LocalIndex) -> None:
    there = DeclaredIndex(index.url("listing"), "links")
    gone = [
        DeclaredIndex(url, "links", "a.txt, line 3") for url in (nobody(), index.url("nothing"))
    ]
    other = DeclaredIndex(nobody(), "index")
    request = with_silent_pages(Request(indexes=(there, *gone, other)), None)
    assert [one.kind for one in request.indexes] == ["links", "silent", "silent", "index"]
    places = uv_places(None, request.indexes[:3], {}, ca_bundle=None, offline=False)
    assert places == {"UV_FIND_LINKS": there.url}
    with pytest.raises(NoSolutionError) as caught, naming_silent(request):
        raise NoSolutionError("No wheel.", fix=".")
    assert f"{gone[0].url} (a.txt, line 3) and {gone[1].url}" in caught.value.message


@cases(
    "kind env refused",
    ("an-index", "index", {}, True),
    ("a-default", "default", {}, True),
    ("the-user-has-another-default", "default", {"UV_DEFAULT_INDEX": "x"}, False),
    ("a-page", "links", {}, False),
)
def test_an_index_without_an_address_is_refused_with_its_line(
    kind: str, env: dict[str, str], *, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is on it must not be taken from another one under its name."""
    monkeypatch.setattr("provision.lock.places.no_such_host", lambda _: "no such name")
    place = DeclaredIndex("https://w.test/simple", kind, "a.txt, line 1")  # type: ignore[arg-type]
    request = Request(indexes=(place,), companions=("own==1",))
    with pytest.raises(IndexUnreachableError) if refused else contextlib.nullcontext() as caught:
        refuse_silent(request, env)
    if caught is not None:
        assert caught.value.message == (
            "https://w.test/simple, which a.txt, line 1 names, could not be reached: no such name. "
            "It may have own==1."
        )


def test_a_mirror_that_answered_is_not_called_unreachable(index: LocalIndex) -> None:
    """It has other releases; advice about the network would be wrong for it."""
    index.listed = [torch("+cu118")]
    url = index.url("listing")
    silent = nobody()
    asked = plan(candidate(url, "--index"), candidate(silent))
    with pytest.raises(IndexUnreachableError) as caught:
        find_wheels(asked, Request(index_url=url), ca_bundle=None, offline=False, tell=print)
    assert caught.value.message == (
        f"No index that answers has torch==2.0.1+cu117, and {silent}/torch/ could not be reached."
    )


def test_offline_says_that_nobody_was_asked(index: LocalIndex) -> None:
    asked = plan(candidate(index.url("good")))
    with pytest.raises(IndexUnreachableError, match="--offline forbids to ask"):
        find_wheels(asked, Request(), ca_bundle=None, offline=True, tell=print)
    assert index.asked == []


def test_a_malformed_variable_is_quoted_from_uv(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX", "http://[")
    with pytest.raises(NoSolutionError) as caught:
        find_wheels(
            plan(candidate(index.url("good"))), Request(), ca_bundle=None, offline=False, tell=print
        )
    assert "http://[" in caught.value.detail
