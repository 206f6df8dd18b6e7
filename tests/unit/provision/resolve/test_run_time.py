"""The base and the flavour of a plan have what its packages need when they run."""

from __future__ import annotations

import pytest

from provision.catalog.loading import load
from provision.catalog.needs import needs_of
from provision.model.plan import HostFacts, Plan, Request
from provision.resolve import resolve
from provision.resolve.run_time import (
    NOTE,
    WARNING,
    has,
    plan_for_needs,
    requested_needs,
    with_remarks,
)
from tests.kit.cases import cases
from tests.kit.hosts import host

H100 = host("580.95.05", "9.0")
OLD = host("535.104.05", "8.0")  # its CUDA 12 has no nvcc among NVIDIA's wheels
FORWARD = host("470.82.01", "8.0")


def planned(request: Request, facts: HostFacts = H100) -> Plan:
    catalog, needs = load(), requested_needs(request)
    asked, plan = plan_for_needs([facts], request, catalog, needs)
    return with_remarks(plan, [facts], asked, catalog, needs)


def base_of(plan: Plan) -> str:
    """The base in a few words: its kind or name, its packages, and the flavour."""
    assert plan.base is not None
    name = plan.base.reference.removeprefix("docker.io/library/")
    return " ".join((name, *plan.base.apt, *([plan.flavour] if plan.flavour == "devel" else ())))


def remarks(plan: Plan) -> str:
    notes = [note.message for note in plan.notes if note.code == NOTE]
    return " ".join(
        (*notes, *(f"{one.message} {one.fix}" for one in plan.warnings if one.code == WARNING))
    )


COMPILERS = "g++ make python3-dev"


@cases(
    "request_ base says",
    ("a compiler, in a base of Debian packages", Request(companions=("vllm",)),
     f"bootstrap {COMPILERS}",
     ("The base has g++, make and python3-dev, since vllm needs a C and a C++ "
      "compiler (it starts kernels of Triton, which compiles C).")),
    ("in the base that was requested", Request(companions=("vllm",), base="bootstrap"),
     f"bootstrap {COMPILERS}", "since vllm"),
    ("a Python that Debian does not have: the full image",
     Request(companions=("vllm",), python="3.12"), "python:3.12-bookworm",
     "python:3.12-bookworm has a C and a C++ compiler, since vllm"),
    ("an image that nobody knows is kept", Request(companions=("vllm",), base="team/base:7"),
     "team/base:7",
     ("what team/base:7 has is not known. Use --apt g++ --apt make --apt "
      "python3-dev, which an engine installs, or use --base bootstrap.")),
    ("so is one without a compiler",
     Request(companions=("vllm",), base="python:3.12-slim-bookworm"), "python:3.12-slim-bookworm",
     "this image has none. Use --apt g++"),
    ("nothing installs packages in an image of this machine",
     Request(companions=("torchcodec",), base="oci:base"), "oci:base",
     "what oci:base has is not known. Use --base bootstrap."),
    ("packages of --apt count",
     Request(companions=("torchcodec",), base="team/base:7", apt=("ffmpeg",)), "team/base:7 ffmpeg",
     "The base has ffmpeg, since torchcodec"),
    ("Debian's Python comes without its shared library", Request(companions=("torchcodec",)),
     "bootstrap ffmpeg libpython3-dev", "torchcodec needs Python's shared library (it loads it"),
    ("a named image that has it",
     Request(companions=("vllm",), base="m.example/python:3.12-bookworm"),
     "m.example/python:3.12-bookworm", "has a C and a C++ compiler, since"),
    ("nvcc: the devel flavour", Request(companions=("gsplat",)), f"bootstrap {COMPILERS} devel",
     "The base has nvcc, g++, make and python3-dev, since gsplat needs"),
    ("a flavour that was named is kept", Request(companions=("gsplat",), flavour="runtime"),
     "python:3.13-slim-bookworm", "this image has none. Use --flavour devel."),
    ("a devel image on a base that nobody knows",
     Request(companions=("gsplat",), base="team/base:7", flavour="devel"), "team/base:7 devel",
     "is not known. Use --flavour devel --base bootstrap."),
    ("no wheel has nvcc for this CUDA: NVIDIA's image needs an engine",
     Request(companions=("gsplat",), cuda="12.6"), "python:3.13-slim-bookworm",
     "this image has none. Use --flavour devel."),
    ("a CUDA whose wheels have it", Request(companions=("gsplat",), cuda="12.6", base="bootstrap"),
     "bootstrap", "Use --flavour devel --base bootstrap --cuda 13."),
    ("a library", Request(companions=("opencv-python",)), "bootstrap libgl1 libglib2.0-0",
     "(it brings Qt, which is linked with them), which opencv-python-headless"),
    ("no base has it: another package", Request(companions=("opencv-python",), python="3.12"),
     "python:3.12-slim-bookworm",
     ("Request opencv-python-headless in place of opencv-python, or use "
      "--base bootstrap --python 3.11.")),
    ("all at once", Request(companions=("torchcodec", "gsplat", "gitpython")),
     "bootstrap ffmpeg g++ git libpython3-dev make python3-dev devel",
     "nvcc, ffmpeg, g++, git, libpython3-dev, make and python3-dev"),
    ("for torch.compile", Request(companions=("triton",)), f"bootstrap {COMPILERS}",
     "since triton"),
    ("nothing is needed", Request(companions=("torchvision",)), "python:3.13-slim-bookworm", ""),
    ("no package", Request(), "python:3.13-slim-bookworm", ""),
    ("pinned by a project, as PyTorch's own requirement",
     Request(companions=("triton",), settled=True), "python:3.13-slim-bookworm", ""),
)  # fmt: skip
def test_the_base_has_what_the_packages_need(request_: Request, base: str, says: str) -> None:
    plan = planned(request_)
    assert base_of(plan) == base
    assert says in remarks(plan)
    assert bool(remarks(plan)) == bool(says)


