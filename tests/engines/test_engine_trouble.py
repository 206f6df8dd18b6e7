"""Engines that are not there, die, fill up, and people who press Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import ContainerCollection

from images.engines.docker import Docker
from images.engines.setup import fix_text
from images.engines.spec import RunJob
from tests import need
from tests.engines.lab import MARK, ROOT, World, finish, new_world
from tests.engines.private_engine import PrivateEngine, private_engine, small_disk
from tests.engines.small_build import TORCH, Source, left_over
from tests.kit.cases import cases
from tests.kit.private_index import Index
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker

TAG = "gpu-provision-test:trouble"
SLEEPS = "import time\ntime.sleep(600)\n"
NO_TORCH = "__version__ = '0'\n"
PATIENCE_S = 180.0


def wait_for(truth: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


# --- no engine ----------------------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[World]:
    with new_world(DOCKER_HOST=f"unix://{tmp_path}/nonexistent") as world:
        yield world


def test_a_build_without_its_engine_says_what_to_type(nowhere: World) -> None:
    done = nowhere.provision("build", "--cuda", "11.7", "--builder", "docker", "--json")
    assert (done.code, done.account["error"]["code"]) == (5, "no-engine")
    assert done.account["error"]["fix"] == fix_text()


def test_an_image_of_an_engine_that_does_not_answer_may_be_elsewhere(nowhere: World) -> None:
    done = nowhere.provision("verify", "gpu-provision-test:cu117", "--json")
    assert done.code == 5
    assert "provision build --cuda 11.7" in done.account["error"]["fix"]
    assert "provision doctor says how" in done.account["error"]["fix"]


def test_where_no_engine_is_installed_the_fix_installs_it(nowhere: World, tmp_path: Path) -> None:
    need.root()
    unshare, dockerd = need.program("unshare", "util-linux"), need.program("dockerd", "docker.io")
    absent = tmp_path / "absent"
    absent.touch()
    hide = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    argv = [unshare, "--mount", "sh", "-c", hide, "sh", str(absent), dockerd]
    argv += [sys.executable, "-m", "provision", "build", "--cuda", "11.7", "--builder", "docker"]
    done = run_program(argv, cwd=ROOT, env=dict(nowhere.env))
    assert done.returncode == 5, done.stderr
    assert "apt-get update && " in done.stderr
    assert "apt-get install -y --no-install-recommends docker.io" in done.stderr


def test_a_dry_run_needs_no_engine(nowhere: World) -> None:
    words = ("build", "--cuda", "11.7", "--builder", "docker", "--dry-run", "--json")
    done = nowhere.provision(*words)
    assert done.code == 0, done.err
    assert "Dockerfile.cuda" in done.account["command"]
    assert done.account["image"]["digest"] is None


# --- an engine that dies ------------------------------------------------------------------------


def building(world: World, source: Source, index: Index, tag: str = TAG) -> Any:
    """A build that stands still in the middle of a download."""
    process = world.start(*source.words(index, tag), **source.env(index))
    if not index.reached.wait(PATIENCE_S):
        process.kill()
        pytest.fail(f"the download was not reached: {process.communicate()[1]}")
    return process


def verifying(world: World, engine: PrivateEngine, *words: str, **env: str) -> Any:
    """A suite that stands still, importing a torch that sleeps."""
    process = world.start(*words, **env)

    def runs() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return any(state == "running" for _, state in engine.containers())

    wait_for(runs, "the suite's container")
    return process


@pytest.fixture
def mortal(own_engine: PrivateEngine) -> Iterator[PrivateEngine]:
    """The engine, which is raised again and cleaned where the test kills it."""
    yield own_engine
    own_engine.stop()
    own_engine.start()
    with own_engine.client() as client:
        for container in client.containers.list(all=True):
            container.remove(force=True)


def test_an_engine_that_dies_while_it_builds(
    mortal: PrivateEngine, own_world: World, source: Source
) -> None:
    with source.index(held=TORCH) as index:
        process = building(own_world, source, index)
        mortal.kill()
        done = finish(process)
    assert (done.code, done.account["error"]["code"]) == (5, "engine-failed"), done.err
    mortal.start()
    assert TAG not in mortal.tags()
    assert left_over(own_world) == []


def test_an_engine_that_dies_while_it_verifies(
    mortal: PrivateEngine, own_world: World, source: Source
) -> None:
    with source.index(SLEEPS) as index:
        words = source.words(index, TAG)
        process = verifying(own_world, mortal, *words, **source.env(index))
        mortal.kill()
        done = finish(process)
    assert (done.code, done.account["error"]["code"]) == (5, "engine-failed"), done.err
    mortal.start()
    assert TAG not in mortal.tags()


# --- a disk that fills up -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_engine() -> Iterator[PrivateEngine]:
    with small_disk(500) as disk, private_engine(disk) as engine:
        yield engine


def test_what_cannot_fit_is_refused_before_the_download(
    small_engine: PrivateEngine, source: Source
) -> None:
    with (
        new_world(DOCKER_HOST=small_engine.url) as world,
        source.index(claims=400 << 20, held=TORCH) as index,
    ):
        done = world.provision(*source.words(index, TAG), **source.env(index))
        assert (done.code, done.account["error"]["code"]) == (4, "disk-full"), done.err
        assert not index.reached.is_set()


def test_a_disk_that_fills_up_half_way_is_named(
    small_engine: PrivateEngine, source: Source
) -> None:
    with new_world(DOCKER_HOST=small_engine.url) as world, source.index(zeros=450 << 20) as index:
        done = world.provision(*source.words(index, TAG), **source.env(index))
        assert (done.code, done.account["error"]["code"]) == (4, "disk-full"), done.err
        assert left_over(world) == []
    assert TAG not in small_engine.tags()


# --- people who change their minds --------------------------------------------------------------


signals = pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGHUP, id="a closed terminal"),
    ],
)


def all_is_gone(world: World, engine: PrivateEngine) -> None:
    """No name, no container, no process, no file."""
    assert TAG not in engine.tags()
    assert engine.containers() == []
    wait_for(lambda: not world.processes(), f"processes with {MARK}={world.place} to end")
    assert left_over(world) == []


@signals
def test_an_interrupted_build_leaves_nothing(
    own_engine: PrivateEngine, own_world: World, source: Source, number: signal.Signals
) -> None:
    with source.index(held=TORCH) as index:
        process = building(own_world, source, index)
        process.send_signal(number)
        done = finish(process)
        assert index.left.wait(PATIENCE_S), "the builder inside the engine goes on"
    assert done.code == 128 + number, done.err
    all_is_gone(own_world, own_engine)


@signals
def test_an_interrupted_verification_leaves_nothing(
    own_engine: PrivateEngine, own_world: World, source: Source, number: signal.Signals
) -> None:
    with source.index(SLEEPS) as index:
        words = source.words(index, TAG)
        process = verifying(own_world, own_engine, *words, **source.env(index))
        process.send_signal(number)
        done = finish(process)
    assert done.code == 128 + number, done.err
    all_is_gone(own_world, own_engine)


@pytest.fixture(scope="module")
def sleeper(own_engine: PrivateEngine, source: Source) -> Iterator[str]:
    """An image whose suite never ends."""
    tag = "gpu-provision-test:sleeper"
    with new_world(DOCKER_HOST=own_engine.url) as world, source.index(SLEEPS) as index:
        done = world.provision(*source.words(index, tag, "--no-verify"), **source.env(index))
        assert done.code == 0, done.err
    yield tag
    with own_engine.client() as client:
        client.images.remove(tag, force=True)


def test_an_interrupted_verify_command_leaves_nothing(
    own_engine: PrivateEngine, own_world: World, sleeper: str
) -> None:
    process = verifying(own_world, own_engine, "verify", sleeper)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    all_is_gone(own_world, own_engine)


def test_a_container_is_removed_though_the_interruption_came_while_it_was_made(
    own_engine: PrivateEngine, sleeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ContainerCollection.create

    def interrupted(*args: Any, **settings: Any) -> Any:
        made = create(*args, **settings)
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(ContainerCollection, "create", interrupted)
    with own_engine.client() as client, pytest.raises(KeyboardInterrupt):
        Docker(client).run(RunJob(image=sleeper, command=("true",)), print)
    assert own_engine.containers() == []


@cases(
    "act code name",
    ("killed, as for want of memory", "kill", 1, "no-report"),
    ("removed", "remove", 5, "engine-failed"),
)
def test_a_container_that_someone_else_ends_is_a_failure_in_one_sentence(
    own_engine: PrivateEngine, own_world: World, sleeper: str, act: str, code: int, name: str
) -> None:
    process = verifying(own_world, own_engine, "verify", sleeper, "--json")
    ((container, _),) = own_engine.containers()
    with own_engine.client() as client:
        found = client.containers.get(container)
        found.kill() if act == "kill" else found.remove(force=True)
    done = finish(process)
    assert (done.code, done.account["error"]["code"]) == (code, name), done.err
    all_is_gone(own_world, own_engine)


# --- the name that is given last ----------------------------------------------------------------


def test_an_image_that_fails_its_checks_does_not_take_the_name(
    own_engine: PrivateEngine, own_world: World, source: Source
) -> None:
    tag = "gpu-provision-test:kept"
    with source.index() as index:
        words = source.words(index, tag, "--no-verify")
        first = own_world.provision(*words, **source.env(index))
    assert first.code == 0, first.err
    with source.index(NO_TORCH) as index:
        second = own_world.provision(*source.words(index, tag), **source.env(index))
    assert second.code == 1, second.err
    assert second.account["image"]["tag"] == f"{tag}-unfit"
    with own_engine.client() as client:
        assert client.images.get(tag).id == first.account["image"]["digest"]
        assert client.images.get(f"{tag}-unfit").id == second.account["image"]["digest"]
        client.images.remove(tag, force=True)
        client.images.remove(f"{tag}-unfit", force=True)
