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
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
_RANK = ("direct", "minor-version", "forward", "unverified", "none")


def plan(request: Request, *hosts: HostFacts) -> Plan:
    return resolve(hosts, request, CATALOG)


@cases(
    "driver gpus request_ verdict tag",
    ("the driver's own CUDA on a card the wheel knows", "515.65.01", ["NVIDIA GeForce RTX 3090"],
     Request(cuda="11.7"), "direct", "cu117"),
    ("a newer driver runs an older CUDA", "550.54.14", ["8.0"], Request(cuda="11.7"), "direct",
     "cu117"),
    ("driver 470 runs 11.7 by minor-version", "470.82.01", ["8.6"], Request(cuda="11.7"),
     "minor-version", "cu117"),
    ("the floor itself is enough", "450.80.02", ["7.0"], Request(cuda="11.7"), "minor-version",
     "cu117"),
    ("just below the floor is not", "450.80.01", ["NVIDIA GeForce RTX 2080 Ti"],
     Request(cuda="11.7"), "none", None),
    ("an 11.x driver refuses 12.x on an unknown kind of card", "515.65.01", ["8.6"],
     Request(cuda="12.1"), "none", None),
    ("the 12.x floor runs a later 12.x", "525.60.13", ["8.6"], Request(cuda="12.1"),
     "minor-version", "cu121"),
    ("a 525 before the floor does not", "525.60.11", ["8.6"], Request(cuda="12.1"), "none", None),
    ("cu117 stops at sm_86 and has no PTX for an H100", "535.104.05", ["NVIDIA H100 80GB HBM3"],
     Request(cuda="11.7"), "none", None),
    ("nor for an RTX 5090", "580.95.05", ["NVIDIA GeForce RTX 5090"], Request(cuda="11.7"), "none",
     None),
    ("sm_86 code runs on an 8.9", "535.104.05", ["NVIDIA L40S"], Request(cuda="11.7"), "direct",
     "cu117"),
    ("no driver in sight is unverified and still a plan", None, ["8.6"], Request(cuda="11.7"),
     "unverified", "cu117"),
    ("no GPU in sight is unverified too", "515.65.01", [], Request(cuda="11.7"), "unverified",
     "cu117"),
    ("a Pascal card gets the last build with its code", "580.95.05", ["NVIDIA GeForce GTX 1080 Ti"],
     Request(), "direct", "cu126"),
    ("and is refused a build without it", "580.95.05", ["NVIDIA GeForce GTX 1080 Ti"],
     Request(cuda="12.8"), "none", None),
    ("a Volta card likewise", "580.95.05", ["Tesla V100-SXM2-16GB"], Request(), "direct", "cu126"),
    ("driver 535 gets a 12.x build, never 13.x", "535.104.05", ["NVIDIA A10"], Request(),
     "minor-version", "cu126"),
    ("cu126 has no code for an RTX 5070", "580.95.05", ["NVIDIA GeForce RTX 5070"],
     Request(cuda="12.6"), "none", None),
    ("no build has code for Pascal and Blackwell", "580.95.05",
     ["NVIDIA GeForce GTX 1080 Ti", "NVIDIA GeForce RTX 5090"], Request(), "none", None),
    ("PyTorch was never built for 11.5", "515.65.01", ["8.6"], Request(cuda="11.5"), "none", None),
    ("cuda-compat carries 12.4 onto a data-centre 470", "470.82.01", ["Tesla V100-SXM2-16GB"],
     Request(cuda="12.4"), "forward", "cu124"),
    ("and never onto a GeForce", "470.82.01", ["NVIDIA GeForce RTX 3090"], Request(cuda="12.4"),
     "none", None),
    ("driver 595 does not drive a V100 at all", "595.45.04", ["Tesla V100-SXM2-16GB"], Request(),
     "none", None),
    ("a branch alone is its newest release", "535", ["8.6"], Request(cuda="12.1"), "direct",
     "cu121"),
    ("which is at the floor, where some are not", "525", ["8.6"], Request(cuda="12.4"),
     "minor-version", "cu124"),
    ("a driver newer than any known is backward compatible", "999.10", ["8.6"],
     Request(cuda="11.7"), "direct", "cu117"),
    ("the last Kepler driver runs sm_37 code", "470.256.02", ["Tesla K80"], Request(cuda="11.7"),
     "minor-version", "cu117"),
    ("cu118 is newer, but its cuDNN dropped Kepler", "470.256.02", ["Tesla K80"], Request(),
     "minor-version", "cu117"),
    ("desktop binaries do not run on Tegra", "580.95.05", ["8.7"], Request(cuda="12.8"), "none",
     None),
)  # fmt: skip
def test_what_comes_out(
    driver: str | None, gpus: list[str], request_: Request, verdict: str, tag: str | None
) -> None:
    made = plan(request_, host(driver, *gpus))
    assert (made.verdict, made.wheel_tag) == (verdict, tag)
    assert (made.error is None) == (verdict != "none")


