"""The packages of --with choose the release of the framework: uv is real, the index is local."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from images.registry.errors import ImageNotFoundError, RegistryUnreachableError
from images.store.local import local_path
from images.system import process
from provision.build.base import BuildSettings, PlanInputs, require_plan
from provision.build.packages import PackageChoice
from provision.build.pipeline import choose_packages, lock_for
from provision.build.source.key import key_for
from provision.build.source.wheel_cache import WheelCache
from provision.catalog.loading import load
from provision.lock import solve
from provision.lock.lockfile import Lock, parse_lock
from provision.lock.solve import NoSolutionError
from provision.lock.uv import WheelTarget
from provision.lock.uv_answers import Answer, UvAnswers, UvQuestion
from provision.model.plan import HostFacts, Plan, Request
from provision.output.console import Console
from provision.resolve import fitting_releases, resolve
from tests.kit.cases import cases
from tests.kit.hosts import host
from tests.kit.local_index import LocalIndex, pure, sdist, serving_uv, wheel
from tests.kit.wheel_maker import entry, fatbin, targets

A100 = host("535.104.05", "8.0")

COMPILED = sdist("flash", "2.8.3", "from torch.utils import cpp_extension\n")


def compiled(name: str, version: str, python: str, *requires: str) -> tuple[str, bytes]:
    tags = f"{python}-{python}-manylinux_2_17_x86_64"
    text = "".join(f"Requires-Dist: {line}\n" for line in requires)
    return f"{name}-{version}-{tags}.whl", wheel(name, version, tags, text)


WITH_NVCC = host("580.95.05", "8.0")
"""A host whose plan for CUDA 13.0 has a compiler without a registry."""
RELEASES = ("2.0.1", "2.4.1", "2.5.1")


def torches(facts: HostFacts = A100) -> list[tuple[str, bytes]]:
    """Wheels of the builds that plans for a host choose, for two Pythons."""
    found = []
    for release in RELEASES:
        plan = resolve([facts], Request(framework_version=f"=={release}"), load())
        found += [compiled("torch", f"{release}+{plan.wheel_tag}", p) for p in ("cp311", "cp312")]
    return found


VLLM = [pure("vllm", "0.2.0", "torch>=2.0"), pure("vllm", "0.6.0", "torch==2.4.1")]
WITH_EXTRA = [
    pure("transformers", "4.40.0", 'torch>=1.13; extra == "torch"', extras=["torch"]),
    pure("transformers", "5.0.0", 'torch>=2.4; extra == "torch"', 'torch==2.0; extra == "dev"',
         extras=["torch", "dev"]),
]  # fmt: skip


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalIndex]:
    with serving_uv(monkeypatch, tmp_path) as server:
        server.more = [pure("pip", "26.0"), compiled("numpy", "1.26.4", "cp312"), *torches()]
        yield server


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(Console, "warn", lambda _, message, fix: found.append(f"{message} {fix}"))
    return found


def inputs_of(request: Request, tmp_path: Path, *hosts: HostFacts, **more: Any) -> PlanInputs:
    settings = BuildSettings(ca=None, offline=False, state=tmp_path, env={}, **more)
    return PlanInputs(hosts or (A100,), request, load(), settings, Console())


def planned(
    request: Request, tmp_path: Path, facts: HostFacts = A100, **more: Any
) -> tuple[Plan, Lock]:
    """The plan that the packages lead to, and its lock from the local index."""
    inputs = inputs_of(request, tmp_path, facts, **more)
    choice = PackageChoice(inputs)
    plan = choice.choose(require_plan(inputs.plan()))
    return plan, lock_for(plan, choice)


def versions(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.wheels}


def request_of(index: LocalIndex, *companions: str, **more: Any) -> Request:
    return Request(companions=companions, index_url=index.url("simple"), base="bootstrap", **more)


def with_nvcc(index: LocalIndex, *companions: str, **more: Any) -> Request:
    """A request for CUDA 13.0 and PyTorch 2.9.1, which the index gets."""
    index.more += [compiled("torch", "2.9.1+cu130", python) for python in ("cp311", "cp312")]
    release = {"framework_version": "==2.9.1", "cuda": "13.0", "python": "3.11"}
    return request_of(index, *companions, **release, **more)


def test_the_newest_release_of_the_package_chooses_the_framework(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += VLLM
    plan, lock = planned(request_of(index, "vllm"), tmp_path)
    assert plan.framework_version == "2.4.1"
    assert "works with vllm 0.6.0" in plan.reasons[0].message
    assert versions(lock)["torch"] == f"2.4.1+{plan.wheel_tag}"
    assert versions(lock)["vllm"] == "0.6.0"
    assert said == []


def test_the_release_that_was_found_is_not_given_up_for_a_newer_one_of_another_package(
    index: LocalIndex, tmp_path: Path
) -> None:
    """The plan has NumPy, too, and uv would take its newest release first."""
    index.more += [
        compiled("numpy", "1.26.4", "cp311"),
        compiled("numpy", "1.25.0", "cp311"),
        pure("vllm", "0.2.0", "torch>=2.0"),
        pure("vllm", "0.6.0", "torch==2.4.1", "numpy<1.26"),
    ]
    plan, lock = planned(request_of(index, "vllm", python="3.11"), tmp_path)
    assert plan.framework_version == "2.4.1"
    assert versions(lock)["vllm"] == "0.6.0"


@cases(
    "packages base",
    ("a compiler", [("lora", "vllm"), ("vllm", "torch>=2.0")], ("g++", "make", "python3-dev")),
    ("nothing", [("lora", "torch>=2.0")], ()),
    ("what was brought for another purpose", [("lora", "triton"), ("triton", "torch>=2.0")], ()),
)
def test_the_base_has_what_packages_that_were_brought_need(
    packages: Sequence[tuple[str, str]], base: tuple[str, ...], index: LocalIndex, tmp_path: Path
) -> None:
    index.more += [pure(name, "1.0", requires) for name, requires in packages]
    inputs = inputs_of(request_of(index, "lora"), tmp_path)
    plan, choice = choose_packages(require_plan(inputs.plan()), inputs, lambda: None)
    assert plan.base is not None
    assert plan.base.apt == base
    assert any(note.code == "run-time-base" for note in plan.notes) == bool(base)
    lock = lock_for(plan, choice)
    assert lock.plan.base is not None
    assert lock.plan.base.apt == base


SOURCES = {"kernels/cuda/csrc/a.cu": b"__global__ void a() {}"}
LOADS = {"kernels/cuda/load.py": b"from torch.utils.cpp_extension import load\n"}


@cases(
    "name files tags flavour",
    ("sources, and a module that compiles them", "kernels", {**SOURCES, **LOADS}, "py3-none-any",
     "devel"),
    ("sources alone", "kernels", SOURCES, "py3-none-any", "runtime"),
    ("a module alone", "kernels", LOADS, "py3-none-any", "runtime"),
    ("compiled already", "kernels", {**SOURCES, **LOADS, "kernels/_C.so": b""}, "py3-none-any",
     "runtime"),
    ("a package that runs without, as the table says", "basicsr", {**SOURCES, **LOADS},
     "py3-none-any", "runtime"),
)  # fmt: skip
def test_a_wheel_that_compiles_cuda_code_gets_the_compiler(
    name: str,
    files: Mapping[str, bytes],
    tags: str,
    flavour: str,
    index: LocalIndex,
    tmp_path: Path,
) -> None:
    text = "Requires-Dist: torch>=2.0\n"
    toolkit = pure("cuda_toolkit", "13.0.2", extras=["nvcc", "cccl", "crt", "nvvm", "cudart"])
    beside = [pure("ninja", "1.13"), pure("setuptools", "80.0"), toolkit]
    index.more += [(f"{name}-1.0-{tags}.whl", wheel(name, "1.0", tags, text, files)), *beside]
    inputs = inputs_of(with_nvcc(index, name), tmp_path, WITH_NVCC)
    plan, _ = choose_packages(require_plan(inputs.plan()), inputs, lambda: None)
    assert plan.flavour == flavour


def test_a_package_that_works_with_the_preferred_release_does_not_change_it(
    index: LocalIndex, tmp_path: Path
) -> None:
    facts, request = host("580.95.05", "9.0"), request_of(index, "accelerate")
    preferred = resolve([facts], request, load())
    newest = fitting_releases([facts], request, load())[str(preferred.python)][-1]
    assert newest != preferred.framework_version  # only likely to exist, or not supported natively
    tag = f"cp{str(preferred.python).replace('.', '')}"
    index.more += [compiled("torch", str(v), tag) for v in (preferred.framework_version, newest)]
    index.more += [pure("accelerate", "1.0", "torch>=2.0"), pure("numpy", "2.4.0")]
    plan, _ = planned(request, tmp_path, facts)
    assert plan.framework_version == preferred.framework_version


def test_without_packages_the_index_is_not_consulted(index: LocalIndex, tmp_path: Path) -> None:
    request = request_of(index, "torchvision")
    inputs = inputs_of(request, tmp_path)
    plan = inputs.plan()
    assert PackageChoice(inputs).choose(plan) is plan
    assert index.asked == []


def test_an_old_release_beside_a_pinned_framework_is_reported_with_the_way_out(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += VLLM
    request = request_of(index, "vllm", framework_version="==2.5.1")
    plan, lock = planned(request, tmp_path)
    assert (plan.framework_version, versions(lock)["vllm"]) == ("2.5.1", "0.2.0")
    assert [warning.code for warning in lock.plan.warnings][-1:] == ["old-release"]
    assert "vllm 0.2.0 is older than the newest, 0.6.0" in said[-1]
    assert "works with PyTorch 2.4.1" in said[-1]
    assert "Remove --framework-version '==2.5.1'" in said[-1]


@cases(
    "held words",
    ("one", ["av"], "av 1.2 is older than the newest, 3.0: gradio holds it back."),
    ("several share a line", ["av", "pillow"],
     ("2 packages are older than their newest because others hold them back: av 1.2 "
      "(newest: 3.0; held by gradio), pillow 1.2 (newest: 3.0; held by gradio).")),
)  # fmt: skip
def test_packages_that_others_hold_back_are_said_once(
    index: LocalIndex, tmp_path: Path, said: list[str], held: list[str], words: str
) -> None:
    index.more += [pure(name, version) for name in held for version in ("1.2", "3.0")]
    index.more.append(pure("gradio", "4.0", *(f"{name}<2" for name in held)))
    planned(request_of(index, "gradio==4.0", *held), tmp_path)
    assert [one.strip() for one in said if "newest" in one] == [words]


def test_an_old_driver_is_named_as_what_keeps_the_newer_release_away(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += [pure("vllm", "0.2.0", "torch>=2.0"), pure("vllm", "0.6.0", "torch>=2.9")]
    index.more.append(compiled("torch", "2.9.1", "cp311"))
    old = host("460.32.03", "8.0")
    index.more += [one for one in torches(old) if one not in index.more]
    _, lock = planned(request_of(index, "vllm"), tmp_path, old)
    assert versions(lock)["vllm"] == "0.2.0"
    assert "works with PyTorch 2.9.1. " in said[-1]
    assert "driver" in said[-1]


def test_another_python_is_taken_where_the_package_is_newer(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += [compiled("fast", "1.0", "cp311"), compiled("fast", "2.0", "cp312")]
    request = Request(companions=("fast",), index_url=index.url("simple"))
    plan, _ = planned(request, tmp_path)
    assert (plan.python, plan.base.python if plan.base else None) == ("3.12", "3.12")
    assert said == []


def test_a_pinned_python_is_kept_and_named_as_the_obstacle(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += [compiled("fast", "1.0", "cp311"), compiled("fast", "2.0", "cp312")]
    request = Request(companions=("fast",), index_url=index.url("simple"), python="3.11")
    plan, _ = planned(request, tmp_path)
    assert plan.python == "3.11"
    assert "Use --python 3.12" in said[-1]


def test_an_extra_that_names_the_framework_holds(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += WITH_EXTRA
    request = request_of(index, "transformers", framework_version="==2.0.1")
    plan, lock = planned(request, tmp_path)
    assert versions(lock)["transformers"] == "4.40.0"
    assert "transformers==4.40.0" in plan.requirements
    assert "Remove --framework-version" in said[-1]


def test_an_extra_holds_for_the_package_of_a_package(index: LocalIndex, tmp_path: Path) -> None:
    index.more += [*WITH_EXTRA, pure("trl", "1.0", "transformers")]
    request = request_of(index, "trl", framework_version="==2.0.1")
    _, lock = planned(request, tmp_path)
    assert versions(lock)["transformers"] == "4.40.0"


def test_an_extra_that_the_requested_release_refuses_is_an_error_with_the_release_that_fits(
    index: LocalIndex, tmp_path: Path
) -> None:
    index.more += WITH_EXTRA
    request = request_of(index, "transformers==5.0.0", framework_version="==2.0.1")
    with pytest.raises(NoSolutionError) as caught:
        planned(request, tmp_path)
    assert "transformers 5.0.0 needs torch>=2.4 (its extra 'torch')" in caught.value.message
    assert "--with transformers==4.40.0" in caught.value.fix


def test_an_extra_is_a_warning_where_a_project_pins_both(index: LocalIndex, tmp_path: Path) -> None:
    index.more += WITH_EXTRA
    request = request_of(index, "transformers==5.0.0", framework_version="==2.0.1")
    plan, lock = planned(request._replace(declared_in="app.txt, line 1"), tmp_path)
    assert versions(lock)["transformers"] == "5.0.0"
    assert "extra-unmet" in [warning.code for warning in plan.warnings]


def test_an_extra_that_no_release_can_meet_is_a_warning_for_what_was_not_requested(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += [WITH_EXTRA[1], pure("trl", "1.0", "transformers")]
    plan, lock = planned(request_of(index, "trl", framework_version="==2.0.1"), tmp_path)
    assert versions(lock)["transformers"] == "5.0.0"
    assert "needs torch>=2.4 for its PyTorch part" in plan.warnings[-1].message
    assert said == []  # the job shows the warnings of its plan


def for_cuda(
    version: str, *runtimes: str, python: str = "cp312", code: Sequence[bytes] = ()
) -> tuple[str, bytes]:
    """A release of `kernels` with a library for each of these CUDA runtimes, and in each of them
    these fatbins.
    """
    tags = f"{python}-{python}-manylinux_2_17_x86_64"
    libraries = {
        f"kernels/_C{i}.so": b"\x7fELF"
        + bytes(4092)
        + f"\0libcudart.so.{name}\0".encode().ljust(24, b"\0")
        + b"".join(code)
        + bytes(9000)
        for i, name in enumerate(runtimes)
    }
    data = wheel("kernels", version, tags, "Requires-Dist: torch\n", libraries)
    return f"kernels-{version}-{tags}.whl", data


def kernels(releases: Mapping[str, tuple[str, ...]]) -> list[tuple[str, bytes]]:
    return [
        for_cuda(version, *runtimes, python=python)
        for version, runtimes in releases.items()
        for python in ("cp311", "cp312", "cp313")
    ]


OLD_AND_NEW = {"0.1": ("12",), "0.4": ("12",), "0.5": ("12",), "0.6": ("13",), "0.9": ("13",)}


@cases(
    "releases expected",
    ("newer ones are for a CUDA that the driver lacks", OLD_AND_NEW, "0.5"),
    ("it has a library for each", {"0.1": ("12",), "0.2": ("12", "13")}, "0.2"),
    ("it needs no CUDA", {"0.1": ("12",), "0.2": ()}, "0.2"),
)
def test_the_newest_release_for_the_plan_s_cuda_is_taken(
    index: LocalIndex, tmp_path: Path, releases: dict[str, tuple[str, ...]], expected: str
) -> None:
    index.more += kernels(releases)
    plan, lock = planned(request_of(index, "kernels"), tmp_path)
    assert (plan.cuda or "").startswith("12.")
    assert versions(lock)["kernels"] == expected


def test_a_release_that_is_held_back_is_said_with_the_library_that_holds_it(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += kernels(OLD_AND_NEW)
    _, lock = planned(request_of(index, "kernels"), tmp_path)
    assert len(said) == 1
    assert "kernels 0.5 is older than the newest, 0.9: 0.9 is compiled for CUDA 13" in said[0]
    assert "kernels/_C0.so needs libcudart.so.13" in said[0]
    assert [warning.code for warning in lock.plan.warnings] == ["old-release"]


def test_a_package_of_a_package_for_another_cuda_is_a_warning(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += [pure("engine", "1.0", "kernels"), *kernels({"0.9": ("13",)})]
    _, lock = planned(request_of(index, "engine"), tmp_path)
    assert [warning.code for warning in lock.plan.warnings] == ["other-cuda"]
    assert len(said) == 1
    assert "kernels 0.9 is compiled for CUDA 13" in said[0]


def test_a_package_that_brings_its_own_runtime_is_for_every_cuda(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    """As faiss-gpu-cu12 does beside a PyTorch for CUDA 13; here the other way round."""
    index.more = [
        item if not item[0].startswith("torch-") else with_runtime(item) for item in index.more
    ]
    index.more += kernels({"0.9": ("13",)})
    index.more += [
        pure("search", "1.0", "kernels", "nvidia-cuda-runtime"),
        pure("nvidia_cuda_runtime", "13.0.96"),
        pure("nvidia_cuda_runtime_cu12", "12.1.105"),
    ]
    _, lock = planned(request_of(index, "search", "kernels"), tmp_path)
    assert versions(lock)["kernels"] == "0.9"
    assert said == []


def with_runtime(item: tuple[str, bytes]) -> tuple[str, bytes]:
    """A torch that requires NVIDIA's runtime, as those of PyPI do."""
    name, version, python = item[0].split("-")[:3]
    return compiled(name, version, python, "nvidia-cuda-runtime-cu12")


