"""Two runs on one engine use one image, and the first to end leaves it to the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from images.engines.archive import is_holder
from images.engines.podman import Podman
from images.engines.runner import DockerRunner
from images.engines.spec import RunJob
from images.oci.sources import Image
from tests.engines.podman_place import debian_base, podman_storage
from tests.engines.private_engine import PrivateEngine
from tests.kit.sandbox_images import entry, image, layer

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def small() -> Image:
    return image([*debian_base({}).layers, layer(entry("opt/shared", b"x"), packed=True)])


@pytest.fixture
def runs(own_engine: PrivateEngine) -> Iterator[tuple[DockerRunner, DockerRunner]]:
    with own_engine.client() as one, own_engine.client() as other:
        yield DockerRunner(one), DockerRunner(other)


def tags(engine: PrivateEngine) -> list[str]:
    """Those that these tests make: others share the engine."""
    return [tag for tag in engine.tags() if is_holder(tag) or tag.startswith("team/shared:")]


def nothing(_: object) -> None:
    """No progress is shown."""


def listed(runner: Any, handle: str) -> str:
    return str(runner.run(RunJob(image=handle, command=("ls", "/opt")), nothing).stdout)


def test_of_two_runs_on_docker_the_first_to_end_leaves_the_image(
    runs: tuple[DockerRunner, DockerRunner], own_engine: PrivateEngine, small: Image
) -> None:
    first, second = runs
    handle = first.prepare(small, nothing)
    assert second.prepare(small, nothing) == handle
    assert len(tags(own_engine)) == 2
    first.remove(handle)
    assert listed(second, handle) == "shared\n"
    second.remove(handle)
    assert not second.has(handle)
    assert tags(own_engine) == []


def test_of_two_runs_on_docker_that_load_at_once_the_last_removes_the_image(
    runs: tuple[DockerRunner, DockerRunner], own_engine: PrivateEngine, small: Image
) -> None:
    first, second = runs
    handles: list[str] = []

    def meanwhile(_: object) -> None:
        if not handles:
            handles.append(second.prepare(small, nothing))

    handle = first.prepare(small, meanwhile)
    assert handles == [handle]
    second.remove(handle)
    assert listed(first, handle) == "shared\n"
    first.remove(handle)
    assert not first.has(handle)
    assert tags(own_engine) == []


def test_what_a_build_names_or_keeps_stays(
    runs: tuple[DockerRunner, DockerRunner], own_engine: PrivateEngine, small: Image
) -> None:
    build, other = runs
    handle = build.prepare(small, nothing)
    other.prepare(small, nothing)
    build.keep(handle)
    other.prepare(small, nothing, name="team/shared:1")
    other.remove(handle)
    assert tags(own_engine) == ["team/shared:1"]
    assert "team/shared:1" in other.names()
    assert not any(map(is_holder, other.names()))
    with own_engine.client() as client:
        client.images.remove("team/shared:1")
        assert not other.has(handle)
        handle = build.prepare(small, nothing)
        build.keep(handle)
        assert client.images.get(handle).tags == []
        assert listed(build, handle) == "shared\n"
        third = DockerRunner(client)
        third.remove(third.prepare(small, nothing))
        assert third.has(handle), "an image from before"
        client.images.remove(handle)
        with pytest.raises(docker.errors.ImageNotFound):
            client.images.get(handle)


def test_of_two_runs_on_podman_the_first_to_end_leaves_the_image(
    small: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with podman_storage(tmp_path) as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        first, second = Podman.connect(tmp_path), Podman.connect(tmp_path)
        handle = first.prepare(small, nothing)
        assert second.prepare(small, nothing) == handle
        first.remove(handle)
        assert listed(second, handle) == "shared\n"
        second.remove(handle)
        third = Podman.connect(tmp_path)
        again: list[int] = []
        assert third.prepare(small, again.append) == handle
        assert again, "the last run has removed it"
        third.remove(handle)
