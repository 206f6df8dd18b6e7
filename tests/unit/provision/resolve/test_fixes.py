"""Every fix that a refusal prints plans: it is read from the text, followed, and planned again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from provision.catalog.loading import load
from provision.model.frozen import replace
from provision.model.plan import HostFacts, Request
from provision.model.request import parse_request
from provision.resolve import resolve
from tests.kit.hosts import host
from tests.unit.provision.resolve.test_beside import (
    test_frameworks_that_do_not_go_together_are_refused as beside_table,
)
from tests.unit.provision.resolve.test_companions import (
    test_what_does_not_belong_to_the_build_is_refused as companions_table,
)
from tests.unit.provision.resolve.test_drivers import (
    test_a_driver_that_cannot_drive_a_gpu_is_refused as driven_table,
)
from tests.unit.provision.resolve.test_drivers import (
    test_a_gpu_without_code_is_told_which_builds_have_it as code_table,
)
from tests.unit.provision.resolve.test_drivers import (
    test_a_refusal_has_the_exit_code_of_what_has_to_change as exit_table,
)

CATALOG = load()
_OPTION = re.compile(
    r"--(cuda|python|framework-version|flavour|with) ('[^']*'|[^\s,]+?)(?=[.,]?(?:\s|$))"
)
_REMOVED = re.compile(r"[Rr]emove --(base|with)(?: ('[^']*'|[^\s,]+?))?(?=[.,]?(?:\s|$))")
_DRIVER = re.compile(r"driver(?: to)? (\d+(?:\.\d+)*) or newer")
_BRANCH = re.compile(r"driver branch (\d+)")


def named(request: Request, way: str) -> Request:
    """The request after one of the ways of a fix."""
    removed = [(field, text.strip("'")) for field, text in _REMOVED.findall(way)]
    for field, text in removed:
        if field == "base":
            request = replace(request, base=None)
        else:
            kept = tuple(one for one in request.companions if one != text)
            assert kept != request.companions, f"{text} was not requested: {way}"
            request = replace(request, companions=kept)
    for field, quoted in _OPTION.findall(_REMOVED.sub("", way)):
        text = quoted.strip("'")
        if field == "with":
            name = re.split(r"[=<>!~\[]", text)[0]
            kept = tuple(
                one for one in request.companions if re.split(r"[=<>!~\[]", one)[0] != name
            )
            assert kept != request.companions, f"{name} was not requested: {way}"
            request = replace(request, companions=(*kept, text))
        elif field == "framework-version":
            request = replace(request, framework_version=f"=={text}")
        else:
            request = replace(request, **{field: text})
    return request


def ways(fix: str) -> Iterator[str]:
    """The ways that a fix names, each of which is to work on its own."""
    for part in fix.split(" Else: "):
        yield from re.split(r", or (?=use |remove )", part)


def untrue(hosts: list[HostFacts], request: Request) -> list[str]:
    """The ways of the fix of a refusal that do not plan."""
    error = resolve(hosts, request, CATALOG).error
    if error is None:
        return []
    wrong = []
    for way in ways(error.fix):
        asked, facts = named(request, way), hosts
        for driver in (*_DRIVER.findall(way), *(f"{one}.999" for one in _BRANCH.findall(way))):
            text = driver if "." in driver else f"{driver}.999"
            facts = [one.with_driver(text) for one in hosts]
        changed = asked != request or facts != hosts
        if changed and (again := resolve(facts, asked, CATALOG).error) is not None:
            wrong.append(f"{error.message} FIX {way} AGAIN {again.message}")
    return wrong


def rows(table: object) -> list[tuple[object, ...]]:
    """The values of a parametrized test."""
    mark = next(one for one in table.pytestmark if one.name == "parametrize")  # type: ignore[attr-defined]
    return [row.values for row in mark.args[1]]


def refusals() -> Iterator[tuple[list[HostFacts], Request]]:
    """The refused rows of the other tables."""
    for companions, asked, *_ in rows(companions_table):
        request = parse_request(companions=companions, **asked)  # type: ignore[arg-type]
        yield [host("550.54.14", "8.6")], request
    for companion, asked, *_ in rows(beside_table):
        request = parse_request(companions=[companion], **asked)  # type: ignore[arg-type,list-item]
        yield [host("580.95.05", "8.6")], request
    for facts, asked_for, *_ in (*rows(code_table), *rows(exit_table)):
        assert isinstance(facts, HostFacts)
        assert isinstance(asked_for, Request)
        yield [facts], asked_for
    for driver, gpus, *_ in rows(driven_table):
        yield [host(driver, *gpus)], Request()  # type: ignore[arg-type,misc]


def test_the_fixes_of_all_refused_rows_plan() -> None:
    assert [one for hosts, request in refusals() for one in untrue(hosts, request)] == []


@pytest.mark.parametrize("gpu", ["GTX 1080 Ti", "H100", "RTX 5090"])
def test_the_fixes_of_generated_requests_plan(gpu: str) -> None:
    """Old and new drivers, releases, CUDAs, Pythons, bases and companions."""
    wrong = []
    for driver, release, cuda in product(
        ("470.256.02", "515.65.01", "580.95.05"),
        ("1.13.1", "2.1.0", "2.8.0"),
        (None, "11.7", "13.0"),
    ):
        more: dict[str, Any]
        for more in ({}, {"python": "3.13"}, {"companions": ["torchvision==0.15.2"]}):
            request = parse_request(framework_version=release, cuda=cuda, **more)
            wrong += untrue([host(driver, gpu)], request)
    assert wrong == []


@pytest.mark.parametrize(
    ("gpu", "driver", "request_", "fix"),
    [
        pytest.param("A100", "515.65.01", Request(framework_version="==2.1.0", cuda="11.7"),
                     "Use --cuda 11.8, or use --framework-version 2.0.1.",
                     id="a release that has no build for the CUDA"),
        pytest.param("H100", "535.104.05", Request(framework_version="==2.0.1", cuda="11.7"),
                     "Use --cuda 11.8.", id="the CUDA without code for the GPU"),
        pytest.param("RTX 4090", "580.95.05",
                     Request(framework_version="==2.11.0", python="3.12", base="bootstrap"),
                     "Use --python 3.11, or remove --base.", id="a base without that Python"),
    ],
)  # fmt: skip
def test_the_smallest_changes_are_named(gpu: str, driver: str, request_: Request, fix: str) -> None:
    error = resolve([host(driver, gpu)], request_, CATALOG).error
    assert error is not None
    assert error.fix == fix
