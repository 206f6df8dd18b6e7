"""How a package is built from source: environment, requirements, jobs, progress and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision.build.source import inside, rules
from provision.build.source.progress import MOST_ERRORS, FirstErrors, status_of
from provision.build.source.rules import (
    BuiltWheelUnfitError,
    capabilities_of,
    environment_of,
    missing_in,
    requirements_for,
)
from provision.errors import BadInputError
from provision.model.plan import GpuVerdict, Plan
from tests.kit.cases import cases

GIB = 1 << 30


@cases(
    "name capabilities expected",
    ("code for exactly the capability of the host", "torch-scatter", [(9, 0)],
     {"FORCE_CUDA": "1", "TORCH_CUDA_ARCH_LIST": "9.0"}),
    ("several hosts in one wheel", "torch-scatter", [(8, 6), (12, 0)],
     {"FORCE_CUDA": "1", "TORCH_CUDA_ARCH_LIST": "8.6 12.0"}),
    ("a package with code for few capabilities: the nearest below", "flash-attn",
     [(8, 6), (8, 9), (9, 0)],
     {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "80;90", "FORCE_CUDA": "1",
      "TORCH_CUDA_ARCH_LIST": "8.6 8.9 9.0"}),
)  # fmt: skip
def test_the_environment_of_a_build(
    name: str, capabilities: list[tuple[int, int]], expected: dict[str, str]
) -> None:
    assert environment_of(name, capabilities) == expected


def test_a_gpu_that_a_package_has_no_code_for_is_refused_before_the_build() -> None:
    with pytest.raises(BuiltWheelUnfitError, match=r"no code for compute capability 7\.5, only"):
        environment_of("flash-attn", [(7, 5)])


def test_every_row_of_the_data_names_its_source() -> None:
    known = json.loads((Path(rules.__file__).parent / "data/packages.json").read_text("utf-8"))
    rows: list[dict[str, Any]] = [
        *known["requirements"],
        *known["environment"],
        *known["packages"],
        {"source": known["memory_source"]},
    ]
    assert {row["source"] for row in rows} == set(known["sources"])
    assert [row["name"] for row in known["packages"]] == list(
        dict.fromkeys(row["name"] for row in known["packages"])
    )


def plan(*capabilities: str | None) -> Plan:
    gpus = tuple(
        GpuVerdict(name=None, compute_capability=one, runs="?", ok=True) for one in capabilities
    )
    return Plan(verdict="direct", framework="pytorch", gpus=gpus)


def test_the_capabilities_of_a_plan_are_in_order_and_once() -> None:
    assert capabilities_of(plan("12.0", "8.6", "8.6")) == ((8, 6), (12, 0))


@cases(
    "gpus said",
    ("no GPU", [], "none is known"),
    ("unknown GPU", ["8.6", None], "a GPU's compute capability is not known"),
)
def test_a_plan_without_capabilities_is_refused(gpus: list[str | None], said: str) -> None:
    with pytest.raises(BadInputError) as caught:
        capabilities_of(plan(*gpus))
    assert said in caught.value.message
    assert "--gpu 9.0" in caught.value.fix


@cases(
    "cores free expected",
    ("enough memory: one for each core", 64, 256 * GIB, 64),
    ("little memory: fewer than cores", 64, 24 * GIB, 8),
    ("few cores", 2, 24 * GIB, 2),
    ("too little memory for one: one", 8, 1 * GIB, 1),
    ("unknown memory: one", 8, 0, 1),
)
def test_how_many_compilers_run_at_a_time(cores: int, free: int, expected: int) -> None:
    assert inside.jobs(cores, free, 3 * GIB) == expected


@cases(
    "files expected",
    ("the machine's", {"proc/meminfo": "MemAvailable: 1024 kB\n"}, 1 << 20),
    ("the control group's, which is less",
     {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1024 kB\n",
      "sys/fs/cgroup/memory.max": "4096\n", "sys/fs/cgroup/memory.current": "1024\n"}, 3072),
    ("a group without a limit",
     {"proc/meminfo": "MemAvailable: 1024 kB\n", "sys/fs/cgroup/memory.max": "max\n",
      "sys/fs/cgroup/memory.current": "1024\n"}, 1 << 20),
    ("nothing can be read", {}, 0),
)  # fmt: skip
def test_the_free_memory(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert inside.free_memory(tmp_path) == expected


def test_a_build_needs_what_it_declares_and_what_setup_scripts_import() -> None:
    lines = requirements_for("flash-attn", ["pybind11>=2", "torch"])
    assert lines[:2] == ("pybind11>=2", "torch")
    assert {"setuptools", "wheel", "packaging", "ninja", "psutil"} <= set(lines)


@cases(
    "line missing",
    ("the framework is in the image", "torch", False),
    ("whatever its spelling", "Torch>=2.0", False),
    ("the image has another version", "setuptools<70", True),
    ("the image lacks it", "wheel", True),
    ("an extra is resolved", "ninja[extra]", True),
)
def test_what_the_image_lacks(line: str, missing: bool) -> None:  # noqa: FBT001
    there = {"torch": "2.14.1+cu130", "setuptools": "84.2.1", "ninja": "1.13.2"}
    assert bool(missing_in([line], there)) is missing


@cases(
    "line status",
    ("ninja's line with the source",
     "  [12/48] /usr/local/cuda/bin/nvcc -MF x.d -c -c csrc/a/flash.cu -o y.o", "[12/48] flash.cu"),
    ("ninja's line without one", "[1/2] ninja something else", "[1/2] ninja"),
    ("setuptools without ninja",
     "  g++ -Wall -I/x -c csrc/cpu/scatter_cpu.cpp -o build/scatter_cpu.o -O3", "scatter_cpu.cpp"),
    ("an extension", "  building 'a._C' extension", "building a._C"),
    ("the number of jobs", "gpu-provision: 4 jobs", "4 compilers at a time"),
    ("other lines say nothing", "  copying a/b.py -> build/lib", None),
)  # fmt: skip
def test_how_far_a_build_is(line: str, status: str | None) -> None:
    assert status_of(line) == status


@cases(
    "log expected",
    ("nvcc's error, not what follows from it",
     "x\n  a.cu(12): error: identifier \"foo\" is undefined\nerror: command 'nvcc' failed",
     ['a.cu(12): error: identifier "foo" is undefined']),
    ("a header that is missing", "a.cpp:3:10: fatal error: foo.h: No such file or directory",
     ["a.cpp:3:10: fatal error: foo.h: No such file or directory"]),
    ("nvcc refuses", "nvcc fatal   : Unsupported gpu architecture 'compute_35'",
     ["nvcc fatal   : Unsupported gpu architecture 'compute_35'"]),
    ("out of memory", "c++: fatal error: Killed signal terminated program cc1plus",
     ["c++: fatal error: Killed signal terminated program cc1plus"]),
    ("Python's error, not pip's summary",
     ("Traceback:\n  ModuleNotFoundError: No module named 'pkg_resources'\n"
      "  error: subprocess-exited-with-error\nERROR: Failed building wheel for x"),
     ["ModuleNotFoundError: No module named 'pkg_resources'"]),
    ("no error", "everything is fine\n0 errors", []),
)  # fmt: skip
def test_the_first_errors_of_a_log(log: str, expected: list[str]) -> None:
    errors = FirstErrors()
    for line in log.splitlines():
        errors.add(line)
    assert list(errors.lines) == expected


def test_few_errors_are_kept() -> None:
    errors = FirstErrors()
    for _ in range(100):
        errors.add("x.cu(1): error: e")
    assert len(errors.lines) == MOST_ERRORS
