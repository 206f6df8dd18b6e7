"""How the nodes of a Ray cluster are listed, named and called. The messages are those of Ray
2.60.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.system.process import Completed, ToolMissing
from provision.errors import BadInputError
from provision.fleet.nodes import ray_driver
from provision.fleet.nodes.ray import (
    RayCluster,
    RayError,
    RayNode,
    explain_ray,
    find_own_cluster,
    find_ray_python,
    node_names,
    parse_address,
    parse_nodes,
    ray_calls,
    ray_cluster,
)
from tests.kit.cases import cases
from tests.kit.programs import run_program

NODE: dict[str, Any] = {
    "id": "a1", "alive": True, "host": "h1", "address": "10.0.0.1", "port": 1, "label": "10.0.0.1",
    "reason": 0, "message": "",
}  # fmt: skip


def node(**more: Any) -> RayNode:
    return RayNode(**{**NODE, **more})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", "auto"),
        ("auto", "auto"),
        ("head:6379", "head:6379"),
        ("10.0.0.1:6379", "10.0.0.1:6379"),
        ("[fd00::1]:6379", "[fd00::1]:6379"),
        ("ray://head.example:10001", "ray://head.example:10001"),
    ],
)
def test_an_address(text: str, address: str) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["head", "http://head:8265", "-x:1", "a b:1", "local", "ray://", "head:port"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInputError) as raised:
        parse_address(text)
    assert "ray://HOST:10001" in raised.value.fix


class Machine:
    """A process table, and the folder in which Ray keeps its files."""

    def __init__(self, place: Path) -> None:
        self.proc = place / "proc"
        self.file = place / "ray" / "ray_current_cluster"
        self.file.parent.mkdir()
        self.file.parent.chmod(0o777)  # as Ray makes it
        self.proc.mkdir()

    def raylet(self, pid: int, address: str, user: int) -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        words = ["/opt/ray/raylet/raylet", "--x=1", f"--gcs-address={address}"]
        (folder / "cmdline").write_text("\0".join(words))
        os.chown(folder, user, user)

    def last(self, address: str, user: int, mode: int = 0o644) -> None:
        self.file.write_text(address + "\n")
        self.file.chmod(mode)
        os.chown(self.file, user, user)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return Machine(tmp_path)


ME, OTHER = os.geteuid(), 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


@needs_root
@cases(
    "raylets last expected",
    ("one that runs", [("a:1", ME)], None, "a:1"),
    ("two, the last one", [("a:1", ME), ("b:1", ME)], ("b:1", ME), "b:1"),
    ("the file of one that ended", [("a:1", ME)], ("gone:1", ME), "a:1"),
    ("the file", [], ("b:1", ME), "b:1"),
    ("none", [], None, None),
    ("another user's", [("evil:1", OTHER)], None, None),
    ("... beside one's own", [("evil:1", OTHER), ("a:1", ME)], None, "a:1"),
    ("another user's file", [], ("evil:1", OTHER), None),
    ("... beside one's own raylet", [("a:1", ME)], ("evil:1", OTHER), "a:1"),
    ("addresses that are none", [("a b:1", ME)], ("-x", ME), None),
)
def test_the_cluster_of_this_machine_is_the_users_own(
    machine: Machine,
    raylets: list[tuple[str, int]],
    last: tuple[str, int] | None,
    expected: str | None,
) -> None:
    for number, (address, user) in enumerate(raylets):
        machine.raylet(100 + number, address, user)
    if last is not None:
        machine.last(*last)
    if expected is not None:
        assert find_own_cluster(machine.proc) == expected
        return
    with pytest.raises(RayError) as raised:
        find_own_cluster(machine.proc)
    assert raised.value.fix == "Name the cluster: --on ray:HOST:6379"
    assert ("(user 12345 has one)" in raised.value.message) == (("evil:1", OTHER) in raylets)


def test_a_file_that_everybody_may_write_names_no_cluster(machine: Machine) -> None:
    machine.last("a:1", ME, 0o666)
    with pytest.raises(RayError):
        find_own_cluster(machine.proc)


def test_the_variable_names_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert find_own_cluster(tmp_path) == "ray://head:10001"


def script(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "ray").write_text(text)
    (folder / "ray").chmod(0o755)


def test_the_python_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(ToolMissing):
        find_ray_python()
    script(place, f"#!{sys.executable}\n")
    assert find_ray_python() == sys.executable
    python = place / "python3"
    python.symlink_to(sys.executable)
    script(place, "#!/usr/bin/env python3\n")
    assert find_ray_python() == str(python)
    script(place, "#!/bin/sh\n'''exec' '/a long path/python' \"$0\" \"$@\"\n' '''\n")
    assert find_ray_python() == str(python)
    python.unlink()
    with pytest.raises(ToolMissing) as raised:
        find_ray_python()
    assert str(place) in str(raised.value)


@cases(
    "program expected",
    ("it ends", "import sys; sys.exit('no room')", "no room"),
    ("it is killed", "import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ("its Python has no Ray", "", "ModuleNotFoundError"),
)
def test_a_ray_that_fails_is_named(
    program: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`program` is run instead of the driver, if there is one."""
    words = f'-c "{program}"' if program else '"$@"'
    python = tmp_path / "bin" / "python3"
    script(tmp_path / "bin", "#!/bin/sh\n")
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 9\nexec {sys.executable} {words}\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RayError) as raised, ray_cluster("here"):
        pass
    assert expected in str(raised.value)
    assert raised.value.fix
    assert [one.name for one in tmp_path.iterdir()] == ["bin"]


