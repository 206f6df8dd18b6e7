"""Podman and Docker themselves load and run an image that lies elsewhere."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.engines.docker_errors import EngineError, NoGpuRuntimeError
from images.engines.podman import Podman
from images.engines.runner import DockerRunner
from images.engines.sandbox.run import Sandbox
from images.engines.spec import RunJob
from images.oci.sources import Image
from images.system.errors import NoProgramError
from images.system.interruption import HandedOn
from tests import need
from tests.engines.podman_place import debian_base, podman_storage
from tests.kit.programs import run_program
from tests.kit.sandbox_images import entry, image, layer

pytestmark = pytest.mark.docker
CODE = "import os, sys; print(open('/run/x/e.json').read(), os.environ['A']); sys.exit('three')"


def none(_: object) -> None:
    pass


@pytest.fixture(scope="module")
def base() -> Image:
    return debian_base({"Env": ["A=image"]})


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("podman")
    with podman_storage(place) as env, pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        yield place


@pytest.fixture(scope="module")
def podman(storage: Path) -> Podman:
    return Podman.connect(storage)


@pytest.fixture(scope="module")
def handle(podman: Podman, base: Image) -> str:
    return podman.prepare(base, none, name="team/base:1")


@pytest.fixture(scope="module")
def docker(own_client: Any) -> DockerRunner:
    return DockerRunner(own_client)


def job(handle: str, **fields: Any) -> RunJob:
    told = {"command": ("python3", "-c", CODE), "files": {"/run/x/e.json": b"{}"}, **fields}
    return RunJob(image=handle, **told)


def containers() -> str:
    return run_program([need.program("podman"), "ps", "--all", "--quiet"], check=True).stdout


def test_podman_runs_it_and_keeps_no_container(podman: Podman, handle: str, base: Image) -> None:
    lines: list[str] = []
    result = podman.run(job(handle, environment={"A": "job"}), lines.append)
    assert handle == base.image_id
    assert (result.exit_code, result.stdout, lines) == (1, "{} job\n", ["three"])
    assert result.stderr_tail == "three"
    assert all(note.startswith("ulimit ") for note in result.notes)
    assert containers() == ""


HEARS = (
    "import signal, sys, threading; heard = threading.Event();"
    "signal.signal(signal.SIGINT, lambda *_: heard.set());"
    "print('ready', file=sys.stderr, flush=True); heard.wait(60); print(heard.is_set())"
)


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox.connect(tmp_path / "roots")


@pytest.mark.parametrize("name", ["podman", "docker", "sandbox"])
def test_a_signal_is_handed_on_and_what_is_said_then_is_read(
    request: pytest.FixtureRequest, handle: str, base: Image, name: str
) -> None:
    runner = request.getfixturevalue(name)
    own = handle if name == "podman" else runner.prepare(base, none)

    def at_once(line: str) -> None:
        assert line == "ready"
        signal.raise_signal(signal.SIGINT)

    with HandedOn(60) as signals:
        found = runner.run(job(own, command=("python3", "-c", HEARS), signals=signals), at_once)
    assert (found.stdout, found.exit_code, signals.came) == ("True\n", 0, True)


def test_podman_ends_what_does_not_end(podman: Podman, handle: str) -> None:
    with pytest.raises(EngineError, match="timed out"):
        podman.run(job(handle, command=("sh", "-c", "trap '' TERM; sleep 99"), timeout_s=6), none)
    assert containers() == ""


def test_podman_says_what_is_not_in_the_image(podman: Podman, handle: str) -> None:
    with pytest.raises(NoProgramError, match="nosuch"):
        podman.run(job(handle, command=("nosuch",)), none)
    assert containers() == ""


def test_podman_without_a_specification_of_gpus_says_so(podman: Podman, handle: str) -> None:
    if any(Path(place).is_dir() for place in ("/etc/cdi", "/var/run/cdi")):
        pytest.skip("this machine has CDI specifications")
    with pytest.raises(NoGpuRuntimeError) as caught:
        podman.run(job(handle, gpus="cdi"), none)
    assert "nvidia-ctk cdi generate" in caught.value.fix


def test_podman_reads_a_layout_by_itself(podman: Podman, base: Image, tmp_path: Path) -> None:
    from images.engines.archive import engine_archive

    skopeo = need.program("skopeo")
    above = image([*base.layers, layer(entry("opt/layout", b"x"))])
    with (tmp_path / "a.tar").open("wb") as file:
        file.writelines(engine_archive(above, none))
    source = f"oci:{tmp_path}/layout:one"
    argv = [skopeo, "copy", "--quiet", f"docker-archive:{tmp_path}/a.tar", source]
    subprocess.run(argv, check=True, timeout=120)
    from images.oci.layout_reader import open_layout

    lying = open_layout(tmp_path / "layout")
    found = podman.prepare(lying, none, source=source)
    assert podman.run(job(found, command=("ls", "/opt")), none).stdout == "layout\n"
    podman.remove(found)


def test_docker_is_sent_only_what_it_lacks(docker: DockerRunner, base: Image) -> None:
    """The second image has the first one's layers, which are not even read again."""
    first = image([*base.layers, layer(entry("opt/one", b"x"), packed=True)])
    handle = docker.prepare(first, none)
    try:

        def unread() -> Any:
            raise AssertionError("a layer was read that the engine has")

        from dataclasses import replace

        known = [replace(one, stream=unread) for one in first.layers]
        second = image([*known, layer(entry("opt/two", b"y"), packed=True)])
        if not docker.layer_chains():
            pytest.skip("this engine wants whole archives")
        above = docker.prepare(second, none)
        assert docker.run(job(above, command=("ls", "/opt")), none).stdout == "one\ntwo\n"
        docker.remove(above)
        assert not docker.has(above)
    finally:
        docker.remove(handle)
    assert re.fullmatch(r"docker \d+\..*", docker.name)
