"""The resolver as a table: what is asked of which host, and what comes out.

The table runs on the shipped catalog, because what it states are facts of the world that a refresh
of the data must not change; the invariants below it hold for every row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.catalog.loading import load
from provision.catalog.rows.frameworks import TorchBuild
from provision.model.plan import ComputeCapability, Framework, Gpu, HostFacts, Plan, Request
from provision.resolve import nearest_at, resolve
from provision.resolve.builds import build_of, builds_of
from provision.resolve.fleet import GpuKind
from provision.resolve.rules.base import choose_python, python_tags_of
from provision.resolve.rules.gpu_code import code_for, ptx_blocker
from tests.kit.hosts import host

CATALOG = load()
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
_RANK = ("direct", "minor-version", "forward", "unverified", "none")


def plan(request: Request, *hosts: HostFacts) -> Plan:
    return resolve(hosts, request, CATALOG)


@pytest.mark.parametrize(
    ("driver", "gpus", "request_", "verdict", "tag"),
    [
        pytest.param("515.65.01", ["NVIDIA GeForce RTX 3090"], Request(cuda="11.7"),
                     "direct", "cu117", id="the driver's own CUDA on a card the wheel knows"),
        pytest.param("550.54.14", ["8.0"], Request(cuda="11.7"),
                     "direct", "cu117", id="a newer driver runs an older CUDA"),
        pytest.param("470.82.01", ["8.6"], Request(cuda="11.7"),
                     "minor-version", "cu117", id="driver 470 runs 11.7 by minor-version"),
        pytest.param("450.80.02", ["7.0"], Request(cuda="11.7"),
                     "minor-version", "cu117", id="the floor itself is enough"),
        pytest.param("450.80.01", ["NVIDIA GeForce RTX 2080 Ti"], Request(cuda="11.7"),
                     "none", None, id="just below the floor is not"),
        pytest.param("515.65.01", ["8.6"], Request(cuda="12.1"),
                     "none", None, id="an 11.x driver refuses 12.x on an unknown kind of card"),
        pytest.param("525.60.13", ["8.6"], Request(cuda="12.1"),
                     "minor-version", "cu121", id="the 12.x floor runs a later 12.x"),
        pytest.param("525.60.11", ["8.6"], Request(cuda="12.1"),
                     "none", None, id="a 525 before the floor does not"),
        pytest.param("535.104.05", ["NVIDIA H100 80GB HBM3"], Request(cuda="11.7"),
                     "none", None, id="cu117 stops at sm_86 and has no PTX for an H100"),
        pytest.param("580.95.05", ["NVIDIA GeForce RTX 5090"], Request(cuda="11.7"),
                     "none", None, id="nor for an RTX 5090"),
        pytest.param("535.104.05", ["NVIDIA L40S"], Request(cuda="11.7"),
                     "direct", "cu117", id="sm_86 code runs on an 8.9"),
        pytest.param(None, ["8.6"], Request(cuda="11.7"),
                     "unverified", "cu117", id="no driver in sight is unverified and still a plan"),
        pytest.param("515.65.01", [], Request(cuda="11.7"),
                     "unverified", "cu117", id="no GPU in sight is unverified too"),
        pytest.param("580.95.05", ["NVIDIA GeForce GTX 1080 Ti"], Request(),
                     "direct", "cu126", id="a Pascal card gets the last build with its code"),
        pytest.param("580.95.05", ["NVIDIA GeForce GTX 1080 Ti"], Request(cuda="12.8"),
                     "none", None, id="and is refused a build without it"),
        pytest.param("580.95.05", ["Tesla V100-SXM2-16GB"], Request(),
                     "direct", "cu126", id="a Volta card likewise"),
        pytest.param("535.104.05", ["NVIDIA A10"], Request(),
                     "minor-version", "cu126", id="driver 535 gets a 12.x build, never 13.x"),
        pytest.param("580.95.05", ["NVIDIA GeForce RTX 5070"], Request(cuda="12.6"),
                     "none", None, id="cu126 has no code for an RTX 5070"),
        pytest.param("580.95.05", ["NVIDIA GeForce GTX 1080 Ti", "NVIDIA GeForce RTX 5090"],
                     Request(), "none", None, id="no build has code for Pascal and Blackwell"),
        pytest.param("515.65.01", ["8.6"], Request(cuda="11.5"),
                     "none", None, id="PyTorch was never built for 11.5"),
        pytest.param("470.82.01", ["Tesla V100-SXM2-16GB"], Request(cuda="12.4"),
                     "forward", "cu124", id="cuda-compat carries 12.4 onto a data-centre 470"),
        pytest.param("470.82.01", ["NVIDIA GeForce RTX 3090"], Request(cuda="12.4"),
                     "none", None, id="and never onto a GeForce"),
        pytest.param("595.45.04", ["Tesla V100-SXM2-16GB"], Request(),
                     "none", None, id="driver 595 does not drive a V100 at all"),
        pytest.param("535", ["8.6"], Request(cuda="12.1"),
                     "direct", "cu121", id="a branch alone is its newest release"),
        pytest.param("525", ["8.6"], Request(cuda="12.4"),
                     "minor-version", "cu124", id="which is at the floor, where some are not"),
        pytest.param("999.10", ["8.6"], Request(cuda="11.7"),
                     "direct", "cu117", id="a driver newer than any known is backward compatible"),
        pytest.param("470.256.02", ["Tesla K80"], Request(cuda="11.7"),
                     "minor-version", "cu117", id="the last Kepler driver runs sm_37 code"),
        pytest.param("470.256.02", ["Tesla K80"], Request(),
                     "minor-version", "cu117", id="cu118 is newer, but its cuDNN dropped Kepler"),
        pytest.param("580.95.05", ["8.7"], Request(cuda="12.8"),
                     "none", None, id="desktop binaries do not run on Tegra"),
    ],
)  # fmt: skip
def test_what_comes_out(
    driver: str | None, gpus: list[str], request_: Request, verdict: str, tag: str | None
) -> None:
    made = plan(request_, host(driver, *gpus))
    assert (made.verdict, made.wheel_tag) == (verdict, tag)
    assert (made.error is None) == (verdict != "none")


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        pytest.param(plan(Request(cuda="11.7"), host("535.104.05", "NVIDIA H100 80GB HBM3")),
                     "no-gpu-code", "stops at sm_86, and it has no PTX", id="H100"),
        pytest.param(plan(Request(cuda="12.1"), host("515.65.01", "8.6")),
                     "driver-too-old", "525.60.13", id="the floor is named"),
        pytest.param(plan(Request(cuda="11.7", python="3.12"), host("515.65.01", "8.6")),
                     "no-wheel-for-python", "Python 3.8 to 3.11", id="the Pythons are named"),
        pytest.param(plan(Request(cuda="13.0", python="3.11"),
                          host("535.104.05", "NVIDIA A100-SXM4-80GB")),
                     "no-compat-base", "needs driver 580 or newer; found 535.104.05",
                     id="the driver is the reason, before the bases that make up for it"),
        pytest.param(plan(Request(cuda="11.5"), host("515.65.01", "8.6")),
                     "no-such-build", "no build of PyTorch for CUDA 11.5", id="never built"),
        pytest.param(plan(Request(cuda="11.7"), host("515.65.01", "8.6", arch="aarch64")),
                     "no-such-build", "aarch64", id="not for this CPU"),
        pytest.param(plan(Request(), host("595.45.04", "Tesla V100-SXM2-16GB")),
                     "gpu-not-driven", "no longer supports", id="the driver dropped it"),
        pytest.param(plan(Request(), host(), host()._replace(arch="aarch64")),
                     "mixed-cpu-architectures", "aarch64, x86_64", id="two CPU architectures"),
    ],
)  # fmt: skip
def test_a_refusal_says_why(made: Plan, code: str, words: str) -> None:
    assert made.error is not None
    assert made.error.code == code
    assert words in made.error.message
    assert made.error.fix


def test_the_flagship_plan_is_whole() -> None:
    made = plan(Request(cuda="11.7"), host("515.65.01", "NVIDIA GeForce RTX 3090"))
    assert (made.framework_version, made.cudnn, made.nccl) == ("2.0.1", "8.5.0.96", "2.14.3")
    assert (made.python, made.driver_need) == ("3.10", "455.23.04")
    assert [row.name for row in made.indexes] == ["PyTorch index (cu117)", "PyPI"]
    assert [row.requirement for row in made.indexes] == ["torch==2.0.1+cu117", "torch==2.0.1"]
    assert "numpy<2" in made.requirements
    assert made.gpus[0].runs == "sm_86"


def test_an_h100_is_shown_the_nearest_that_works() -> None:
    made = plan(Request(cuda="11.7"), host("535.104.05", "NVIDIA H100 80GB HBM3"))
    assert made.alternatives[0].cuda == "11.8"
    assert (made.gpus[0].runs, made.gpus[0].ok) == ("none", False)


def test_companions_follow_the_release() -> None:
    request = Request(
        cuda="11.7", framework_version="==1.13.1", companions=("torchvision", "torchaudio", "x>1")
    )
    made = plan(request, host("515.65.01", "8.6"))
    assert {"torchvision==0.14.1", "torchaudio==0.13.1", "x>1"} < set(made.requirements)


@pytest.mark.parametrize(
    ("request_", "build"),
    [
        pytest.param(Request(), "2.10.0+cu128", id="nothing was asked for"),
        pytest.param(Request(cuda="12.1"), "2.4.1+cu121", id="the CUDA asked for is on PyPI"),
        pytest.param(Request(cuda="11.8"), "2.10.0+cu128", id="the CUDA asked for never was"),
        pytest.param(Request(framework_version="==2.5.1"), "2.5.1+cu124",
                     id="the release is there with another CUDA"),
        pytest.param(Request(cuda="12.6", framework_version="==2.5.1"), "2.7.1+cu126",
                     id="the CUDA counts more than the release"),
    ],
)  # fmt: skip
def test_the_nearest_that_one_index_has(request_: Request, build: str) -> None:
    made = nearest_at("pypi", [host("550.54.14", "8.6")], request_, CATALOG)
    assert made is not None
    assert f"{made.framework_version}+{made.wheel_tag}" == build
    assert "PyPI" in {row.name for row in made.indexes}


def test_an_index_that_has_nothing_that_runs_is_not_named() -> None:
    assert nearest_at("pypi", [host("595.84", "Tesla V100-SXM2-16GB")], Request(), CATALOG) is None


def test_a_named_index_is_asked_first() -> None:
    made = plan(Request(cuda="11.7", index_url="https://m.example/s"), host("515.65.01", "8.6"))
    assert [row.url for row in made.indexes][:2] == ["https://m.example/s"] * 2
    assert made.index_url == "https://m.example/s"


@pytest.mark.parametrize(
    ("request_", "facts", "python"),
    [
        pytest.param(Request(cuda="11.7"), {"python": "3.11"}, "3.10",
                     id="3.11 was the newest Python on the day of PyTorch 2.0.1"),
        pytest.param(Request(cuda="11.7"), {"python": "3.14"}, "3.10",
                     id="the Python of the machine that asks does not matter"),
        pytest.param(Request(cuda="11.7"), {}, "3.10", id="nor whether it is known"),
        pytest.param(Request(cuda="11.7", python="3.9"), {"python": "3.10"}, "3.9", id="asked for"),
        pytest.param(Request(framework_version="==2.1.0"), {"python": "3.10"}, "3.11",
                     id="3.12 had been out for two days"),
        pytest.param(Request(framework_version="==2.4.1"), {"python": "3.12"}, "3.11",
                     id="3.12 was the newest for another month"),
        pytest.param(Request(framework_version="==2.5.1"), {"python": "3.13"}, "3.12",
                     id="3.13 was three weeks old"),
        pytest.param(Request(framework="tensorflow", framework_version="==2.16.2"), {}, "3.11",
                     id="TensorFlow by its own day"),
        pytest.param(Request(framework="jax", framework_version="==0.4.30"), {}, "3.11",
                     id="JAX by its own day"),
        pytest.param(Request(cuda="11.7", base="bootstrap"), {"python": "3.10"}, "3.11",
                     id="a bootstrap base has Debian's Pythons only"),
        pytest.param(Request(base="bootstrap"), {"python": "3.13"}, "3.11",
                     id="and the suite to prefer decides which"),
    ],
)  # fmt: skip
def test_python_is_chosen(request_: Request, facts: dict[str, str], python: str) -> None:
    driver = "515.65.01" if request_.cuda else "550.54.14"
    made = plan(request_, host(driver, "8.6", **facts))
    assert made.python == python
    assert made.base is not None
    assert made.base.python == python


@pytest.mark.parametrize(
    ("settled", "asked", "chosen", "why"),
    [
        pytest.param({"3.9", "3.10"}, None, "3.10", "3.11 was the newest Python when PyTorch",
                     id="the newest that had a successor"),
        pytest.param({"3.9", "3.10", "3.11"}, None, "3.11", "the newest that both the wheels and",
                     id="all of them had one"),
        pytest.param(set[str](), None, "3.8", "3.9 was the newest Python when PyTorch",
                     id="none had one: the oldest"),
        pytest.param({"3.9", "3.10"}, "3.11", "3.11", "as requested", id="what is asked for"),
        pytest.param({"3.9", "3.10"}, "3.13", None, "as requested", id="without a wheel"),
    ],
)  # fmt: skip
def test_which_python_is_settled_decides(
    settled: set[str], asked: str | None, chosen: str | None, why: str
) -> None:
    build = next(b for b in builds_of("pytorch", "x86_64", CATALOG) if b.version == "2.0.1")
    offered = ["3.7", "3.8", "3.9", "3.10", "3.11", "3.12"]
    python, said = choose_python(build, asked, offered, settled)
    assert python == chosen
    assert said.startswith(why)


def test_no_python_is_chosen_before_it_had_a_successor() -> None:
    """Of every build that has an older wheel, whatever the catalog holds."""
    first = {row.python: row.released for row in CATALOG.pythons}
    after = {a.python: b.released for a, b in pairwise(CATALOG.pythons)}
    for framework in FRAMEWORKS:
        for build in builds_of(framework, "x86_64", CATALOG):
            offered = python_tags_of(build)
            if not offered:
                continue
            assert set(offered) <= first.keys(), build.name
            settled = CATALOG.settled_pythons(build.published)
            python, _ = choose_python(build, None, offered, settled)
            assert python is not None
            is_settled = after.get(python, "9999") <= build.published
            assert is_settled or python == offered[0], build.name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_plan_leads_back_to_its_build(framework: Framework) -> None:
    made = plan(Request(framework=framework), host("535.104.05", "8.0"))
    build = build_of(made, CATALOG)
    assert (build.version, build.cuda, build.tag, build.arch) == (
        made.framework_version,
        made.cuda,
        made.wheel_tag,
        "x86_64",
    )


def test_the_choice_of_python_is_explained() -> None:
    made = plan(Request(cuda="11.7"), host("515.65.01", "8.6"))
    (reason,) = [row for row in made.reasons if row.code == "python-chosen"]
    assert reason.message == (
        "Python 3.10: 3.11 was the newest Python when PyTorch 2.0.1 was published, and not "
        "yet widely supported. The wheels are for 3.8 to 3.11 (--python)."
    )


@pytest.mark.parametrize(
    ("request_", "driver", "gpu", "words"),
    [
        pytest.param(Request(), "570.172.08", "8.6", "the newest that fits;",
                     id="nothing newer fits"),
        pytest.param(Request(), "470.256.02", "Tesla K80",
                     "the newest that fits and whose cuDNN supports every GPU (that of 2.7.1 does",
                     id="the cuDNN of a newer one has dropped the GPU"),
        pytest.param(Request(), "470.82.01", "NVIDIA A100-SXM4-80GB",
                     "the newest that fits without cuda-compat (", id="a newer one needs more"),
        pytest.param(Request(framework_version="==2.0.1"), "570.172.08", "8.6",
                     "the requested release;", id="it was requested"),
    ],
)  # fmt: skip
def test_why_no_newer_build_was_chosen(
    request_: Request, driver: str, gpu: str, words: str
) -> None:
    (reason,) = [r for r in plan(request_, host(driver, gpu)).reasons if r.code == "build-chosen"]
    assert f" is {words}" in reason.message


def test_a_base_that_nobody_knows_has_a_python_that_nobody_knows() -> None:
    made = plan(Request(cuda="11.7", base="team/base:7"), host("515.65.01", "8.6"))
    assert "base-python-not-known" in {warning.code for warning in made.warnings}
    told = plan(Request(cuda="11.7", base="team/base:7", python="3.9"), host("515.65.01", "8.6"))
    assert "base-python-not-known" not in {warning.code for warning in told.warnings}


@pytest.mark.parametrize(
    ("base", "python", "glibc"),
    [
        pytest.param("python:3.9-slim-bookworm", "3.9", "2.36", id="an official image"),
        pytest.param("m.example/x/python:3.10-slim-trixie", "3.10", "2.41", id="a mirror"),
        pytest.param("nvidia/cuda:11.7.1-devel-ubuntu22.04", "3.10", "2.35", id="NVIDIA's image"),
        pytest.param("team/base:7", "3.10", None, id="an image that nobody knows"),
    ],
)  # fmt: skip
def test_a_named_base_brings_its_own_python(base: str, python: str, glibc: str | None) -> None:
    made = plan(Request(cuda="11.7", base=base), host("515.65.01", "8.6", python="3.11"))
    assert made.base is not None
    assert (made.python, made.base.glibc) == (python, glibc)


def test_a_devel_image_stands_on_nvidia_s() -> None:
    made = plan(Request(cuda="11.7", flavour="devel"), host("515.65.01", "8.6"))
    assert made.base is not None
    assert made.base.reference == "docker.io/nvidia/cuda:11.7.1-devel-ubuntu22.04"
    assert made.python == "3.10"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        pytest.param(Request(cuda="13.0", flavour="devel", base="bootstrap"), None,
                     id="NVIDIA's packages for 13.0 hold nvcc"),
        pytest.param(Request(cuda="11.7", flavour="devel", base="bootstrap"), "no-devel-base",
                     id="those for 11.7 do not"),
    ],
)  # fmt: skip
def test_a_devel_image_without_a_registry(request_: Request, code: str | None) -> None:
    made = plan(request_, host("580.95.05", "8.6"))
    assert (made.error.code if made.error else None) == code
    assert any(line.startswith("cuda-toolkit[nvcc") for line in made.requirements) == (not code)


def test_a_fleet_gets_one_plan_for_its_weakest() -> None:
    made = plan(
        Request(cuda="11.7"), host("515.65.01", "8.6"), host("470.82.01", "7.0")._replace(label="b")
    )
    assert made.verdict == "minor-version"
    assert made.driver_have == "470.82.01"


def test_a_fleet_that_cannot_share_hears_who_blocks() -> None:
    made = plan(
        Request(cuda="11.7"),
        host("515.65.01", "8.6")._replace(label="old"),
        host("535.104.05", "9.0")._replace(label="new"),
    )
    assert made.error is not None
    assert "new: " in made.error.message
    assert "old: " not in made.error.message


def test_an_unknown_gpu_is_not_guessed() -> None:
    made = plan(Request(cuda="11.7"), host("515.65.01", "NVIDIA Something 9000"))
    assert made.verdict == "unverified"
    assert made.gpus[0].runs == "unknown"
    assert "gpu-unknown" in {warning.code for warning in made.warnings}


DRIVERS = st.sampled_from([row.first_version or f"{row.branch}.10" for row in CATALOG.branches])
CAPABILITIES = st.sampled_from(sorted({row.compute_capability for row in CATALOG.gpus}))
CUDAS = st.sampled_from([None, *CATALOG.cuda_versions()])


@given(DRIVERS, st.lists(CAPABILITIES, min_size=1, max_size=3), CUDAS)
def test_what_is_planned_has_code_for_every_gpu_and_every_refusal_a_fix(
    driver: str, capabilities: list[ComputeCapability], cuda: str | None
) -> None:
    gpus = tuple(Gpu(compute_capability=c) for c in capabilities)
    facts = HostFacts(driver=driver, arch="x86_64", gpus=gpus)
    made = plan(Request(cuda=cuda), facts)
    if made.error is None:
        assert all(gpu.ok for gpu in made.gpus)
        assert made.base is not None
    else:
        assert made.error.fix
    for row in made.alternatives:
        again = plan(Request(cuda=row.cuda, framework_version=f"=={row.framework_version}"), facts)
        assert again.error is None


@given(DRIVERS, CAPABILITIES, CAPABILITIES, CUDAS)
def test_another_gpu_never_helps(
    driver: str, one: ComputeCapability, other: ComputeCapability, cuda: str | None
) -> None:
    alone = HostFacts(driver=driver, arch="x86_64", gpus=(Gpu(compute_capability=one),))
    both = alone._replace(gpus=(*(alone.gpus or ()), Gpu(compute_capability=other)))
    before, after = plan(Request(cuda=cuda), alone), plan(Request(cuda=cuda), both)
    assert before.error is None or after.error is not None


def test_every_build_serves_some_host() -> None:
    verdicts = {
        f"{build.version}+{build.tag}-{build.arch}": best_verdict(build)
        for build in CATALOG.torch_builds()
        if build.cuda is not None
    }
    wrong = {name: said for name, said in verdicts.items() if said not in {"direct", "unverified"}}
    assert wrong == {}


def best_verdict(build: TorchBuild) -> str:
    """Of a host with the newest driver for the newest GPU that the build has code for."""
    branch = max(
        (b for b in CATALOG.branches if not build.sm or b.dropped_below <= max(build.sm)),
        key=lambda b: b.branch,
    )
    gpus = (Gpu(compute_capability=max(build.sm)),) if build.sm else ()
    facts = HostFacts(driver=f"{branch.branch}.999", arch=build.arch, gpus=gpus)
    request = Request(cuda=build.cuda, framework_version=f"=={build.version}")
    return plan(request, facts).verdict


@pytest.mark.parametrize(
    ("sm", "ptx", "capability", "tegra", "code"),
    [
        pytest.param([(8, 0), (8, 6)], None, (8, 6), False, "sm_86", id="its own binary"),
        pytest.param([(8, 0)], None, (8, 6), False, "sm_80 binary", id="a lower minor's binary"),
        pytest.param([(8, 6)], None, (8, 0), False, "none", id="never a higher minor's"),
        pytest.param([(7, 5)], None, (8, 0), False, "none", id="never another major's"),
        pytest.param([(7, 5)], (7, 5), (8, 0), False, "PTX", id="PTX runs on anything later"),
        pytest.param([(8, 0)], (9, 0), (7, 5), False, "none", id="PTX of a later one does not"),
        pytest.param([(8, 0)], None, (8, 7), True, "none", id="Tegra takes only its own"),
        pytest.param([], None, (8, 0), False, "unknown", id="nobody has read what is in it"),
    ],
)
def test_which_code_runs(
    sm: list[ComputeCapability],
    ptx: ComputeCapability | None,
    capability: ComputeCapability,
    *,
    tegra: bool,
    code: str,
) -> None:
    build = builds_of("pytorch", "x86_64", CATALOG)[0]._replace(sm=tuple(sm), ptx=ptx)
    assert code_for(build, capability, tegra=tegra) == code


def test_minor_version_compatibility_leaves_ptx_out() -> None:
    build = builds_of("pytorch", "x86_64", CATALOG)[0]._replace(sm=((7, 5),), ptx=(7, 5))
    device = GpuKind("a card", (8, 6))
    assert ptx_blocker(build, device, "PTX", by_minor=True) is not None
    assert ptx_blocker(build, device, "PTX", by_minor=False) is None