@pytest.mark.parametrize("facts", [H100, OLD, FORWARD], ids=["580", "535", "470"])
@pytest.mark.parametrize("names", ["vllm", "gsplat", "opencv-python", "torchcodec triton"])
def test_the_build_of_the_framework_stays(names: str, facts: HostFacts) -> None:
    request = Request(companions=tuple(names.split()))
    plan, plain = planned(request, facts), resolve([facts], request, load())
    assert (plan.framework_version, plan.wheel_tag) == (plain.framework_version, plain.wheel_tag)


def test_images_of_nvidia_get_the_packages_from_an_engine() -> None:
    tensorflow = Request(framework="tensorflow", framework_version="<2.10", companions=("vllm",))
    plan = planned(tensorflow, OLD)
    assert base_of(plan).startswith("docker.io/nvidia/cuda:")
    assert base_of(plan).endswith(COMPILERS)


@pytest.mark.parametrize(
    "names", ["gsplat", "vllm", "opencv-python", "torchcodec", "gsplat torchcodec"]
)
@pytest.mark.parametrize(
    "limits",
    [
        {"python": "3.12"}, {"base": "team/base:7"}, {"cuda": "12.6"}, {"flavour": "runtime"},
        {"cuda": "12.6", "base": "bootstrap"}, {"python": "3.12", "flavour": "runtime"},
    ],
    ids=str,
)  # fmt: skip
def test_every_option_in_a_fix_gives_a_plan_that_has_it(names: str, limits: dict[str, str]) -> None:
    plan = planned(Request(companions=tuple(names.split()), **limits))  # type: ignore[arg-type]
    for warning in plan.warnings:
        _, use, options = warning.fix.rpartition("se --")
        if warning.code != WARNING or not use:
            continue
        words = f"--{options.removesuffix('.')}".split()
        given = {name[2:]: value for name, value in zip(words[::2], words[1::2], strict=True)}
        request = Request(companions=tuple(names.split()), **{**limits, **given})  # type: ignore[arg-type]
        cured = planned(request)
        kinds = {need.kind for need in requested_needs(request) if need.package in warning.message}
        assert all(has(cured, kind) for kind in kinds), (warning, cured.base)


def test_a_base_is_for_the_build_that_the_packages_led_to() -> None:
    catalog, needs = load(), needs_of(["gsplat", "torchcodec"], ["gsplat", "torchcodec"])
    led = resolve([H100], Request(cuda="12.8"), catalog)
    assert plan_for_needs([H100], Request(), catalog, needs).request.flavour == "devel"
    request = plan_for_needs([H100], Request(), catalog, needs, led).request
    assert request.flavour is None  # NVIDIA's wheels for that CUDA have no nvcc
    assert request.apt == ("ffmpeg", "libpython3-dev")
