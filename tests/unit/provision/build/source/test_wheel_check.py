"""Whether a wheel that was built runs in the plan's image: real files, read as `inspect` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.build.source.key import key_for
from provision.build.source.rules import BuiltWheelUnfitError
from provision.build.source.wheel_check import inspect, judge_built, needed_glibc
from provision.model.plan import Base, Plan
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.wheel_maker import targets, wheel

PLAN = Plan(
    verdict="direct",
    framework="pytorch",
    framework_version="2.14.1",
    cuda="13.0",
    python="3.11",
    arch="x86_64",
    base=Base(kind="bootstrap", reference="a-base", python="3.11", glibc="2.36"),
)
NAME = "example/_C.cpython-311-x86_64-linux-gnu.so"


def module(*code: str, glibc: str = "2.34") -> bytes:
    head = elf(needed=["libc.so.6"], versions={"libc.so.6": [f"GLIBC_{glibc}", "GLIBC_2.2.5"]})
    return head + b"\0" * (-len(head) % 16) + (targets(*code) * 5 if code else b"")


def judged(content: bytes, *capabilities: tuple[int, int], tmp_path: Path) -> Any:
    path = tmp_path / "example-1.0-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(wheel({NAME: content}))
    key = key_for(
        PLAN,
        name="example",
        version="1.0",
        sdist_sha256="a" * 64,
        capabilities=capabilities,
        environment={},
    )
    return judge_built(inspect(path), key, PLAN, capabilities)


@cases(
    "content capabilities said",
    ("code for the GPU", module("sm_90"), [(9, 0)], "runs sm_90"),
    ("older code of its major", module("sm_80"), [(8, 6)], "runs sm_80 binary"),
    ("code that the driver compiles", module("compute_80"), [(9, 0)], "runs PTX"),
    ("no GPU code at all", module(), [(9, 0)], "no library has device code"),
)
def test_a_wheel_that_runs_is_taken(
    content: bytes, capabilities: list[tuple[int, int]], said: str, tmp_path: Path
) -> None:
    assert said in judged(content, *capabilities, tmp_path=tmp_path)


@cases(
    "content capabilities said",
    ("no code", module("sm_80"), [(9, 0)], "has no code for it: it has sm_80"),
    ("none for one of two GPUs", module("sm_90"), [(9, 0), (12, 0)], "12.0"),
    ("a newer glibc than the base has", module("sm_90", glibc="2.38"), [(9, 0)],
     "needs glibc 2.38, and the plan's base a-base has 2.36"),
)  # fmt: skip
def test_a_wheel_that_does_not_run_is_refused(
    content: bytes, capabilities: list[tuple[int, int]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BuiltWheelUnfitError) as caught:
        judged(content, *capabilities, tmp_path=tmp_path)
    assert said in caught.value.message


@cases(
    "content expected",
    ("the newest, as versions count", module(glibc="2.9"), "2.9"),
    ("no library", b"no library", None),
)
def test_the_glibc_that_a_wheel_needs(content: bytes, expected: str | None, tmp_path: Path) -> None:
    path = tmp_path / "example-1.0-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(wheel({NAME: content}))
    assert needed_glibc(inspect(path)) == expected
