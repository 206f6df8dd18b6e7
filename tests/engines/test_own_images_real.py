"""What builds leave on a machine is listed, and goes with `rm` and `clean`; nothing else does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.engines.sandbox.roots import Roots
from images.oci.layout_reader import open_layout
from tests import need
from tests.engines.lab import World, new_world
from tests.engines.podman_place import podman_storage
from tests.engines.private_engine import private_engine
from tests.engines.small_build import Source
from tests.engines.test_build_without_engine import ASKED, NO_ENGINE, an_index, build, run
from tests.kit.private_index import Index

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def index(source: Source) -> Iterator[Index]:
    with an_index(source) as found:
        yield found


@pytest.fixture(scope="module")
def lock(source: Source, index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lock") / "pylock.toml"
    with new_world(**NO_ENGINE) as world:
        words = (*ASKED, "--index", index.url, "--output", str(path))
        done = run(world, source, index, "lock", *words)
    assert done.code == 0, done.err
    return path


@contextlib.contextmanager
def own_bases(world: World) -> Iterator[None]:
    """The world with a copy of the bases that all tests share, as `clean` removes them."""
    bases = world.cache / "gpu-provision" / "bases"
    shared = bases.readlink()
    bases.unlink()
    shutil.copytree(shared, bases)
    yield


def listed(world: World, **env: str) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = world.provision("ls", "--json", **env).account["images"]
    return images


def left(world: World) -> list[str]:
    """All files below the cache, data and state directories."""
    places = [world.place / name for name in ("cache", "data", "state")]
    return [str(path) for place in places for path in place.rglob("*")]


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[dict[str, str]]:
    need.program("podman")
    place = tmp_path / "podman"
    place.mkdir()
    with podman_storage(place) as env:
        yield env


def test_without_an_engine(
    source: Source, index: Index, lock: Path, podman: dict[str, str], tmp_path: Path
) -> None:
    with new_world(**NO_ENGINE, **podman) as world, own_bases(world):
        words = ("--lock", str(lock), "--no-verify")
        build(world, source, index, *words, "--tag", "one:1")
        build(world, source, index, *words, "--tag", "two:1")
        images = world.place / "data" / "gpu-provision" / "images"
        subprocess.run(
            ["podman", "pull", "--quiet", f"oci:{images}:one:1"],
            env={**os.environ, **podman},
            check=True,
            capture_output=True,
            timeout=120,
        )
        names = {(one["where"], *one["names"]) for one in listed(world)}
        assert names >= {("layout", "one:1"), ("layout", "two:1")}
        assert [one["verdict"] for one in listed(world)] == ["untested"] * 3
        root = Roots(world.cache / "gpu-provision" / "roots").use(
            open_layout(images, "one:1"), lambda _: None
        )
        refused = world.provision("rm", "--yes", "two:1")
        assert refused.code == 5, refused.err
        assert "in use by a process in its unpacked root" in refused.err
        mine = tmp_path / "mine"
        mine.write_text("notes")
        shutil.copy(mine, world.cache / "gpu-provision" / "notes")
        cleaned = world.provision("clean", "--yes", "--json")
        assert cleaned.code == 0, cleaned.err
        kept = {Path(one["what"]).name: one["why"] for one in cleaned.account["kept"]}
        assert kept["notes"] == "gpu-provision did not make it"
        assert kept["roots"] == "a process uses an unpacked image"
        assert root.tree.is_dir()
        root.release()
        assert world.provision("clean").code == 2
        cleaned = world.provision("clean", "--yes")
        assert "notes" in cleaned.out
        (world.cache / "gpu-provision" / "notes").unlink()
        assert world.provision("clean", "--yes").code == 0
        assert listed(world) == []
        assert left(world) == []


def test_in_docker(source: Source, index: Index, lock: Path) -> None:
    with (
        private_engine() as engine,  # the one that tests share may have images of theirs
        new_world(DOCKER_HOST=engine.url) as world,
        own_bases(world),
        engine.client() as docker,
    ):
        broken = world.place / "bin"
        broken.mkdir()
        path = f"{broken}:{world.env['PATH']}"
        (broken / "podman").write_text("#!/bin/sh\nexit 1\n")
        (broken / "podman").chmod(0o755)
        words = ("--lock", str(lock), "--builder", "oci", "--no-verify")
        build(world, source, index, *words, "--tag", "one:1", PATH=path)
        base = docker.images.get("one:1")
        box = docker.containers.create("one:1", ["sleep", "60"], name="job")
        users, _ = docker.images.build(path=str(_user_image(world, "one:1")), tag="mine:1", rm=True)
        assert [one["names"] for one in listed(world, PATH=path)] == [["one:1"]]
        busy = world.provision("rm", "--yes", "one:1", PATH=path)
        assert (busy.code, "docker rm job" in busy.err) == (5, True), busy.err
        foreign = world.provision("rm", "--yes", "mine:1", PATH=path)
        assert (foreign.code, "docker rmi mine:1" in foreign.err) == (2, True), foreign.err
        box.remove(force=True)
        assert world.provision("clean", "--yes", PATH=path).code == 0
        assert listed(world, PATH=path) == []
        assert [one.tags for one in docker.images.list()] == [["mine:1"]]
        assert users.labels == base.labels
        assert left(world) == []
        docker.images.remove("mine:1", force=True)


def _user_image(world: World, name: str) -> Path:
    place = world.place / "users"
    place.mkdir()
    (place / "Dockerfile").write_text(f"FROM {name}\nENV MINE=1\n")
    return place
