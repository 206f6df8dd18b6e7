"""Which wheel that was built before is taken, and when a wheel that was built is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.store.built_wheels import BuiltWheels
from images.store.errors import StoreUnusableError
from provision.build.source.key import CachedWheel, fits, fitting, key_for, key_from_json
from provision.build.source.rules import BuiltWheelUnfitError
from provision.build.source.substitute import request_with_kept, with_local_wheels
from provision.build.source.wheel_cache import WheelCache
from provision.build.source.wheel_check import check_name
from provision.lock.solve import Solution
from provision.model.plan import Base, GpuVerdict, Plan, PlanError, Request
from tests.kit.cases import cases

H100 = GpuVerdict(name="H100", compute_capability="9.0", runs="sm_90", ok=True)
PLAN = Plan(
    verdict="direct",
    framework="pytorch",
    framework_version="2.14.1",
    cuda="13.0",
    wheel_tag="cu130",
    python="3.11",
    arch="x86_64",
    gpus=(H100,),
    base=Base(kind="bootstrap", reference="bootstrap", python="3.11", glibc="2.36"),
)


def key(version: str = "2.1.2", plan: Plan = PLAN, *capabilities: tuple[int, int]) -> Any:
    return key_for(
        plan,
        name="torch-scatter",
        version=version,
        sdist_sha256="a" * 64,
        capabilities=capabilities or [(9, 0)],
        environment={"FORCE_CUDA": "1"},
    )


def kept(version: str = "2.1.2", glibc: str | None = "2.34", **changes: Any) -> CachedWheel:
    return CachedWheel(
        key=replace(key(version), **changes),
        path=f"/wheels/torch_scatter-{version}.whl",
        sha256="b" * 64,
        size=7,
        glibc=glibc,
    )


@cases(
    "wheel expected",
    ("made for this plan", kept(), True),
    ("for more GPUs than these", kept(capabilities=("8.6", "9.0")), True),
    ("for another GPU", kept(capabilities=("8.6",)), False),
    ("another release", kept(framework_version="2.14.0"), False),
    ("another CUDA", kept(cuda="12.8", wheel_tag="cu128"), False),
    ("another Python", kept(python="3.12"), False),
    ("another processor", kept(arch="aarch64"), False),
    ("it needs a newer glibc than the base has", kept(glibc="2.38"), False),
    ("it needs no glibc", kept(glibc=None), True),
)
def test_a_wheel_fits_the_plan_that_it_was_made_for(wheel: CachedWheel, expected: bool) -> None:  # noqa: FBT001
    assert fits(wheel, PLAN) is expected


@cases(
    "requirement expected",
    ("the newest, as versions count", "torch-scatter", "2.10.0"),
    ("the newest that is allowed", "Torch_Scatter<2.5", "2.1.2"),
    ("none is allowed", "torch-scatter>3", None),
    ("another package", "torch-sparse", None),
    ("an address names its wheel", "torch-scatter @ https://h/x.whl", None),
)
def test_the_newest_wheel_that_is_allowed_is_taken(requirement: str, expected: str | None) -> None:
    found = fitting([kept("2.1.2"), kept("2.10.0"), kept("2.9.0")], requirement, PLAN)
    assert (found[0].key.version if found else None) == expected


def test_a_key_is_the_same_after_it_was_written() -> None:
    assert key_from_json(key().to_json()) == key()
    assert key().text == key().text
    assert key().text != key("2.1.3").text


@cases(
    "data",
    ("empty", {}),
    ("no variables", {**key().to_json(), "environment": 7}),
    ("no list", {**key().to_json(), "capabilities": None}),
)
def test_what_is_no_key_is_none(data: dict[str, Any]) -> None:
    assert key_from_json(data) is None


@cases(
    "name said",
    ("as asked", "torch_scatter-2.1.2-cp311-cp311-linux_x86_64.whl", ""),
    ("a local part", "torch_scatter-2.1.2+cu13-cp39-abi3-linux_x86_64.whl", ""),
    ("its name", "other-2.1.2-py3-none-any.whl", "not one of torch-scatter"),
    ("version", "torch_scatter-3-py3-none-any.whl", "not one of torch-scatter"),
    ("no name of a wheel", "x.whl", "not one of torch-scatter"),
    ("its Python", "torch_scatter-2.1.2-cp312-cp312-linux_x86_64.whl", "does not fit"),
)
def test_the_wheel_that_a_build_made_is_the_requested_one(name: str, said: str) -> None:
    if not said:
        check_name(name, key(), PLAN)
        return
    with pytest.raises(BuiltWheelUnfitError, match=said):
        check_name(name, key(), PLAN)


def a_wheel(place: Path, content: bytes = b"wheel") -> Path:
    path = place / "torch_scatter-2.1.2-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(content)
    return path


def test_a_built_wheel_is_found_by_its_key(tmp_path: Path) -> None:
    wheels = WheelCache(tmp_path / "wheels")
    assert wheels.with_key(key()) is None
    made = wheels.keep(a_wheel(tmp_path), key(), glibc="2.34", compiler=["nvcc 13.0"])
    again = wheels.keep(a_wheel(tmp_path), key(), glibc="2.34", compiler=["nvcc 13.0"])
    assert again == made
    assert WheelCache(tmp_path / "wheels").with_key(key()) == made
    assert wheels.with_key(key("2.1.3")) is None
    assert (made.glibc, made.compiler, made.size) == ("2.34", ("nvcc 13.0",), 5)


def test_a_wheel_that_has_changed_is_not_taken(tmp_path: Path) -> None:
    wheels = WheelCache(tmp_path / "wheels")
    made = wheels.keep(a_wheel(tmp_path), key(), glibc=None, compiler=())
    Path(made.path).write_bytes(b"other")
    assert wheels.with_key(key()) is None
    assert wheels.fitting("torch-scatter", PLAN) is None


def test_a_wheel_of_another_user_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory that several users share, anybody can have put it there."""
    wheels = WheelCache(tmp_path / "wheels")
    wheels.keep(a_wheel(tmp_path), key(), glibc=None, compiler=())
    assert wheels.fitting("torch-scatter", PLAN) is not None
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert wheels.fitting("torch-scatter", PLAN) is None
    with pytest.raises(StoreUnusableError, match="belongs to another user"):
        wheels.keep(a_wheel(tmp_path), key(), glibc=None, compiler=())