def test_another_cuda_of_the_same_framework_is_taken_for_a_package(
    index: LocalIndex, tmp_path: Path
) -> None:
    facts, request = host("580.95.05", "9.0"), request_of(index, "kernels")
    preferred = resolve([facts], request, load())
    assert (preferred.cuda or "").startswith("13.")
    index.more += kernels({"1.0": ("12",)})
    index.more += builds(preferred, "cu126", "cu128", "cu129", "cu130")
    plan, lock = planned(request, tmp_path, facts)
    assert (plan.cuda or "").startswith("12.")
    assert plan.framework_version == preferred.framework_version
    assert versions(lock)["kernels"] == "1.0"
    assert versions(lock)["torch"] == f"{plan.framework_version}+{plan.wheel_tag}"


def test_another_release_of_the_framework_is_taken_for_its_cuda(
    index: LocalIndex, tmp_path: Path
) -> None:
    """Builds of the newest PyTorch for CUDA 12 have no code for an RTX 5090; an older one has."""
    facts, request = host("580.95.05", "12.0"), request_of(index, "kernels")
    preferred = resolve([facts], request, load())
    older = resolve([facts], request._replace(cuda="12.9"), load())
    assert older.framework_version != preferred.framework_version
    index.more += kernels({"1.0": ("12",)})
    for plan in (preferred, older):
        tags = {f"cp{str(one.python).replace('.', '')}" for one in (preferred, older)}
        version = f"{plan.framework_version}+{plan.wheel_tag}"
        index.more += [compiled("torch", version, tag) for tag in tags]
    index.more.append(pure("numpy", "2.4.0"))
    found, lock = planned(request, tmp_path, facts)
    assert (found.framework_version, found.cuda) == (older.framework_version, "12.9")
    assert versions(lock)["kernels"] == "1.0"


