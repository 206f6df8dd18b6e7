"""Dockerfile.cuda builds by hand: its defaults are one real plan, and compose.yaml runs it."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from provision.build.pipeline import default_tag
from provision.catalog.loading import load
from provision.model.plan import HostFacts, Plan, Request
from provision.resolve import resolve
from tests import ROOT

DOCKERFILE = (ROOT / "Dockerfile.cuda").read_text(encoding="utf-8")
PINS = (ROOT / "images/recipe/cu117.txt").read_text(encoding="utf-8")
UV = (ROOT / "images/recipe/uv.txt").read_text(encoding="utf-8")
SECRET = re.compile(r"token|secret|password|passwd|netrc|credential|login|api_?key", re.IGNORECASE)


@pytest.fixture(scope="module")
def plan() -> Plan:
    host = HostFacts(arch="x86_64", python="3.11")
    return resolve([host], Request(cuda="11.7", python="3.11"), load())


def instructions() -> list[str]:
    """One line each, continued lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [line for line in joined.splitlines() if line.strip()]


def defaults() -> dict[str, str]:
    found = (re.match(r"ARG (\w+)=(.*)", line) for line in instructions())
    return {match[1]: match[2].strip('"') for match in found if match}


def requirements(text: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Name -> (requirement, its hashes) of a file that pip would take."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = {}
    for line in joined.splitlines():
        if line.strip() and not line.startswith("#"):
            words, *hashes = re.split(r"\s+--hash=", line.strip())
            requirement = Requirement(words)
            found[requirement.name] = (requirement, hashes)
    return found


def pinned(name: str) -> str:
    (specifier,) = requirements(PINS)[name][0].specifier
    assert specifier.operator == "=="
    return specifier.version


def test_the_default_base_is_that_of_the_plan(plan: Plan) -> None:
    assert plan.base is not None
    full = plan.base.reference.removeprefix("docker.io/library/")
    name, _, digest = defaults()["BASE"].partition("@")
    assert name == full
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)


def test_the_default_lock_pins_the_framework_of_the_plan(plan: Plan) -> None:
    assert (plan.wheel_tag, plan.framework_version) == ("cu117", pinned("torch"))


def test_the_default_lock_pins_every_library_that_the_catalog_s_build_brings(plan: Plan) -> None:
    (build,) = load().torch_builds(version=plan.framework_version, cuda="11.7", arch="x86_64")
    assert pinned("nvidia-cudnn-cu11") == build.cudnn == plan.cudnn
    assert pinned("nvidia-nccl-cu11") == build.nccl == plan.nccl
    toolkit = [name for name in requirements(PINS) if name.startswith("nvidia-cuda-")]
    assert toolkit
    assert {".".join(pinned(name).split(".")[:2]) for name in toolkit} == {plan.cuda}


def test_the_default_lock_keeps_to_the_numpy_abi_of_the_plan(plan: Plan) -> None:
    (numpy,) = [Requirement(line) for line in plan.requirements if line.startswith("numpy")]
    assert numpy.specifier.contains(Version(pinned("numpy")))


@pytest.mark.parametrize(
    "text", [pytest.param(PINS, id="cu117.txt"), pytest.param(UV, id="uv.txt")]
)
def test_every_requirement_is_one_version_with_hashes_and_no_address(text: str) -> None:
    found = requirements(text)
    assert found
    for requirement, hashes in found.values():
        assert [s.operator for s in requirement.specifier] == ["=="]
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", word.strip()) for word in hashes)
        assert requirement.url is None
    assert "://" not in text


def test_uv_in_the_image_is_the_uv_that_locks() -> None:
    ours = requirements((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    inside = requirements(UV)
    assert list(inside) == ["uv"]
    assert str(inside["uv"][0]) == str(ours["uv"][0])
    assert sorted(inside["uv"][1]) == sorted(ours["uv"][1])


def compose() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return data


def unset(text: str) -> str:
    """What compose makes of ${NAME:-default} where NAME is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_compose_builds_with_the_dockerfile_s_own_defaults() -> None:
    (service,) = compose()["services"].values()
    build = service["build"]
    assert (build["context"], build["dockerfile"]) == (".", "Dockerfile.cuda")
    known = defaults()
    assert {name: unset(value) for name, value in build["args"].items()} == {
        name: known[name] for name in build["args"]
    }
    assert set(build["args"]) == {"BASE", "LOCK"}


def test_compose_runs_the_image_that_provision_build_makes_by_default(plan: Plan) -> None:
    (service,) = compose()["services"].values()
    assert unset(service["image"]) == default_tag(plan)


def test_compose_asks_for_every_gpu_and_for_the_memory_that_nccl_needs() -> None:
    (service,) = compose()["services"].values()
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert service["shm_size"] == "1gb"
    assert service["ulimits"] == {"stack": 64 << 20, "memlock": -1}


def test_no_secret_is_an_argument_or_a_variable_of_the_image() -> None:
    kept = [line for line in instructions() if line.split()[0] in {"ARG", "ENV", "LABEL"}]
    assert kept
    assert [line for line in kept if SECRET.search(line)] == []


def test_secrets_come_by_mounts_only() -> None:
    for line in instructions():
        if "/run/secrets/" in line:
            used = set(re.findall(r"/run/secrets/(\w+)", line))
            mounted = set(re.findall(r"--mount=type=secret,id=(\w+)", line))
            assert used <= mounted


def sources() -> list[str]:
    """What is copied from the context, with the defaults filled in."""
    copies = [line.split()[1:-1] for line in instructions() if line.startswith("COPY ")]
    return [word.replace("${LOCK}", defaults()["LOCK"]) for words in copies for word in words]


def admitted(path: str) -> bool:
    """Docker's rule: the last pattern that fits decides, a pattern fits what is below it too."""
    found = True
    for line in (ROOT / "Dockerfile.cuda.dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or line.startswith("#"):
            continue
        parts = path.split("/")
        heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        if pattern.startswith("**/"):
            fits = any(fnmatch(part, pattern[3:]) for part in parts)
        else:
            fits = any(fnmatch(head, pattern) for head in heads)
        if fits:
            found = line.startswith("!")
    return found


@pytest.mark.parametrize("source", [*sources(), "pylock.toml", "pylock.cu121.toml"])
def test_the_context_has_what_the_dockerfile_copies(source: str) -> None:
    assert admitted(source)


@pytest.mark.parametrize("path", ["verify/__main__.py", "verify/checks/__init__.py"])
def test_the_whole_suite_is_in_the_context(path: str) -> None:
    assert (ROOT / path).exists()
    assert admitted(path)


@pytest.mark.parametrize(
    "path", [".venv/bin/python", ".git/config", "README.md", "verify/__pycache__/x.pyc", ".env"]
)
def test_nothing_else_travels_to_the_engine(path: str) -> None:
    assert not admitted(path)


def test_every_file_that_is_copied_exists() -> None:
    assert [source for source in sources() if not (ROOT / source).exists()] == []


def test_arguments_that_the_builder_gives_are_declared() -> None:
    text = (ROOT / "images/engines/buildkit.py").read_text(encoding="utf-8")
    given = set(re.findall(r'"--build-arg", f"(\w+)=', text))
    assert given == set(defaults())