def test_dead_nodes_count_unless_they_were_ended_or_came_back() -> None:
    listed = [
        NODE,
        {**NODE, "id": "b", "host": "h2", "alive": False, "reason": 2, "message": "no heartbeat"},
        {**NODE, "id": "c", "host": "h2", "alive": False, "reason": 2, "message": "again"},
        {**NODE, "id": "d", "alive": False, "reason": 2},
        {**NODE, "id": "e", "host": "h3", "alive": False, "reason": 1},
        {**NODE, "id": "f", "host": "h4", "alive": False, "reason": 4},
        {**NODE, "id": "g", "host": "h5", "alive": False, "reason": 3},
    ]
    nodes = parse_nodes(listed)
    assert [one.id for one in nodes] == ["a1", "c", "g"]
    calls = {one.name: one for one in ray_calls(RayCluster(nodes, Path("/x/s")), 60)}
    assert calls["h1"].argv[-3:] == ("/x/s", "a1", "70")
    refused = {name: one.refused.message for name, one in calls.items() if one.refused}
    assert refused == {"h2": "h2: Ray lists it as dead: again.", "h5": "h5: Ray lists it as dead."}


@cases(
    "nodes names",
    ("its host", [node()], ["h1"]),
    ("the name that it was started with", [node(label="gpu-7")], ["gpu-7"]),
    ("no host", [node(host="", label="")], ["10.0.0.1"]),
    ("a path", [node(label="../x/y")], ["_x_y"]),
    ("an option", [node(label="-x")], ["x"]),
    ("two", [node(), node(address="10.0.0.2", label="")], ["h1-10.0.0.1", "h1-10.0.0.2"]),
    ("one address", [node(), node(port=2)], ["h1-10.0.0.1-1", "h1-10.0.0.1-2"]),
)
def test_the_names_of_nodes(nodes: list[RayNode], names: list[str]) -> None:
    assert list(node_names(nodes)) == names


@given(
    st.lists(st.tuples(st.text(max_size=300), st.sampled_from(["10.0.0.1", "fd00::1"]), st.text()))
)
def test_names_are_unique_and_those_of_files(parts: list[tuple[str, str, str]]) -> None:
    nodes = [
        node(id=f"id{number}", host=host, address=address, label=label)
        for number, (host, address, label) in enumerate(parts)
    ]
    names = node_names(nodes)
    assert len(set(names)) == len(nodes)
    assert all("/" not in name and name[0] not in "-." and len(name) <= 200 for name in names)


@cases(
    "code err expected words",
    ("its worker died", 255,
     ("gpu-provision: node lost: WorkerCrashedError: The worker died unexpectedly while "
      "executing this task."), "node-lost", "The worker died unexpectedly"),
    ("Ray's own error", 255, "gpu-provision: Ray failed: OutOfMemoryError: Task was killed",
     "node-failed", "n1: OutOfMemoryError"),
    ("the program's error", 1, "SyntaxError: x", "node-failed", "SyntaxError"),
    ("nothing", -9, "", "node-failed", "SIGKILL"),
)  # fmt: skip
def test_what_ray_says(code: int, err: str, expected: str, words: str) -> None:
    done = Completed(argv=("x",), code=code, output=err, stdout="", seconds=0.1)
    found = explain_ray("n1", done)
    assert found.code == expected
    assert found.message.startswith("n1: ")
    assert words in found.message
    assert found.fix


def test_a_call_without_a_driver_ends_with_the_reason(tmp_path: Path) -> None:
    cluster = RayCluster((node(),), tmp_path / "s")
    (call,) = ray_calls(cluster, 5)
    done = run_program(call.argv, given="x")
    assert done.returncode == 255
    assert call.explain is not None
    found = call.explain(Completed(call.argv, 255, done.stderr, "", 0.1))
    assert "the driver of the cluster has ended" in found.message


BEATS = """
import pathlib, sys, time
try:
    while True:
        sys.stdout.write("x")
        sys.stdout.flush()
        time.sleep(0.1)
except OSError:
    pathlib.Path("@").write_text("removed")
    sys.stderr.close()
"""


@cases(
    "program result",
    ("it ends", "print(1 + 1); raise SystemExit(3)", (3, b"2\n", b"")),
    ("nowhere", "print(__import__('os').getcwd())", (0, b"/\n", b"")),
    ("all GPUs", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))", (0, b"None\n", b"")),
)
def test_the_task_runs_a_program(
    program: str, result: tuple[int, bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert ray_driver.run_program(program.encode(), 60, 1) == result


def test_the_task_ends_a_program_that_hangs_at_once_and_lets_one_that_works_clean_up(
    tmp_path: Path,
) -> None:
    began = time.monotonic()
    code, _, err = ray_driver.run_program(b"import time; time.sleep(600)", 1, 100)
    assert (code, err) == (124, b"it exceeded its time limit")
    assert time.monotonic() - began < 60
    program = BEATS.replace("@", str(tmp_path / "container"))
    assert ray_driver.run_program(program.encode(), 3, 60)[0] == 124
    assert (tmp_path / "container").read_text() == "removed"
