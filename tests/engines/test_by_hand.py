"""What a person does without us: docker build, docker compose."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.engines.buildkit import ask, find_builder
from provision.build.next_commands import run_command
from provision.lock.network import ca_bundle
from tests import need
from tests.engines.lab import LIMIT_S, ROOT, Built, World
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker

TAG = "gpu-provision-test:by-hand"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git knows of the tree, as a fresh clone would have it."""
    place = tmp_path_factory.mktemp("checkout")
    argv = [need.program("git"), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=60).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place


@pytest.fixture(scope="module")
def by_hand(client: Any, built: Built, checkout: Path, world: World) -> Iterator[str]:
    """`docker build -f Dockerfile.cuda .` with nothing of ours but the base, which no registry
    needs to be reached for.
    """
    builder = find_builder(os.environ["PATH"], ask)
    argv = [*builder.argv(), "--file", "Dockerfile.cuda", "--tag", TAG, "--network", "host"]
    argv += ["--build-arg", f"BASE={built.account['plan']['base']['reference']}"]
    if bundle := ca_bundle(None, os.environ):
        argv += ["--secret", f"id=ca,src={bundle}"]
    done = run_program(
        [*argv, "."], cwd=checkout, env={**world.env, **builder.environment()}, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    yield TAG
    client.images.remove(TAG, force=True)


def docker_run(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [need.program("docker", "docker.io"), "run", "--rm", "--network", "none", *words]
    return run_program(argv, env=dict(world.env), timeout=600)


def test_the_recipe_builds_by_hand_and_its_suite_runs(world: World, by_hand: str) -> None:
    need.no_gpu()
    done = docker_run(world, "--shm-size", "1g", by_hand, "verify", "--level", "quick")
    assert done.returncode == 7, done.stdout + done.stderr
    assert "(no-verdict, exit code 7)" in " ".join(done.stdout.split())


def test_the_recipes_default_is_the_main_jobs_torch(world: World, by_hand: str) -> None:
    code = "import torch; print(torch.__version__)"
    assert docker_run(world, by_hand, "python", "-c", code).stdout == "2.0.1+cu117\n"


def test_the_context_is_small(checkout: Path) -> None:
    lines = (checkout / "Dockerfile.cuda.dockerignore").read_text().splitlines()
    assert "*" in lines


# --- compose.yaml -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["gpu"]


def compose() -> list[str]:
    """The compose program of this machine."""
    cli = shutil.which("docker")
    if cli and ask([cli, "compose", "version"]):
        return [cli, "compose"]
    return [need.program("docker-compose")]


def run_compose(
    world: World, checkout: Path, *words: str, **env: str
) -> subprocess.CompletedProcess[str]:
    return run_program(
        [*compose(), "--project-name", "gpu-provision-test", *words],
        cwd=checkout,
        env={**world.env, **env},
        timeout=600,
    )


def test_compose_runs_what_the_main_job_makes(service: Any) -> None:
    assert service["image"] == "${IMAGE:-gpu-provision:pytorch2.0.1-cu117}"


def test_compose_asks_for_every_gpu(service: Any) -> None:
    (wanted,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert wanted == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_compose_gives_the_limits_of_the_next_command(service: Any, built: Built) -> None:
    words = run_command(built.tag, gpus="runtime", notes=())
    assert f"--shm-size {service['shm_size'].removesuffix('b')} " in words
    assert f"--ulimit stack={service['ulimits']['stack']} " in words
    assert f"--ulimit memlock={service['ulimits']['memlock']} " in words


def test_compose_builds_with_arguments_that_the_recipe_has(service: Any) -> None:
    recipe = (ROOT / "Dockerfile.cuda").read_text()
    declared = set(re.findall(r"^ARG (\w+)", recipe, re.MULTILINE))
    assert set(service["build"]["args"]) <= declared
    assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_compose_accepts_the_file(world: World, checkout: Path) -> None:
    done = run_compose(world, checkout, "config", IMAGE="other:1")
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)["services"]["gpu"]
    assert found["image"] == "other:1"
    assert found["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def test_compose_says_that_an_engine_has_no_gpus(
    world: World, checkout: Path, built: Built
) -> None:
    need.no_gpu()
    try:
        done = run_compose(world, checkout, "up", "--no-build", IMAGE=built.tag)
    finally:
        run_compose(world, checkout, "down", "--timeout", "1", IMAGE=built.tag)
    assert done.returncode != 0
    assert "could not select device driver" in done.stdout + done.stderr