def test_the_cuda_of_what_a_package_needs_decides_if_there_is_one_for_all(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    """As CTranslate2 for faster-whisper: it is not requested itself."""
    facts, request = host("580.95.05", "9.0"), request_of(index, "engine")
    preferred = resolve([facts], request, load())
    assert (preferred.cuda or "").startswith("13.")
    index.more += [pure("engine", "1.0", "kernels"), *kernels({"1.0": ("12",)})]
    index.more += builds(preferred, "cu126", "cu128", "cu129", "cu130")
    plan, lock = planned(request, tmp_path, facts)
    assert (plan.cuda or "").startswith("12.")
    assert plan.framework_version == preferred.framework_version
    assert versions(lock)["torch"] == f"{plan.framework_version}+{plan.wheel_tag}"
    assert said == []


def builds(plan: Plan, *tags: str) -> list[tuple[str, bytes]]:
    """Builds of a plan's release of PyTorch, and a newer NumPy."""
    python = f"cp{str(plan.python).replace('.', '')}"
    return [
        *(compiled("torch", f"{plan.framework_version}+{tag}", python) for tag in tags),
        pure("numpy", "2.4.0"),
    ]


def for_each(name: str, version: str, *cudas: str, text: str = "") -> tuple[str, bytes]:
    """A wheel for every machine with a library for each of these CUDAs, which uv takes as large."""
    libraries = {f"{name}/lib{name}_cuda{one}.so": b"\x7fELF" + bytes(64) for one in cudas}
    tags = "py3-none-manylinux_2_17_x86_64"
    data = wheel(name, version, tags, text, {**libraries, f"{name}/__init__.py": b""})
    return f"{name}-{version}-{tags}.whl", data


V100 = host("550.54.14", "7.0")


def pinned(index: LocalIndex, *pins: str, **more: Any) -> Request:
    """The request of a project that pins every version."""
    more = {"framework_version": "==2.5.1", "declared_in": "requirements.txt"} | more
    return request_of(index, *pins, settled=True, **more)


def test_the_pins_of_a_project_take_the_framework_s_build_for_their_cuda(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    """bitsandbytes before 0.50 loads only a library for exactly the CUDA of PyTorch."""
    request = pinned(index, "bitsandbytes==0.41.5", "pip==26.0")
    preferred = resolve([V100], request, load())
    assert preferred.cuda == "12.4"
    index.more += [for_each("bitsandbytes", "0.41.5", "118", "120", "121", "122")]
    index.more += builds(preferred, "cu118", "cu121", "cu124")
    plan, lock = planned(request, tmp_path, V100)
    assert (plan.framework_version, plan.cuda) == ("2.5.1", "12.1")
    assert versions(lock)["torch"] == "2.5.1+cu121"
    assert said == []


@cases(
    "others fix",
    ("the newest release that has it", [("0.44.9", ("121", "124")), ("0.52.0", ("118", "130"))],
     "In requirements.txt, pin bitsandbytes==0.44.9."),
    ("no release has it", [("0.43.0", ("120", "121"))],
     "Name an index that has bitsandbytes for CUDA 12.4 with --index."),
    ("a newer one is for another PyTorch",
     [("0.44.9", ("121", "124")), ("0.52.0", ("124", "130"), "Requires-Dist: torch>=2.6\n")],
     "In requirements.txt, pin bitsandbytes==0.44.9."),
    ("a newer one refuses another pin",
     [("0.44.9", ("121", "124")), ("0.52.0", ("124", "130"), "Requires-Dist: pip>=26.1\n")],
     "In requirements.txt, pin bitsandbytes==0.44.9."),
)  # fmt: skip
def test_pins_for_another_cuda_than_a_named_one_are_refused(
    index: LocalIndex, tmp_path: Path, others: list[tuple[Any, ...]], fix: str
) -> None:
    request = pinned(index, "bitsandbytes==0.41.5", "pip==26.0", cuda="12.4")
    index.more += [for_each("bitsandbytes", "0.41.5", "120", "121")]
    for version, cudas, *text in others:
        index.more.append(for_each("bitsandbytes", version, *cudas, text="".join(text)))
    index.more += builds(resolve([V100], request, load()), "cu121", "cu124")
    with pytest.raises(NoSolutionError) as caught:
        planned(request, tmp_path, V100)
    assert "bitsandbytes 0.41.5 does not work with PyTorch 2.5.1" in caught.value.message
    assert "12.0 to 12.1 (its newest library is" in caught.value.message
    assert caught.value.fix == fix


def test_pins_that_fit_every_cuda_leave_the_plan_as_it_is(
    index: LocalIndex, tmp_path: Path
) -> None:
    request = pinned(index, "bitsandbytes==0.45.2", "kernels==0.2")
    preferred = resolve([V100], request, load())
    index.more += [for_each("bitsandbytes", "0.45.2", "121", "124", "126")]
    index.more += kernels({"0.2": ("12", "13")})
    index.more += builds(preferred, "cu121", "cu124")
    plan, _ = planned(request, tmp_path, V100)
    assert plan == preferred


def test_a_package_gets_the_release_for_its_pytorch_that_no_metadata_names(
    index: LocalIndex, tmp_path: Path
) -> None:
    """uv takes the newest torchcodec beside any PyTorch; here another package wants 2.4.1."""
    index.more += [*VLLM, *(pure("torchcodec", one) for one in ("0.0.3", "0.1.1", "0.17.0"))]
    plan, lock = planned(request_of(index, "torchcodec"), tmp_path)
    found = versions(lock)
    assert (plan.framework_version, found["torchcodec"]) == ("2.5.1", "0.1.1")
    plan, lock = planned(request_of(index, "vllm", "torchcodec"), tmp_path)
    assert (plan.framework_version, versions(lock)["torchcodec"]) == ("2.4.1", "0.0.3")


def test_a_package_without_a_release_for_the_plan_s_cuda_is_refused(
    index: LocalIndex, tmp_path: Path
) -> None:
    index.more += kernels({"0.8": ("13",), "0.9": ("13",)})
    with pytest.raises(NoSolutionError) as caught:
        planned(request_of(index, "kernels"), tmp_path)
    assert "kernels 0.9 does not work with PyTorch" in caught.value.message
    assert "it is compiled for CUDA 13" in caught.value.message
    assert caught.value.fix == "Upgrade the NVIDIA driver to 580 or newer."
    newer = host("580.95.05", "8.0")
    index.more += builds(resolve([newer], Request(), load()), "cu130")
    _, lock = planned(request_of(index, "kernels"), tmp_path / "b", newer)
    assert versions(lock)["kernels"] == "0.9"


def test_packages_that_no_release_of_the_framework_fits_are_refused(
    index: LocalIndex, tmp_path: Path
) -> None:
    index.more += [pure("late", "1.0", "torch>=2.5")]
    request = request_of(index, "late", framework_version="<=2.4.1")
    with pytest.raises(NoSolutionError) as caught:
        planned(request, tmp_path)
    assert "No release of late works with PyTorch" in caught.value.message
    assert "Remove --framework-version" in caught.value.fix


def test_the_wheel_is_built_for_what_the_project_pins(index: LocalIndex, tmp_path: Path) -> None:
    index.more += [COMPILED]
    request = with_nvcc(index, "flash", declared_in="reqs.txt")
    with pytest.raises(NoSolutionError) as caught:
        planned(request, tmp_path, WITH_NVCC, typed="--gpu 8.0")
    assert "provision wheel flash==2.8.3 " in caught.value.fix
    assert " --framework-version 2.9.1 " in caught.value.fix


def test_the_release_to_request_instead_was_resolved(index: LocalIndex, tmp_path: Path) -> None:
    """The fix of a pin that nothing suits was to request that very pin, to see why."""
    index.more += [pure("late", "1.0", "torch>=2.4"), pure("late", "2.0", "torch==99.0")]
    with pytest.raises(NoSolutionError) as caught:
        planned(request_of(index, "late==2.0", python="3.11"), tmp_path)
    assert caught.value.fix == "Use --with late==1.0."
    _, lock = planned(request_of(index, "late==1.0", python="3.11"), tmp_path)
    assert versions(lock)["late"] == "1.0"


@cases(
    "more said",
    ("only the source", [COMPILED], "flash 2.8.3: its setup.py imports torch."),
    ("a wheel of an old pre-release only", [COMPILED, pure("flash", "0.1.dev5")],
     "flash 2.8.3: its setup.py imports torch."),
    ("no such package", [], "flash: the index has no wheel for Python"),
)  # fmt: skip
def test_a_package_without_wheels_is_named(
    index: LocalIndex, tmp_path: Path, more: list[tuple[str, bytes]], said: str
) -> None:
    index.more += more
    with pytest.raises(NoSolutionError) as caught:
        planned(request_of(index, "flash", framework_version="==2.4.1"), tmp_path)
    assert said in caught.value.message
    assert "--index" in caught.value.fix
    assert more or "provision wheel" not in caught.value.fix


def test_a_package_with_a_source_alone_is_built_once(index: LocalIndex, tmp_path: Path) -> None:
    index.more += [COMPILED, pure("einops", "1.0")]
    request = with_nvcc(index, "flash>=2", "einops")
    with pytest.raises(NoSolutionError) as caught:
        planned(request, tmp_path, WITH_NVCC, typed="--driver 580.95.05 --gpu 8.0")
    command = (
        "provision wheel flash==2.8.3 --with einops --framework pytorch --framework-version 2.9.1 "
        "--cuda 13.0 --python 3.11 --driver 580.95.05 --gpu 8.0"
    )
    assert f"Build it once, then repeat this: {command}\n" in caught.value.fix


def test_a_wheel_that_was_built_here_is_taken_if_the_index_has_none(
    index: LocalIndex, tmp_path: Path
) -> None:
    index.more += [COMPILED, pure("einops", "1.0")]
    index.more += [pure("flash", "0.1.dev5")]  # uv would take it if nothing else were there
    request = request_of(index, "flash", "einops", framework_version="<2.5")
    start = require_plan(resolve([A100], request, load()))
    tag = f"cp{str(start.python).replace('.', '')}"
    name, data = compiled("flash", "2.8.3+local", tag, "einops", "torch>=2.0")
    (tmp_path / name).write_bytes(data)
    key = key_for(
        start,
        name="flash",
        version="2.8.3",
        sdist_sha256="0" * 64,
        capabilities=[(8, 0)],
        environment={},
    )
    WheelCache(tmp_path / "wheels").keep(tmp_path / name, key, glibc="2.17", compiler=())
    plan, lock = planned(request, tmp_path, wheels=tmp_path / "wheels")
    assert (plan.framework_version, plan.python) == (start.framework_version, start.python)
    [mine] = [wheel for wheel in lock.wheels if wheel.name == "flash"]
    assert mine.sha256 == hashlib.sha256(data).hexdigest()
    assert local_path(mine.url) == tmp_path / "wheels" / mine.sha256 / name
    assert (mine.version, mine.size) == ("2.8.3+local", len(data))
    assert "flash==2.8.3" in lock.plan.requirements
    assert [warning.code for warning in lock.plan.warnings].count("local-wheel") == 1
    assert parse_lock(lock.text).packages
    index.more += [pure("flash", "3.0", "torch>=2.0")]
    _, later = planned(request, tmp_path, wheels=tmp_path / "wheels")
    assert versions(later)["flash"] == "3.0"


@cases(
    "pins",
    ("required", ("flash==2.8.3", "einops==1.0")),
    ("what a requirement needs", ("einops==1.0",)),
)
def test_the_pins_of_a_project_take_a_wheel_that_was_built_here(
    pins: tuple[str, ...], index: LocalIndex, tmp_path: Path
) -> None:
    index.more += [COMPILED, pure("einops", "1.0", "flash")]
    request = with_nvcc(index, *pins, constraints=("flash==2.8.3",), settled=True)
    kept = {"wheels": tmp_path / "wheels"}
    with pytest.raises(NoSolutionError) as caught:
        planned(request, tmp_path, WITH_NVCC, **kept, typed="--gpu 8.0 --cuda 13.0")
    start = require_plan(resolve([WITH_NVCC], request, load()))
    assert "only the source of flash" in caught.value.message
    assert caught.value.fix.startswith(
        "Build it once, then repeat this: provision wheel flash==2.8.3 --framework pytorch "
        f"--framework-version 2.9.1 --python {start.python} --gpu 8.0 --cuda 13.0"
    )
    data = b""
    for version in ("2.8.4", "2.8.3"):  # another release does not stand for the pin
        name, data = compiled("flash", version, f"cp{str(start.python).replace('.', '')}")
        (tmp_path / name).write_bytes(data)
        key = key_for(
            start,
            name="flash",
            version=version,
            sdist_sha256="0" * 64,
            capabilities=[(8, 0)],
            environment={},
        )
        if version != "2.8.3":
            with pytest.raises(NoSolutionError):
                planned(request, tmp_path, WITH_NVCC, **kept)
        WheelCache(tmp_path / "wheels").keep(tmp_path / name, key, glibc="2.17", compiler=())
    plan, lock = planned(request, tmp_path, WITH_NVCC, **kept)
    assert plan.framework_version == "2.9.1"
    [mine] = [wheel for wheel in lock.wheels if wheel.name == "flash"]
    assert mine.sha256 == hashlib.sha256(data).hexdigest()
    assert [warning.code for warning in lock.plan.warnings].count("local-wheel") == 1
    assert not any("file:" in line for line in lock.plan.requirements)


def test_a_wheel_is_taken_by_its_address(index: LocalIndex, tmp_path: Path) -> None:
    name, data = for_cuda("0.7", "12", python="cp311")
    index.more += [(name, data), *kernels({"0.9": ("12",)})]
    address = f"{index.url('simple')}files/{name}"
    plan, lock = planned(request_of(index, f"kernels @ {address}"), tmp_path)
    [mine] = [wheel for wheel in lock.wheels if wheel.name == "kernels"]
    assert (mine.version, mine.url) == ("0.7", address)
    assert mine.sha256 == hashlib.sha256(data).hexdigest()
    assert plan.python == "3.11"


def test_a_wheel_by_its_address_for_another_cuda_is_refused(
    index: LocalIndex, tmp_path: Path
) -> None:
    name, data = for_cuda("0.7", "13", python="cp311")
    index.more += [(name, data), *kernels({"0.6": ("12",)})]
    address = f"{index.url('simple')}files/{name}"
    with pytest.raises(NoSolutionError, match="it is compiled for CUDA 13"):
        planned(request_of(index, f"kernels @ {address}"), tmp_path)


def variants(version: str) -> list[tuple[str, bytes]]:
    """Wheel variants, with the names and the metadata that variantlib 0.2.2 gives them."""
    provider = {
        "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
        "requires": ["nvidia-variant-provider>=0.0.1"],
    }
    about = {
        "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {"nvidia": provider},
    }
    properties = {
        f"cu{cuda}": {"nvidia": {"cuda_version_lower_bound": [f"{cuda}.0"]}} for cuda in (12, 13)
    }
    labels = {**properties, "null": {}}
    found = [
        (f"kernels-{version}-variants.json", json.dumps({**about, "variants": labels}).encode())
    ]
    for label, own in labels.items():
        tags = "cp311-cp311-manylinux_2_17_x86_64"
        text = json.dumps({**about, "variants": {label: own}}).encode()
        more = {f"kernels-{version}.dist-info/variant.json": text}
        data = wheel("kernels", version, tags, more=more)
        found.append((f"kernels-{version}-{tags}-{label}.whl", data))
    return found


def test_an_index_with_variants_alone_is_refused_as_such(index: LocalIndex, tmp_path: Path) -> None:
    index.more += variants("1.0")
    with pytest.raises(NoSolutionError) as caught:
        planned(request_of(index, "kernels"), tmp_path)
    assert "kernels: the index has only wheel variants" in caught.value.message
    assert "--index" in caught.value.fix


@pytest.mark.parametrize("preview", ["", "wheel-variants"])
def test_a_plain_wheel_is_taken_beside_variants_whatever_uv_would_try(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preview: str
) -> None:
    monkeypatch.setenv("UV_PREVIEW_FEATURES", preview)
    index.more += [*variants("1.0"), for_cuda("0.9", python="cp311")]
    _, lock = planned(request_of(index, "kernels"), tmp_path)
    assert versions(lock)["kernels"] == "0.9"


def test_a_package_that_has_pre_releases_only_is_taken(index: LocalIndex, tmp_path: Path) -> None:
    index.more.append(pure("telemetry", "0.66b2"))
    _, lock = planned(request_of(index, "telemetry", framework_version="==2.4.1"), tmp_path)
    assert versions(lock)["telemetry"] == "0.66b2"


def test_an_index_that_does_not_answer_leaves_the_plan_as_it_is(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url("broken"))
    request = Request(companions=("vllm",), base="bootstrap")
    inputs = inputs_of(request, tmp_path)
    plan = inputs.plan()
    assert PackageChoice(inputs).choose(plan) == plan


def test_every_release_that_a_plan_may_have_fits_the_hosts() -> None:
    request, catalog = Request(base="bootstrap"), load()
    found = fitting_releases([A100], request, catalog)
    assert found
    for python, releases in found.items():
        for release in (releases[0], releases[-1]):
            exact = Request(base="bootstrap", framework_version=f"=={release}", python=python)
            assert resolve([A100], exact, catalog).error is None, (python, release)


def with_code(*code: bytes) -> list[tuple[str, bytes]]:
    """A release of `kernels` with these fatbins, for each Python."""
    return [for_cuda("1.0", "12", python=one, code=code) for one in ("cp311", "cp312", "cp313")]


@cases(
    "code warned",
    ("binary code for the GPU", ["sm_80 sm_90"], ""),
    ("PTX, which the driver compiles", ["sm_70 compute_70"], ""),
    ("one kernel of two", ["sm_90a", "sm_80"], ""),
    ("only older GPUs", ["sm_70 sm_75"], "sm_70, sm_75"),
    ("only newer GPUs", ["sm_90 compute_90", "sm_90a"], "sm_90, sm_90a, compute_90"),
    ("no device code", [], ""),
)
def test_a_requested_package_without_code_for_the_gpu_is_a_warning(
    index: LocalIndex, tmp_path: Path, said: list[str], code: list[str], warned: str
) -> None:
    index.more += with_code(*(targets(*words.split()) for words in code))
    _, lock = planned(request_of(index, "kernels"), tmp_path)
    assert [warning.code for warning in lock.plan.warnings] == ["no-gpu-code"] * bool(warned)
    if warned:
        assert "kernels 1.0 has no code for a GPU of compute capability 8.0" in said[0]
        assert f"compiled for {warned}." in said[0]
        assert "Request another release of kernels" in said[0]


def test_libraries_for_another_cuda_do_not_count(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    """As in bitsandbytes: its library for CUDA 11 has code for old GPUs."""
    old = b"\x7fELF" + bytes(4092) + b"\0libcudart.so.11.0\0".ljust(24, b"\0") + targets("sm_80")
    for name, whole in with_code(targets("sm_90")):
        with zipfile.ZipFile(io.BytesIO(whole)) as members:
            new = members.read("kernels/_C0.so")
        tags = name.removeprefix("kernels-1.0-").removesuffix(".whl")
        libraries = {"kernels/cuda11.so": old, "kernels/cuda12.so": new}
        data = wheel("kernels", "1.0", tags, "Requires-Dist: torch\n", libraries)
        index.more.append((name, data))
    _, lock = planned(request_of(index, "kernels"), tmp_path)
    assert [warning.code for warning in lock.plan.warnings] == ["no-gpu-code"]
    assert "compiled for sm_90." in said[0]


def test_a_package_of_a_package_without_code_for_the_gpu_is_a_warning(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += [pure("engine", "1.0", "kernels"), *with_code(targets("sm_90"))]
    _, lock = planned(request_of(index, "engine"), tmp_path)
    assert [warning.code for warning in lock.plan.warnings] == ["no-gpu-code"]
    assert "If you use it, request a release of kernels" in said[0]


def test_a_package_of_a_package_is_not_read_without_limit(
    index: LocalIndex, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provision.build.package_code.MOST_BYTES", 100)
    index.more += [pure("engine", "1.0", "kernels"), *with_code(targets("sm_90"))]
    planned(request_of(index, "engine"), tmp_path)
    assert said == []


def test_a_damaged_library_is_no_reason_for_a_warning(
    index: LocalIndex, tmp_path: Path, said: list[str]
) -> None:
    index.more += with_code(targets("sm_90"), fatbin(entry(2, 90), entry(2, 5000)))
    planned(request_of(index, "kernels"), tmp_path)
    assert said == []


QUESTION = UvQuestion(
    lines=("a",),
    target=WheelTarget("3.11", "x86_64", 28),
    index=None,
    offline=False,
    alone=False,
    releases_only=False,
    constraints=(),
    addresses=(),
)


def preferred(facts: HostFacts = A100) -> list[tuple[str, bytes]]:
    """Wheels of the release that the plan prefers, for each Python that a base may have."""
    plan = resolve([facts], Request(), load())
    version = f"{plan.framework_version}+{plan.wheel_tag}"
    tags = [f"cp3{minor}" for minor in range(10, 15)]
    return [*(compiled("torch", version, tag) for tag in tags), pure("numpy", "2.4.0")]


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[UvQuestion]:
    """The questions to uv about packages with all that they need."""
    found: list[UvQuestion] = []
    ask = solve._run_uv

    def counted(asked: UvQuestion, ca_bundle: Path | None) -> Answer:
        if not asked.alone:
            found.append(asked)
        return ask(asked, ca_bundle)

    monkeypatch.setattr(solve, "_run_uv", counted)
    return found


@cases(
    "wheels package framework",
    ("any", [pure("accelerate", "1.0", "torch>=2.0")], "accelerate", None),
    ("one-release-of-the-framework", VLLM, "vllm", "2.4.1"),
    ("older-releases", [pure("old", "1.0", "torch<2.1")], "old", "2.0.1"),
)
def test_a_lock_resolves_the_packages_once(
    wheels: list[tuple[str, bytes]],
    package: str,
    framework: str | None,
    index: LocalIndex,
    tmp_path: Path,
    resolved: list[UvQuestion],
) -> None:
    index.more += [*wheels, *preferred()]
    plan, lock = planned(request_of(index, package), tmp_path)
    assert framework in {None, plan.framework_version}
    assert package in versions(lock)
    assert [asked.lines[0] for asked in resolved] == [plan.indexes[0].requirement]


def test_uv_gets_one_python_and_says_once_what_is_configured(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts each Python that it does not know, and is started for each of these questions."""
    asked: list[tuple[Sequence[str], Any]] = []
    run = process.run

    def counted(argv: Sequence[str], **more: Any) -> process.Completed:
        asked.append((argv, more["env"]))
        return run(argv, **more)

    monkeypatch.setattr(process, "run", counted)
    index.more += VLLM
    planned(request_of(index, "vllm"), tmp_path)
    resolved = [argv for argv, _ in asked if "--format" in argv]
    assert len(resolved) > 4
    assert len({argv[argv.index("--python") + 1] for argv in resolved}) == 1
    listed = [sorted(env.items()) for argv, env in asked if "--emit-index-url" in argv]
    assert [env for env in listed if listed.count(env) > 1] == []
    assert len(listed) <= 3  # PyPI's address, the user's configuration, and that with --index


class AskedError(Exception):
    """For a registry that must not be asked."""


@cases(
    "answer base kind",
    ("none", RegistryUnreachableError("no route", fix="."), None, "bootstrap"),
    ("answers", "sha256:" + "a" * 64, None, "registry"),
    ("no-such-image", ImageNotFoundError("no tag", fix="."), None, "registry"),
    ("not-asked-for-debian", AskedError(), "bootstrap", "bootstrap"),
    ("not-asked-for-a-named-base", AskedError(), "docker.io/library/python:3.11-slim-bookworm",
     "registry"),
)  # fmt: skip
def test_the_base_is_known_before_the_packages_are_resolved(
    answer: str | Exception,
    base: str | None,
    kind: str,
    index: LocalIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resolved: list[UvQuestion],
) -> None:
    """Another base has another Python: what uv found before would be for the wrong one."""
    asked: list[str] = []

    def registry(reference: str, **_: object) -> str:
        asked.append(reference)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("images.registry.digest.resolve_digest", registry)
    index.more += [pure("accelerate", "1.0", "torch>=2.0"), *preferred()]
    inputs = inputs_of(request_of(index, "accelerate")._replace(base=base), tmp_path)
    plan, packages = choose_packages(require_plan(inputs.plan()), inputs, lambda: None)
    lock_for(plan, packages)
    assert plan.base is not None
    assert plan.base.kind == kind
    assert {one.target.python for one in resolved} == {plan.base.python}
    assert len(resolved) == 1
    assert len(asked) == (0 if isinstance(answer, AskedError) else 1)


def test_uv_is_asked_a_question_once_by_all_threads() -> None:
    answers, began, calls = UvAnswers(), threading.Event(), []

    def ask() -> Answer:
        calls.append(1)
        began.wait(10)
        return "locked", "has it", "text"

    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(answers.of, QUESTION, ask) for _ in range(3)]
        began.set()
        assert {one.result(10) for one in found} == {("locked", "has it", "text")}
    assert calls == [1]


def test_a_question_that_failed_fails_for_all() -> None:
    answers = UvAnswers()

    def ask() -> Answer:
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            answers.of(QUESTION, ask)
