"""What the error for packages without a wheel tells to type: each of its words must work."""

from __future__ import annotations

from typing import Any

import pytest

from provision.build.source.devel import devel_plan
from provision.build.source.refusal import far_behind, no_compiler, source_only, with_passed_over
from provision.build.source.rules import needs_more
from provision.catalog.loading import load
from provision.errors import NothingCompatibleError
from provision.lock.solve import Solution
from provision.lock.sources import NotBuilt, SkippedReleases
from provision.model.plan import PlanError, Request
from provision.resolve import resolve
from tests.kit.cases import cases
from tests.kit.hosts import host
from tests.unit.provision.lock.test_lock import PLAN

CU128 = PLAN._replace(framework_version="2.8.0", cuda="12.8", python="3.12", arch="x86_64")


def lacking(name: str, **more: Any) -> NotBuilt:
    plain = {"why": "compiler", "message": "its build needs a C compiler"}
    return NotBuilt(name=name, version="1.4", **{**plain, **more})


PADDLE = lacking("paddlepaddle-gpu", why="elsewhere", message="its wheels are on Paddle's index")
LACKS = PlanError(code="no-devel-base", message="CUDA 11.7 has no nvcc.", fix="Take --cuda 12.1")
NVIDIA = "https://pypi.nvidia.com"


@cases(
    "blocked more fixes",
    ("a compiler: its wheel is built for the same plan", [lacking("fastwords")], {},
     ["provision wheel fastwords==1.4 --framework pytorch --framework-version 2.8.0 "]),
    ("several, beside the other packages", [lacking("fastwords"), lacking("slowwords")],
     {"others": ("fastwords", "einops<1")},
     ["provision wheel fastwords==1.4 slowwords==1.4 --with 'einops<1' "]),
    ("what was typed is typed once", [lacking("fastwords")],
     {"typed": "--cuda 12.8 --python 3.12 --gpu A100"},
     ["--framework-version 2.8.0 --cuda 12.8 --python 3.12 --gpu A100\n"]),
    ("an index of its maker, for a CUDA that the hosts run", [PADDLE], {"plans": {"12.6"}},
     ["--cuda 12.6 --index https://www.paddlepaddle.org.cn/packages/stable/cu126/"]),
    ("an index without a CUDA that the hosts run", [PADDLE], {},
     ["--with 'paddlepaddle-gpu @ https://HOST/NAME.whl'"]),
    ("NVIDIA's index", [lacking("tensorrt", why="elsewhere")], {}, [f"--index {NVIDIA}"]),
    ("NVIDIA's index, which was named and does not answer: no circle",
     [lacking("tensorrt-llm", why="elsewhere")],
     {"named": [f"{NVIDIA}/simple"], "never": "--index", "silent": True},
     ["curl -I https://pypi.nvidia.com/"]),
    ("NVIDIA's index, which was named and has no wheel that fits",
     [lacking("tensorrt-llm", why="elsewhere")], {"named": [f"{NVIDIA}/simple"], "never": "curl"},
     ["--with 'tensorrt-llm @ https://HOST/NAME.whl'"]),
    ("another index that was named", [PADDLE],
     {"named": ["", "https://i.example/simple"], "never": "curl"},
     ["--with 'paddlepaddle-gpu @ https://HOST/NAME.whl'"]),
    ("no compiler for the plan: no command that fails", [lacking("fastwords")],
     {"lacks": LACKS, "never": "provision wheel"},
     ["fastwords: CUDA 11.7 has no nvcc. Take --cuda 12.1"]),
    ("Rust, which the devel image has not", [lacking("ferrous", message="its build needs Rust")],
     {}, ["--with 'ferrous @ https://HOST/NAME.whl'"]),
    ("each its own way",
     [lacking("fastwords"), lacking("oldnews", why="failed", message="no setup.py")], {},
     ["provision wheel fastwords==1.4 ", "--with 'oldnews @ https://HOST/NAME.whl'"]),
)  # fmt: skip
def test_what_is_typed(blocked: list[NotBuilt], more: dict[str, Any], fixes: list[str]) -> None:
    plans = more.get("plans", set())
    typed, others = more.get("typed", "--gpu A100"), more.get("others", ())
    named, lacks = more.get("named", ()), more.get("lacks")
    silent = more.get("silent", False)
    found = source_only(
        blocked, CU128, typed, others, plans.__contains__, named, lacks, lambda _: not silent
    )
    assert found.exit_code == (5 if silent else 3)
    assert all(f"{one.name} 1.4: " in found.message for one in blocked)
    for text in fixes:
        assert text in f"{found.fix}\n"
    assert more.get("never", "\0") not in found.fix


@cases(
    "version cuda base fix",
    ("NVIDIA's packages have it", "==2.9.1", "13.0", "bootstrap", ""),
    ("another CUDA has it", None, "12.8", "bootstrap", "Take a CUDA that has one: --cuda 13"),
    ("nowhere without a registry, and no other CUDA of that release has it", "==2.0.1", "11.7",
     "bootstrap", "Give the address of a wheel"),
)  # fmt: skip
def test_without_a_compiler_nothing_is_downloaded(
    version: str | None, cuda: str, base: str, fix: str
) -> None:
    facts = host("580.95.05", "8.0")
    request = Request(framework_version=version, cuda=cuda, base=base, python="3.11")
    plan = resolve([facts], request, load())
    assert plan.error is None
    found = no_compiler(plan, [facts], request, load())
    assert (found.fix if found else "").startswith(fix)
    assert (found is None) is not bool(fix)
    if found is not None:  # what `provision wheel` says before it downloads
        with pytest.raises(NothingCompatibleError) as caught:
            devel_plan(plan, [facts], request, load())
        assert "--flavour" not in caught.value.fix


@cases(
    "declared setup why",
    ("nothing", ["setuptools>=61"], "from setuptools import setup", ""),
    ("CMake", ["cmake"], "", "CMake"),
    ("its setup.py", [], "def f():\n    import torch\n", "imports torch"),
    ("a comment", [], "# import torch\n", ""),
)
def test_what_is_not_built_in_the_sandbox(declared: list[str], setup: str, why: str) -> None:
    found = needs_more("slowwords", declared, setup)
    assert why in found
    assert bool(found) is bool(why)


def entries(version: str) -> str:
    wheel = f'{{url = "https://h/a-{version}-py3-none-any.whl", hashes = {{sha256 = "1"}}}}'
    row = f'[[packages]]\nname = "a"\nversion = "{version}"\nwheels = [{wheel}]\n'
    return f'lock-version = "1.0"\ncreated-by = "uv"\n{row}'


@cases(
    "mine newest days behind",
    ("the one before", "3.1", "3.2", {}, False),
    ("eight releases before", "1.0", "9.0", {}, True),
)
def test_a_release_that_is_far_older_is_not_taken_silently(
    mine: str, newest: str, days: dict[str, str], *, behind: bool
) -> None:
    passed = SkippedReleases(packages=(lacking("a"),), releases={"a": newest}, uploaded=days)
    found = Solution(text=entries(mine), plan=CU128)
    assert far_behind(found, passed) is behind
    [warning] = with_passed_over(found, passed).plan.warnings
    assert (warning.code, "a 1.4 has only its source" in warning.message) == (
        "source-passed-over",
        True,
    )
