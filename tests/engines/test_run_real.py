"""`provision run` on Docker, on podman and in the sandbox: as the user's own program would run."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from images.engines.archive import engine_archive
from images.engines.podman import Podman
from images.engines.runner import DockerRunner
from images.engines.spec import Bind, Foreground, RunJob
from images.oci.sources import Image
from tests import need
from tests.engines.lab import ROOT, World, new_world
from tests.engines.podman_place import podman_storage
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer, link

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

NAME = "gpu-provision-test/run:1"
LIMIT_S = 30
TOOLS = ("sh", "cat", "sleep", "id", "env", "pwd", "stty", "test")


def small() -> Image:
    """An image of one static program."""
    program = Path(need.program("busybox", "busybox-static")).read_bytes()
    tools = [link(f"bin/{name}", "busybox") for name in TOOLS]
    return image(
        [layer(entry("bin"), entry("bin/busybox", program, mode=0o755), *tools)],
        {"Env": ["PATH=/bin", "FROM=image"], "Cmd": ["env"]},
    )


@dataclass(frozen=True)
class Place:
    """Where the image is: the words that name it, and the world that has it."""

    words: tuple[str, ...]
    world: World

    def start(self, *words: str, stdin: Any = subprocess.DEVNULL, **more: Any) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "provision", "run", *self.words, *words],
            cwd=ROOT,
            env=dict(self.world.env),
            **{
                "stdin": stdin,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "start_new_session": True,
                **more,
            },
        )

    def run(self, *words: str, given: str | None = None) -> tuple[int, str, str]:
        process = self.start(*words, stdin=subprocess.PIPE)
        out, err = process.communicate(given, timeout=LIMIT_S)
        return process.returncode, out, err


@pytest.fixture(scope="module", params=["docker", "podman", "sandbox"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param == "docker":
            client = request.getfixturevalue("client")
            DockerRunner(client).prepare(small(), lambda _: None, name=NAME)
            stack.callback(lambda: client.images.remove(NAME, force=True))
            yield Place((NAME,), stack.enter_context(new_world()))
        elif request.param == "podman":
            env = stack.enter_context(podman_storage(tmp_path_factory.mktemp("podman")))
            with pytest.MonkeyPatch.context() as patch:
                for name, value in env.items():
                    patch.setenv(name, value)
                Podman.connect().prepare(small(), lambda _: None, name=NAME)
            yield Place(("--engine", "podman", NAME), stack.enter_context(new_world(**env)))
        else:
            need.program("bwrap", "bubblewrap")
            archive = tmp_path_factory.mktemp("image") / "image.tar"
            archive.write_bytes(b"".join(engine_archive(small(), lambda _: None, tag=NAME)))
            yield Place((str(archive),), stack.enter_context(new_world()))


def test_a_command_has_our_input_output_variables_and_files(place: Place, tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("here\n")
    script = "cat; cat seen; echo $A $FROM; echo made >new; echo x >/only/this || exit 7"
    mounts = ("-v", f"{tmp_path}:/data", "-v", f"{tmp_path}/seen:/only/this:ro", "-w", "/data")
    code, out, err = place.run(*mounts, "-e", "A=b", "--", "sh", "-c", script, given="typed\n")
    assert (code, out) == (7, "typed\nhere\nb image\n"), err
    assert "/only/this" in err
    assert (tmp_path / "new").read_text() == "made\n"
    assert (tmp_path / "new").stat().st_uid == os.geteuid()
    assert (tmp_path / "seen").read_text() == "here\n"


def test_without_a_command_the_images_own_is_run(place: Place) -> None:
    code, out, err = place.run()
    assert code == 0, err
    assert "FROM=image" in out.splitlines()


def test_a_program_that_the_image_lacks_is_not_found_as_in_a_shell(place: Place) -> None:
    code, out, err = place.run("--", "nosuch")
    assert (code, out) == (127, "")
    assert "nosuch" in err


@cases(
    "script number ended",
    ("one that the command handles",
     "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.1; done", signal.SIGTERM,
     (5, "saved\n")),
    ("SIGTERM", "echo ready; exec sleep 99", signal.SIGTERM, (143, "")),
)  # fmt: skip
def test_a_signal_reaches_the_command_and_nothing_is_left(
    script: str, number: int, ended: tuple[int, str], place: Place
) -> None:
    process = place.start("--", "sh", "-c", script)
    assert process.stdout.readline() == "ready\n", process.communicate()
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == ended, err
    assert place.world.processes() == []


def shown_until(words: bytes, screen: int) -> None:
    """Read a terminal until it shows something."""
    shown, deadline = b"", time.monotonic() + LIMIT_S
    while words not in shown and time.monotonic() < deadline:
        if select.select([screen], [], [], 1)[0]:
            shown += os.read(screen, 1000)
    assert words in shown


def test_a_terminal_is_the_commands(place: Place) -> None:
    ours, theirs = need.terminal()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
    before = termios.tcgetattr(theirs)
    script = "trap 'echo stopped; exit 9' INT; test -t 0 && read x; stty size; read y"
    ends = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.DEVNULL, "text": False}
    process = place.start("--", "sh", "-c", script, **ends)
    try:
        os.write(ours, b"go\n")
        shown_until(b"33 77", ours)
        os.write(ours, b"\x03")
        shown_until(b"stopped", ours)
        assert process.wait(LIMIT_S) == 9
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)


def test_docker_gives_files_to_the_user_who_runs_it(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    engine = DockerRunner(client)
    handle = engine.prepare(small(), lambda _: None)
    try:
        tmp_path.chmod(0o777)
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        monkeypatch.setattr(os, "getegid", lambda: 65534)
        job = RunJob(image=handle, command=("sh", "-c", "echo $HOME; echo x >/data/new"))
        front = Foreground(binds=(Bind(source=tmp_path, target="/data"),))
        assert engine.attend(job, front, lambda _: None) == 0
    finally:
        engine.remove(handle)
    assert capfd.readouterr().out == "/tmp\n"
    assert (tmp_path / "new").stat().st_uid == 65534
