"""A refusal that a project's pin causes names its line, and what to pin instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from images.wheels.remote_file import Wheel
from provision.build.base import require_plan
from provision.build.project.pins import ProjectHashError, check_hashes, naming_pins, with_lines
from provision.build.project.request import request_of
from provision.catalog.loading import load
from provision.errors import IndexUnreachableError, NothingCompatibleError
from provision.lock.lockfile import Lock
from provision.lock.solve import NoSolutionError
from provision.model.plan import Plan, Request
from provision.resolve import resolve
from provision.sources.declaration import pythons_of
from provision.sources.find import Project, read_project
from tests.kit.cases import cases
from tests.kit.hosts import host
from tests.kit.projects import project

CATALOG = load()
KNOWN = pythons_of(CATALOG)


def refused(root: Path, text: str, *hosts_: str, driver: str = "580.95.05") -> str:
    """The message and the fix of the plan for a project on a GPU."""
    found = read_project(project(root, {"requirements.txt": text}))
    hosts = [host(driver, *hosts_)]
    request = request_of(found, Request(), named=False, arch="x86_64", known=KNOWN)
    with (
        pytest.raises(NothingCompatibleError) as caught,
        naming_pins(found, hosts, request, CATALOG),
    ):
        require_plan(resolve(hosts, request, CATALOG))
    return f"{caught.value.message} {caught.value.fix}"


def test_a_release_without_code_for_the_gpu(tmp_path: Path) -> None:
    said = refused(tmp_path, "# why\ntorch==1.13.1\n", "H100")
    assert "compute capability 9.0" in said
    assert "requirements.txt, line 2: torch==1.13.1" in said
    assert "In requirements.txt, line 2, pin torch==2.0.0 or torch==" in said


def test_a_release_that_is_older_than_the_gpu(tmp_path: Path) -> None:
    said = refused(tmp_path, "torch==2.3.0\n", "RTX 5090")
    assert "requirements.txt, line 1: torch==2.3.0" in said
    assert "pin torch==2.7" in said


def test_a_cuda_that_an_index_names(tmp_path: Path) -> None:
    text = "--index-url https://download.pytorch.org/whl/cu117\ntorch==2.0.1\n"
    said = refused(tmp_path, text, "H100")
    assert "In requirements.txt, line 1, name the index of cu118" in said


def test_a_companion_that_does_not_match_is_named_with_its_line(tmp_path: Path) -> None:
    said = refused(tmp_path, "torch==2.5.1\ntorchvision==0.15.2\n", "RTX 4090")
    assert "requirements.txt, line 2: torchvision==0.15.2" in said


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    said = refused(tmp_path, "torch==2.9.0\n", "GTX 1080 Ti", driver="450.80.02")
    assert "requirements.txt, line 1: torch==2.9.0" in said


def test_a_python_without_a_wheel_is_named_with_its_line(tmp_path: Path) -> None:
    project(tmp_path, {"pyproject.toml": "[project]\nname='a'\nrequires-python='>=3.13'\n"})
    said = refused(tmp_path, "torch==2.3.0\n", "RTX 4090")
    assert f"no wheel for Python 3.13 to {KNOWN[-1]}" in said
    assert "requirements.txt, line 1: torch==2.3.0; pyproject.toml, line 3: Python >=3.13" in said
    assert "in requirements.txt, line 1, pin torch==2." in said
    assert "In pyproject.toml, line 3, allow Python 3.11" in said


def test_a_python_of_the_checkout_is_not_called_an_option(tmp_path: Path) -> None:
    project(tmp_path, {"requirements.txt": "torch==2.3.0\n", ".python-version": "3.14\n"})
    found = read_project(tmp_path)
    request = request_of(found, Request(), named=False, arch="x86_64", known=KNOWN)
    hosts = [host("580.95.05", "RTX 4090")]
    with (
        pytest.raises(NothingCompatibleError) as caught,
        naming_pins(found, hosts, request, CATALOG),
    ):
        require_plan(resolve(hosts, request, CATALOG))
    assert "In .python-version, write 3.12," in caught.value.fix
    assert "remove --python" not in caught.value.fix


def followed(root: Path, way: str) -> None:
    """Change the files of a project as one way of a fix says."""
    for name, line, verb, values in re.findall(
        r"[Ii]n ([\w.-]+)(?:, line (\d+))?, (pin|write|allow Python|name the index of|remove) (.+?)"
        r"(?= and in |$)", way
    ):  # fmt: skip
        path, number = root / name, int(line or 1) - 1
        lines = path.read_text().splitlines()
        value = values.partition(" or ")[0]
        if verb == "name the index of":
            lines[number] = re.sub(r"cu\d+", value, lines[number])
        elif verb == "allow Python":
            lines[number] = f"requires-python='=={value}.*'"
        elif verb == "remove":
            lines[number] = "# removed"
        else:
            lines[number] = value
        path.write_text("\n".join(lines) + "\n")


@cases(
    "files given gpu driver fix",
    ("an option for which the pin has no build", {"requirements.txt": "# 1\ntorch==2.1.0\n"},
     {"cuda": "11.7"}, "A100", "515.65.01",
     "Use --cuda 11.8, or in requirements.txt, line 2, pin torch==2.0.1."),
    ("and where no release for that CUDA has code for the GPU",
     {"requirements.txt": "torch==2.1.0\n"}, {"cuda": "11.7"}, "H100", "535.104.05",
     "Use --cuda 11.8, or use --cuda 12.1."),
    ("an index whose builds lack the GPU",
     {"requirements.txt": "--index-url https://download.pytorch.org/whl/cu128\ntorch==2.8.0\n"}, {},
     "GTX 1080 Ti", "580.95.05", "In requirements.txt, line 1, name the index of cu126."),
    ("a pin with the tag of its CUDA",
     {"requirements.txt": "torch==2.5.1+cu118\ntorchvision==0.20.1+cu118\n"}, {}, "RTX 5090",
     "580.95.05",
     ("In requirements.txt, line 2, pin "
      "torchvision==0.22.0 and in requirements.txt, line 1, pin torch==2.7.0+cu128")),
    ("a companion of another", {"requirements.txt": "torch==2.5.1\ntorchvision==0.15.2\n"}, {},
     "RTX 4090", "580.95.05",
     ("In requirements.txt, line 2, pin torchvision==0.20.1, or in "
      "requirements.txt, line 1, pin torch==2.0.1.")),
    ("the Python of a checkout",
     {"requirements.txt": "torch==2.3.0\n", ".python-version": "3.14\n"}, {}, "RTX 4090",
     "580.95.05", "In .python-version, write 3.12, or"),
    ("a base without the Python",
     {"requirements.txt": "torch==2.11.0\n",
      "pyproject.toml": "[project]\nname='a'\nrequires-python='==3.12.*'\n"}, {"base": "bootstrap"},
     "RTX 4090", "580.95.05", "In pyproject.toml, line 3, allow Python 3.1"),
)  # fmt: skip
def test_each_way_of_a_fix_plans_once_it_is_in_the_file(
    files: dict[str, str], given: dict[str, str], gpu: str, driver: str, fix: str, tmp_path: Path
) -> None:
    def planned(options: dict[str, Any]) -> str | None:
        found, asked = read_project(tmp_path), Request()._replace(**options)
        request = request_of(found, asked, named=False, arch="x86_64", known=KNOWN)
        hosts = [host(driver, gpu)]
        try:
            with naming_pins(found, hosts, request, CATALOG):
                require_plan(resolve(hosts, request, CATALOG))
        except NothingCompatibleError as refusal:
            return refusal.fix
        return None

    project(tmp_path, files)
    said = planned(given)
    assert said is not None
    assert said.startswith(fix)
    for way in re.split(r", or (?=in |use |remove )", said.rstrip(".")):
        project(tmp_path, files)
        followed(tmp_path, way)
        options = {**given, **dict(re.findall(r"--(cuda|python) (\S+)", way))}
        if "emove --base" in way:
            del options["base"]
        assert planned(options) is None, way


@cases(
    "text gpu builds",
    ("a pinned release", "torch==2.0.1\n", "RTX 3090", set()),
    ("the CUDA of an index", "--index-url https://download.pytorch.org/whl/cu117\ntorch\n",
     "RTX 3090", set()),
    ("nothing is pinned", "torch\n", "RTX 5090", {"2.15.0"}),
)  # fmt: skip
def test_no_alternative_contradicts_the_file(
    text: str, gpu: str, builds: set[str], tmp_path: Path
) -> None:
    found = read_project(project(tmp_path, {"requirements.txt": text}))
    hosts = [host("580.95.05", gpu)]
    request = request_of(found, Request(), named=False, arch="x86_64", known=KNOWN)
    plan = resolve(hosts, request, CATALOG)
    assert plan.alternatives
    shown = with_lines(plan, found, hosts, request, CATALOG).alternatives
    assert {one.framework_version for one in shown} == builds


@cases(
    "marker shown",
    ("none", "", ""),
    ("a short marker", '; python_version >= "3.9"', '; python_version >= "3.9"'),
    ("not a long one", "; " + " or ".join(['python_version >= "3.9"'] * 4), ""),
)
def test_what_uv_refuses_is_named_with_its_line(marker: str, shown: str, tmp_path: Path) -> None:
    lines = f"torch==2.5.1\nnumpy==1.26.4\n# x\npandas==2.2.0{marker}\n"
    files = {"requirements.txt": lines}
    found = read_project(project(tmp_path, files))
    with pytest.raises(NoSolutionError) as caught, naming_pins(found, [host()], Request(), CATALOG):
        raise NoSolutionError("No index has it.", fix="x", detail="Because pandas==2.2.0 depends")
    assert caught.value.message.endswith(f"requirements.txt, line 4: pandas==2.2.0{shown}.")
    assert "numpy" not in caught.value.message


def test_an_index_that_is_out_of_reach_is_named_with_the_lines_that_ask_for_it(
    tmp_path: Path,
) -> None:
    text = "channels: [pytorch]\ndependencies:\n- pytorch=2.4.1\n- pytorch-cuda=12.4\n"
    found = read_project(project(tmp_path, {"conda.yaml": text}))
    with (
        pytest.raises(IndexUnreachableError) as caught,
        naming_pins(found, [host("580.95.05", "RTX 4090")], Request(), CATALOG),
    ):
        raise IndexUnreachableError("No index could be reached.", fix="")
    said = "conda.yaml, line 3: torch==2.4.1; conda.yaml, line 4: CUDA 12.4."
    assert caught.value.message == f"No index could be reached. The project requires: {said}"


def test_without_a_project_an_error_stays_as_it_is() -> None:
    with pytest.raises(NoSolutionError) as caught, naming_pins(None, [host()], Request(), CATALOG):
        raise NoSolutionError("No index has it.", fix="x")
    assert (caught.value.message, caught.value.fix) == ("No index has it.", "x")


def hashed(root: Path, name: str) -> Project:
    return read_project(project(root, {"requirements.txt": f"{name}==1 --hash=sha256:{'a' * 64}"}))


def lock_of(name: str, sha256: str) -> Lock:
    wheel = Wheel(name=name, version="1", url="https://i.example/x.whl", size=1, sha256=sha256)
    return Lock(text="", plan=Plan(verdict="direct", framework="pytorch"), wheels=(wheel,))


@pytest.mark.parametrize("name", ["torch", "torchvision", "nvidia-cublas-cu12", "triton"])
def test_the_build_of_the_framework_has_hashes_of_its_own(name: str, tmp_path: Path) -> None:
    check_hashes(hashed(tmp_path, name), lock_of(name, "b" * 64))


def test_another_file_for_a_version_is_refused(tmp_path: Path) -> None:
    found = hashed(tmp_path, "numpy")
    check_hashes(found, lock_of("numpy", "a" * 64))
    check_hashes(found, lock_of("pandas", "b" * 64))
    check_hashes(None, lock_of("numpy", "b" * 64))
    with pytest.raises(ProjectHashError, match=r"another file for numpy 1 than requirements\.txt"):
        check_hashes(found, lock_of("numpy", "b" * 64))
