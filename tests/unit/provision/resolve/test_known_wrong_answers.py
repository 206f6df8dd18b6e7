"""Wrong answers that other tools gave, each with the thread where a user met it: never ours.

The numbers in the ids are those under which the answers were collected.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from provision.catalog.loading import load
from provision.model.plan import HostFacts, Plan, Request
from provision.resolve import resolve
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()


def plan(request: Request, *hosts: HostFacts) -> Plan:
    return resolve(hosts, request, CATALOG)


def release(made: Plan) -> tuple[int, ...]:
    return tuple(int(part) for part in (made.framework_version or "0").split("."))


@dataclass(frozen=True)
class Case:
    """What was asked, and what has to come out; None: not the point of this case."""

    request: Request
    host: HostFacts
    verdict: str | None = None
    tags: frozenset[str] | None = None
    at_least: tuple[int, ...] = (0,)
    runs: str | None = None


CASES = [
    pytest.param(
        Case(Request(), host("580.95.05", "NVIDIA GeForce GTX 1080 Ti"), "direct",
             frozenset({"cu126"}), runs="sm_60 binary"),
        id="1 a GTX 1080 Ti gets the build with its code, not the driver's newest (uv 14742)"),
    pytest.param(Case(Request(), host("580.95.05", "NVIDIA GeForce GTX 1650"), "direct",
                      frozenset({"cu126", "cu130"}), runs="sm_75"),
                 id="2 a GTX 1650 gets a CUDA build, never the CPU wheel (uv 17236)"),
    pytest.param(
        Case(Request(python="3.9"), host("580.95.05", "NVIDIA GeForce RTX 4090"), "direct",
             frozenset({"cu126", "cu128", "cu129"}), (2, 8)),
        id="3 the newest index has no wheel for Python 3.9, so an older one serves (uv 12357)"),
    pytest.param(Case(Request(cuda="11.7", framework_version="==1.13.1"),
                      host("515.65.01", "NVIDIA GeForce RTX 3090"), "direct", frozenset({"cu117"}),
                      (1, 13, 1)), id="4 CUDA 11.7 with torch 1.13.1 is known (cog 1043, 1862)"),
    pytest.param(Case(Request(cuda="11.3"), host("470.82.01", "NVIDIA GeForce RTX 3090"), "direct",
                      frozenset({"cu113"}), (1, 12, 1), "sm_86"),
                 id="5 CUDA 11.3 gives a build for 11.3, not for 10.2 (cog 436)"),
    pytest.param(Case(Request(), host("580.95.05", "Tesla V100-SXM2-16GB"), "direct",
                      frozenset({"cu126"}), runs="sm_70"),
                 id="6 a V100 is not sent to cu130 (unsloth 5876)"),
    pytest.param(Case(Request(cuda="12.8"), host("570.124.06", "Tesla V100-SXM2-16GB"), "direct",
                      frozenset({"cu128"}), (2, 8), "sm_70"),
                 id="6 cu128 serves a V100 while its build still lists sm_70"),
    pytest.param(Case(Request(), host("570.124.06", "Tesla P40"), "direct", frozenset({"cu126"})),
                 id="7 a Pascal card is not sent to cu128 (Whisper-WebUI 653)"),
    pytest.param(Case(Request(), host("570.124.06", "NVIDIA GeForce RTX 5070"), "direct",
                      frozenset({"cu128"}), (2, 7), "sm_120"),
                 id="8 an RTX 5070 gets cu128 or newer (env-doctor)"),
    pytest.param(Case(Request(cuda="11.7"), host("470.82.01", "NVIDIA GeForce RTX 3090"),
                      "minor-version", frozenset({"cu117"})),
                 id="9 driver 470 runs a CUDA 11.7 wheel (env-doctor)"),
    pytest.param(
        Case(Request(), host("535.104.05", "NVIDIA L4"), "minor-version", frozenset({"cu126"})),
        id="10 driver 535 gets a build for CUDA 12 (skypilot 9406)"),
    pytest.param(Case(Request(framework_version="<=2.10"),
                      host("570.124.06", "NVIDIA GH200 480GB", arch="aarch64"), None,
                      frozenset({"cu128", "cu126"})),
                 id="11 a GH200 gets the CUDA build of the PyTorch index (pytorch 160162)"),
    pytest.param(Case(Request(), host("580.95.05", "NVIDIA GH200 480GB", arch="aarch64"), "direct",
                      frozenset({"cu130"}), (2, 11), "sm_90"),
                 id="11 or a release whose default wheel for aarch64 has CUDA (pytorch 168065)"),
    pytest.param(Case(Request(), host("570.124.06", "Tesla P100-PCIE-16GB"), "direct",
                      frozenset({"cu126"})), id="14 a P100 is served by cu126 (kaggle-cli 1151)"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_right_answer(case: Case) -> None:
    made = plan(case.request, case.host)
    assert made.error is None, made.error
    assert case.verdict in {None, made.verdict}
    assert case.tags is None or made.wheel_tag in case.tags
    assert release(made) >= case.at_least
    assert case.runs in {None, made.gpus[0].runs}


@cases(
    "release_ gpu driver tag",
    ("PyPI's build, not the highest CUDA", "2.8.0", "8.6", "580.95.05", "cu128"),
    ("nor the driver's own CUDA", "2.7.1", "8.9", "570.124.06", "cu126"),
    ("the nearest above the driver's CUDA", "2.8.0", "8.6", "550.120", "cu126"),
    ("and above an older one", "2.8.0", "8.0", "535.183.06", "cu126"),
    ("PyPI's build lacks the GPU", "2.8.0", "6.1", "580.95.05", "cu126"),
    ("without a pin the nearest, too", None, "8.6", "550.120", "cu126"),
)
def test_a_pinned_release_is_the_build_that_its_users_have(
    release_: str | None, gpu: str, driver: str, tag: str
) -> None:
    asked = Request(framework_version=f"=={release_}" if release_ else None)
    assert plan(asked, host(driver, gpu)).wheel_tag == tag


REFUSALS = [
    pytest.param(Request(cuda="12.8"), host("580.95.05", "NVIDIA GeForce GTX 1080 Ti"),
                 "no-gpu-code", "cu126", id="7 a Pascal card is refused cu128 and told of cu126"),
    pytest.param(Request(cuda="13.0"), host("580.95.05", "Tesla V100-SXM2-16GB"),
                 "no-gpu-code", "cu126", id="6 a V100 is refused cu130 and told of cu126"),
    pytest.param(Request(cuda="12.6"), host("570.124.06", "NVIDIA GeForce RTX 5070"),
                 "no-gpu-code", "cu128", id="8 an RTX 5070 is refused cu126 and told of cu128"),
    pytest.param(Request(cuda="13.0"), host("535.104.05", "NVIDIA GeForce RTX 4090"),
                 "driver-too-old", "cu126", id="10 driver 535 is refused 13.0 on a GeForce"),
    pytest.param(Request(cuda="11.7"), host("535.104.05", "NVIDIA H100 80GB HBM3"),
                 "no-gpu-code", "cu118", id="12 CUDA 11.7 on an H100 is refused"),
    pytest.param(Request(cuda="11.7"), host("550.54.15", "NVIDIA H200"),
                 "no-gpu-code", "cu118", id="12 and on an H200"),
    pytest.param(Request(cuda="11.7"), host("570.124.06", "NVIDIA GeForce RTX 5090"),
                 "no-gpu-code", "cu128", id="12 and on an RTX 5090, which needs 12.8"),
    pytest.param(Request(cuda="12.8"), host("570.124.06", "Tesla P100-PCIE-16GB"),
                 "no-gpu-code", "cu126", id="14 a P100 is refused cu128 beforehand"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "facts", "code", "tag"), REFUSALS)
def test_the_right_refusal(request_: Request, facts: HostFacts, code: str, tag: str) -> None:
    made = plan(request_, facts)
    assert (made.verdict, made.error and made.error.code) == ("none", code)
    assert tag in {row.wheel_tag for row in made.alternatives}


def test_4_the_companions_of_torch_1_13_1() -> None:
    both = ("torchvision", "torchaudio")
    made = plan(
        Request(cuda="11.7", framework_version="==1.13.1", companions=both),
        host("515.65.01", "NVIDIA GeForce RTX 3090"),
    )
    assert {"torchvision==0.14.1", "torchaudio==0.13.1"} <= set(made.requirements)


def test_9_minor_version_says_what_it_leaves_out() -> None:
    made = plan(Request(cuda="11.7"), host("470.82.01", "NVIDIA GeForce RTX 3090"))
    left_out = [w for w in made.warnings if w.code == "minor-version-limits"]
    assert "PTX" in left_out[0].message


def test_11_an_aarch64_plan_says_that_pypi_s_wheel_is_for_the_cpu() -> None:
    made = plan(
        Request(framework_version="==2.10.0"),
        host("570.124.06", "NVIDIA GH200 480GB", arch="aarch64"),
    )
    assert [row.name for row in made.indexes] == ["PyTorch index (cu128)"]
    assert "pypi-wheel-is-cpu" in {reason.code for reason in made.reasons}


def test_13_no_tensorflow_was_built_on_11_7() -> None:
    made = plan(
        Request(cuda="11.7", framework="tensorflow"), host("515.65.01", "NVIDIA GeForce RTX 3090")
    )
    assert made.error is not None
    assert made.error.code == "no-such-build"
    assert "11.2" in made.error.message
    assert "11.8" in made.error.message
    assert {row.cuda for row in made.alternatives} >= {"11.2", "11.8"}


@pytest.mark.parametrize("cuda", ["11.3", "11.7", "12.6", "13.0"])
def test_15_an_image_never_holds_cuda_twice(cuda: str) -> None:
    made = plan(Request(cuda=cuda), host("580.95.05", "8.0"))
    assert made.base is not None
    assert "nvidia/cuda" not in made.base.reference


def test_16_a_geforce_on_driver_535_is_refused_an_image_that_would_not_start() -> None:
    facts = host("535.104.05", "NVIDIA GeForce RTX 4090")
    base = "nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04"
    made = plan(Request(cuda="12.8", base=base), facts)
    assert made.error is not None
    assert made.error.code == "base-refuses-to-start"
    assert plan(Request(cuda="12.8"), facts).verdict == "minor-version"
    assert "without --base (minor-version)" in {row.why for row in made.alternatives}


def test_16_a_data_centre_gpu_on_driver_535_is_not() -> None:
    base = "nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04"
    made = plan(Request(cuda="12.8", base=base), host("535.104.05", "NVIDIA L40S"))
    assert made.error is None
