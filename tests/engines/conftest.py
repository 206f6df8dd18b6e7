"""What the docker lane shares: the engine of the environment, and the image, built once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from images.engines.start import ask_engine
from tests import need
from tests.engines.lab import ROOT, TAG, Built, World, new_world
from tests.engines.private_engine import PrivateEngine, private_engine
from tests.engines.real_registry import serving
from tests.engines.small_build import CA_CANARY, Source
from tests.kit.index_wheels import downloaded
from tests.kit.private_index import Authority, Wheel, make_authority


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """The engine that the environment names."""
    answer = ask_engine()
    if not answer.version:
        need.lacking(
            f"no container engine answers: {answer.problem}", "./run --install-engine test --all"
        )
    with contextlib.closing(docker.from_env(timeout=120)) as found:
        yield found


@pytest.fixture(scope="session")
def world(client: Any) -> Iterator[World]:
    """A world on the engine of the environment."""
    del client
    with new_world() as found:
        yield found


@pytest.fixture(scope="session")
def built(client: Any, world: World) -> Iterator[Built]:
    """The main job, done once, as a user does it."""
    done = world.provision("build", "--cuda", "11.7", "--tag", TAG, "--json")
    assert done.code == 0, done.err
    account = done.account
    yield Built(TAG, account, Path(account["lock"]["path"]).read_bytes())
    with contextlib.suppress(docker.errors.ImageNotFound):
        client.images.remove(TAG, force=True)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry."""
    with serving(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="session")
def own_engine() -> Iterator[PrivateEngine]:
    """An engine of our own, for what must not be done to the machine's."""
    with private_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def own_client(own_engine: PrivateEngine) -> Iterator[Any]:
    """A Docker client of the private engine."""
    with own_engine.client() as found:
        yield found


@pytest.fixture
def own_world(own_engine: PrivateEngine) -> Iterator[World]:
    """A world on our own engine. It is left without containers and without processes."""
    with new_world(DOCKER_HOST=own_engine.url) as found:
        yield found


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs for our index."""
    return make_authority(tmp_path_factory.mktemp("authority"), CA_CANARY)


@pytest.fixture(scope="session")
def uv_wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """The uv that the recipe installs, fetched from the index that this machine uses."""
    pinned = f"--requirement={ROOT / 'images' / 'recipe' / 'uv.txt'}"
    file = downloaded(pinned, tmp_path_factory.mktemp("uv"), "--require-hashes")
    return Wheel(file.name, file.read_bytes())


@pytest.fixture(scope="session")
def source(authority: Authority, uv_wheel: Wheel) -> Source:
    """Where small images come from."""
    return Source(authority, uv_wheel)


@pytest.fixture(scope="session")
def pip_wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """The real pip, which builds wheels, from the index that this machine uses."""
    file = downloaded("pip", tmp_path_factory.mktemp("pip"))
    return Wheel(file.name, file.read_bytes())
