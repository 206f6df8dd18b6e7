"""What each engine is asked for a command in the foreground, and how its output is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from images.engines.container import front_settings, own_user, settings_of
from images.engines.docker_attach import frames
from images.engines.podman_arguments import create_words
from images.engines.sandbox.launch import Launcher
from images.engines.sandbox.plan import Mount, plan_run
from images.engines.spec import Bind, Foreground, Port, RunJob
from tests.kit.cases import cases

JOB = RunJob(image="sha256:ab", command=("python3", "train.py"), environment={"A": "b"})
DATA = Bind(source=Path("/here/data"), target="/data")
SEEN = Bind(source=Path("/here/seen"), target="/seen", writable=False)
WEB = Port(inside=8000, here=8080, address="127.0.0.1")


@cases(
    "front network user asked",
    ("nothing is mounted by itself, and it has the default network", Foreground(), None, {},
     {"network_mode": None, "tty": False, "volumes": []}),
    ("a terminal", Foreground(terminal=True), None, {}, {"tty": True, "stdin_open": True}),
    ("what is mounted is written to, unless it is for reading", Foreground(binds=(DATA, SEEN)),
     None, {}, {"volumes": ["/here/data:/data:rw", "/here/seen:/seen:ro"]}),
    ("a port of one address", Foreground(ports=(WEB,)), None, {},
     {"ports": {"8000/tcp": ("127.0.0.1", 8080)}}),
    ("the host's network has its ports", Foreground(ports=(WEB,)), "host", {},
     {"network_mode": "host", "ports": {}}),
    ("a directory to start in", Foreground(directory="/data"), None, {}, {"working_dir": "/data"}),
    ("a user of this machine has a home and a name", Foreground(), None,
     {"user": "7:8", "HOME": "/tmp", "USER": "ann", "LOGNAME": "ann"},
     {"user": "7:8", "environment": {"HOME": "/tmp", "USER": "ann", "LOGNAME": "ann", "A": "b"}}),
)  # fmt: skip
def test_docker_is_asked(
    front: Foreground, network: str | None, user: dict[str, str], asked: dict[str, Any]
) -> None:
    settings = {**settings_of(JOB, ()), **front_settings(JOB, front, network, user)}
    assert {name: settings[name] for name in asked} == asked
    assert (settings["image"], settings["command"]) == (JOB.image, list(JOB.command))
    assert ("working_dir" in settings, "user" in settings) == (bool(front.directory), bool(user))


@cases(
    "uid security expected",
    ("a user's files belong to the user", 1000, [], "1000:100"),
    ("root is root there, too", 0, [], None),
    ("a rootless engine maps its root to the user", 1000,
     ["name=seccomp,profile=default", "name=rootless"], None),
)  # fmt: skip
def test_the_user_of_a_container(
    uid: int,
    security: list[str],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nann:x:1000:100::/home/ann:\n")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    found = own_user({"SecurityOptions": security}, tmp_path)
    assert found.get("user") == expected
    assert found.get("USER") == ("ann" if expected else None)


@cases(
    "front words",
    ("a verification has no network", None, ["--network", "none"]),
    ("input is ours", Foreground(), ["--init", "--interactive"]),
    ("a terminal", Foreground(terminal=True, directory="/data"), ["--init", "--interactive",
        "--tty", "--workdir", "/data"]),
    ("mounts and ports", Foreground(binds=(DATA, SEEN), ports=(WEB,)), ["--init", "--interactive",
        "--volume", "/here/data:/data:rw", "--volume", "/here/seen:/seen:ro", "--security-opt",
        "label=disable", "--publish", "127.0.0.1:8080:8000/tcp"]),
)  # fmt: skip
def test_podman_is_asked(front: Foreground | None, words: list[str]) -> None:
    found = create_words(JOB, "name", {}, front)
    assert [word for word in words if word not in found] == []
    assert found[-5:] == ["--pull", "never", "ab", "python3", "train.py"]
    role = "verify" if front is None else "run"
    assert found[:4] == ["--name", "name", "--label", f"org.gpu-provision.role={role}"]
    if front is not None:
        begin = found.index("--init")
        assert found[begin : begin + len(words)] == words
        assert "--network" not in found


@pytest.mark.parametrize("kind", ["bubblewrap", "unshare"])
@pytest.mark.parametrize("front", [None, Foreground(binds=(DATA, SEEN), directory="/data")])
def test_a_sandbox_in_the_foreground_has_the_network_and_its_mounts(
    kind: Any, front: Foreground | None, tmp_path: Path
) -> None:
    tree, files = tmp_path / "tree", tmp_path / "files"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/python3").write_bytes(b"")
    files.mkdir()
    plan = plan_run(tree, {}, JOB, None, files, front)
    launcher = Launcher(kind=kind, program=kind, version="1", own_users=True)
    words = launcher.command(plan, tmp_path)
    apart = "--unshare-net" if kind == "bubblewrap" else "--net"
    assert (apart in words) == (front is None)
    mounted = {
        Mount(kind="output", target="/data", source="/here/data"),
        Mount(kind="bind", target="/seen", source="/here/seen"),
    }
    assert mounted & set(plan.mounts) == (mounted if front else set())
    assert plan.directory == ("/data" if front else "/")
    assert ("/etc/resolv.conf" in {one.target for one in plan.mounts}) == (
        front is not None and Path("/etc/resolv.conf").exists()
    )


def test_an_engines_frames_are_read_from_any_pieces() -> None:
    def frame(stream: int, data: bytes) -> bytes:
        return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data

    sent = frame(1, b"out") + frame(2, b"err") + frame(1, b"") + frame(1, b"end")
    for size in (1, 3, 7, 8, 9, 100):
        pieces = (sent[at : at + size] for at in range(0, len(sent), size))
        found: dict[int, bytes] = {}
        for stream, data in frames(pieces):
            found[stream] = found.get(stream, b"") + data
        assert found == {1: b"outend", 2: b"err"}