class Index:
    """What an index has of the requested packages."""

    def __init__(self, *has: str) -> None:
        self.leading = {"torch-scatter": "torch-scatter>=2", "einops": "einops"}
        self._has = has

    def has_wheel(self, name: str, plan: Plan) -> bool:
        assert plan == PLAN
        return name in self._has


REQUEST = Request(companions=("torch-scatter>=2", "einops"))


def test_a_request_names_the_file_of_the_wheel_and_its_framework(tmp_path: Path) -> None:
    wheels = WheelCache(tmp_path / "wheels")
    made = wheels.keep(a_wheel(tmp_path), key(), glibc=None, compiler=())
    asked: list[Request] = []

    def plan_for(request: Request) -> Plan:
        asked.append(request)
        return PLAN

    found = request_with_kept(REQUEST, tmp_path / "wheels", Index("einops"), plan_for)
    assert found is not None
    assert asked == [Request(companions=("einops",))]
    assert found.companions == (f"torch-scatter @ file://{made.path}", "einops")
    assert (found.framework_version, found.python) == ("==2.14.1", "3.11")
    assert found.led_by == "torch-scatter 2.1.2"


@cases(
    "has plan",
    ("the index has wheels of it by now", ["torch-scatter"], PLAN),
    ("the plan is for another Python", [], PLAN._replace(python="3.12")),
    ("there is no plan", [],
     Plan(verdict="none", framework="pytorch", error=PlanError(code="x", message="", fix=""))),
)  # fmt: skip
def test_a_wheel_is_not_taken(has: list[str], plan: Plan, tmp_path: Path) -> None:
    WheelCache(tmp_path).keep(a_wheel(tmp_path), key(), glibc=None, compiler=())
    assert request_with_kept(REQUEST, tmp_path, Index(*has), lambda _: plan) is None


def test_without_built_wheels_nothing_is_looked_up(tmp_path: Path) -> None:
    assert request_with_kept(REQUEST, None, Index(), lambda _: PLAN) is None
    assert request_with_kept(REQUEST, tmp_path / "none", Index(), lambda _: PLAN) is None


LOCK = """lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "torch-scatter"
version = "2.1.2"
[[packages.wheels]]
url = "{url}"
hashes = {{ sha256 = "%s" }}
""" % ("c" * 64)


def test_a_lock_with_a_wheel_of_this_machine_says_so_and_its_plan_names_no_path() -> None:
    url = "file:///home/me/torch_scatter-2.1.2-py3-none-any.whl"
    plan = PLAN._replace(requirements=("numpy", f"torch-scatter @ {url}"))
    found = with_local_wheels(Solution(text=LOCK.format(url=url), plan=plan))
    assert found.plan.requirements == ("numpy", "torch-scatter==2.1.2")
    [warning] = found.plan.warnings
    assert warning.code == "local-wheel"
    assert url in warning.message


def test_a_lock_without_one_is_the_same() -> None:
    solution = Solution(
        text=LOCK.format(url="https://h/torch_scatter-2.1.2-py3-none-any.whl"), plan=PLAN
    )
    assert with_local_wheels(solution) is solution


def test_the_store_measures_and_checks_built_wheels_and_never_clears_them(tmp_path: Path) -> None:
    room = BuiltWheels(tmp_path / "wheels")
    assert [(one.count, one.size) for one in room.du()] == [(0, 0)]
    room.keep(a_wheel(tmp_path), {})
    bad = room.keep(a_wheel(tmp_path, b"second"), {})
    assert [(one.kind, one.count, one.size) for one in room.du()] == [("built wheels", 2, 11)]
    assert room.gc(limit_bytes=0, everything=True).kept == 11
    assert room.verify(lambda *_: None).damaged == ()
    bad.path.write_bytes(b"!")
    assert [one.title for one in room.verify(lambda *_: None).damaged] == [bad.path.name]
    assert len(room.all()) == 1