@cases(
    "made code words",
    ("H100", plan(Request(cuda="11.7"), host("535.104.05", "NVIDIA H100 80GB HBM3")), "no-gpu-code",
     "stops at sm_86, and it has no PTX"),
    ("the floor is named", plan(Request(cuda="12.1"), host("515.65.01", "8.6")), "driver-too-old",
     "525.60.13"),
    ("the Pythons are named", plan(Request(cuda="11.7", python="3.12"), host("515.65.01", "8.6")),
     "no-wheel-for-python", "Python 3.8 to 3.11"),
    ("the driver is the reason, before the bases that make up for it",
     plan(Request(cuda="13.0", python="3.11"), host("535.104.05", "NVIDIA A100-SXM4-80GB")),
     "no-compat-base", "needs driver 580 or newer; found 535.104.05"),
    ("never built", plan(Request(cuda="11.5"), host("515.65.01", "8.6")), "no-such-build",
     "no build of PyTorch for CUDA 11.5"),
    ("not for this CPU", plan(Request(cuda="11.7"), host("515.65.01", "8.6", arch="aarch64")),
     "no-such-build", "aarch64"),
    ("the driver dropped it", plan(Request(), host("595.45.04", "Tesla V100-SXM2-16GB")),
     "gpu-not-driven", "no longer supports"),
    ("two CPU architectures", plan(Request(), host(), host()._replace(arch="aarch64")),
     "mixed-cpu-architectures", "aarch64, x86_64"),
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


@cases(
    "request_ build",
    ("nothing was asked for", Request(), "2.10.0+cu128"),
    ("the CUDA asked for is on PyPI", Request(cuda="12.1"), "2.4.1+cu121"),
    ("the CUDA asked for never was", Request(cuda="11.8"), "2.10.0+cu128"),
    ("the release is there with another CUDA", Request(framework_version="==2.5.1"), "2.5.1+cu124"),
    ("the CUDA counts more than the release", Request(cuda="12.6", framework_version="==2.5.1"),
     "2.7.1+cu126"),
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


@cases(
    "request_ facts python",
    ("3.11 was the newest Python on the day of PyTorch 2.0.1", Request(cuda="11.7"),
     {"python": "3.11"}, "3.10"),
    ("the Python of the machine that asks does not matter", Request(cuda="11.7"),
     {"python": "3.14"}, "3.10"),
    ("nor whether it is known", Request(cuda="11.7"), {}, "3.10"),
    ("asked for", Request(cuda="11.7", python="3.9"), {"python": "3.10"}, "3.9"),
    ("3.12 had been out for two days", Request(framework_version="==2.1.0"), {"python": "3.10"},
     "3.11"),
    ("3.12 was the newest for another month", Request(framework_version="==2.4.1"),
     {"python": "3.12"}, "3.11"),
    ("3.13 was three weeks old", Request(framework_version="==2.5.1"), {"python": "3.13"}, "3.12"),
    ("TensorFlow by its own day", Request(framework="tensorflow", framework_version="==2.16.2"), {},
     "3.11"),
    ("JAX by its own day", Request(framework="jax", framework_version="==0.4.30"), {}, "3.11"),
    ("a bootstrap base has Debian's Pythons only", Request(cuda="11.7", base="bootstrap"),
     {"python": "3.10"}, "3.11"),
    ("and the suite to prefer decides which", Request(base="bootstrap"), {"python": "3.13"},
     "3.11"),
)  # fmt: skip
def test_python_is_chosen(request_: Request, facts: dict[str, str], python: str) -> None:
    driver = "515.65.01" if request_.cuda else "550.54.14"
    made = plan(request_, host(driver, "8.6", **facts))
    assert made.python == python
    assert made.base is not None
    assert made.base.python == python


@cases(
    "settled asked chosen why",
    ("the newest that had a successor", {"3.9", "3.10"}, None, "3.10",
     "3.11 was the newest Python when PyTorch"),
    ("all of them had one", {"3.9", "3.10", "3.11"}, None, "3.11",
     "the newest that both the wheels and"),
    ("none had one: the oldest", set[str](), None, "3.8", "3.9 was the newest Python when PyTorch"),
    ("what is asked for", {"3.9", "3.10"}, "3.11", "3.11", "as requested"),
    ("without a wheel", {"3.9", "3.10"}, "3.13", None, "as requested"),
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


@cases(
    "request_ driver gpu words",
    ("nothing newer fits", Request(), "570.172.08", "8.6", "the newest that fits;"),
    ("the cuDNN of a newer one has dropped the GPU", Request(), "470.256.02", "Tesla K80",
     "the newest that fits and whose cuDNN supports every GPU (that of 2.7.1 does"),
    ("a newer one needs more", Request(), "470.82.01", "NVIDIA A100-SXM4-80GB",
     "the newest that fits without cuda-compat ("),
    ("it was requested", Request(framework_version="==2.0.1"), "570.172.08", "8.6",
     "the requested release;"),
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


@cases(
    "base python glibc",
    ("an official image", "python:3.9-slim-bookworm", "3.9", "2.36"),
    ("a mirror", "m.example/x/python:3.10-slim-trixie", "3.10", "2.41"),
    ("NVIDIA's image", "nvidia/cuda:11.7.1-devel-ubuntu22.04", "3.10", "2.35"),
    ("an image that nobody knows", "team/base:7", "3.10", None),
)
def test_a_named_base_brings_its_own_python(base: str, python: str, glibc: str | None) -> None:
    made = plan(Request(cuda="11.7", base=base), host("515.65.01", "8.6", python="3.11"))
    assert made.base is not None
    assert (made.python, made.base.glibc) == (python, glibc)


def test_a_devel_image_stands_on_nvidia_s() -> None:
    made = plan(Request(cuda="11.7", flavour="devel"), host("515.65.01", "8.6"))
    assert made.base is not None
    assert made.base.reference == "docker.io/nvidia/cuda:11.7.1-devel-ubuntu22.04"
    assert made.python == "3.10"


@cases(
    "request_ code",
    ("NVIDIA's packages for 13.0 hold nvcc",
     Request(cuda="13.0", flavour="devel", base="bootstrap"), None),
    ("those for 11.7 do not", Request(cuda="11.7", flavour="devel", base="bootstrap"),
     "no-devel-base"),
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


@cases(
    "sm ptx capability tegra code",
    ("its own binary", [(8, 0), (8, 6)], None, (8, 6), False, "sm_86"),
    ("a lower minor's binary", [(8, 0)], None, (8, 6), False, "sm_80 binary"),
    ("never a higher minor's", [(8, 6)], None, (8, 0), False, "none"),
    ("never another major's", [(7, 5)], None, (8, 0), False, "none"),
    ("PTX runs on anything later", [(7, 5)], (7, 5), (8, 0), False, "PTX"),
    ("PTX of a later one does not", [(8, 0)], (9, 0), (7, 5), False, "none"),
    ("Tegra takes only its own", [(8, 0)], None, (8, 7), True, "none"),
    ("nobody has read what is in it", [], None, (8, 0), False, "unknown"),
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
