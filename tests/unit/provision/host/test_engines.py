"""Docker and podman, played by small shell scripts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from provision.host.cdi import parse_cdi, read_cdi
from provision.host.engines import (
    DetectedEngines,
    explain,
    find_engines,
    has_integrated_buildkit,
    parse_buildx,
    parse_runtimes,
    read_docker_cdi,
)
from provision.host.machine import Answer, ProbedMachine, Question
from provision.host.runner import local_runner
from provision.host.tree import tree_source
from provision.model.plan import Absent, Engine
from tests.kit.cases import cases

DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at "
    'unix:///var/run/docker.sock: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/version": '
    "dial unix /var/run/docker.sock: connect: permission denied"
)
STOPPED = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
    "Is the docker daemon running?"
)
STOPPED_29 = (
    "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is "
    "correct and if the daemon is running: dial unix /var/run/docker.sock: no such file"
)
SPEC = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
devices:
- containerEdits:
    deviceNodes:
    - name: not-a-device
      path: /dev/nvidia0
  name: "0"
- name: all  # every one
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
kind: nvidia.com/gpu
"""


def write_program(directory: Path, name: str, body: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def docker(
    directory: Path,
    *,
    client: str = "27.5.1",
    server: str | None = "27.5.1",
    buildx: str | None = "v0.20.0",
    info: dict[str, object] | None = None,
    error: str = STOPPED,
) -> Path:
    """A docker that says what it is told to."""
    server_json = {"Version": server} if server else None
    version = json.dumps({"Client": {"Version": client, "Os": "linux"}, "Server": server_json})
    about = json.dumps({"ServerVersion": server, "Runtimes": {"runc": {}}, **(info or {})})
    plugin = f"echo github.com/docker/buildx {buildx} abc" if buildx else "exit 1"
    fail = "" if server else f"echo '{error}' >&2; exit 1"
    body = f"""case "$1" in
version) echo '{version}'; {fail} ;;
info) echo '{about}' ;;
buildx) {plugin} ;;
esac"""
    return write_program(directory, "docker", body)


def find(
    *directories: Path, root: Path = Path("/nonexistent"), timeout_s: float = 10
) -> DetectedEngines:
    path = ":".join([*map(str, directories), "/usr/bin", "/bin"])
    only = ":".join(map(str, directories))
    return find_engines(machine(root, {"PATH": only}, path), timeout_s=timeout_s)


def machine(root: Path, env: dict[str, str], path: str = "") -> ProbedMachine:
    """Files of `root`, programs of this machine: those that the tests write."""
    files = tree_source(root, None, env)
    programs = tree_source(Path("/"), local_runner({"PATH": path}), env)

    def ask(question: Question) -> Answer:
        is_program = question[0] == "run" or question[-1].endswith(("/docker", "/podman"))
        return programs(question) if is_program else files(question)

    return ProbedMachine(env=env, source=ask)


def test_a_docker_that_works_is_described(tmp_path: Path) -> None:
    info: dict[str, object] = {"Runtimes": {"runc": {}, "nvidia": {"path": "x"}}}
    program = docker(tmp_path / "bin", info=info)
    found = find(tmp_path / "bin")
    assert found.engines == (
        Engine(
            name="docker",
            client="27.5.1",
            server="27.5.1",
            buildkit="buildx 0.20.0",
            gpu_runtime=True,
            cdi_devices=(),
        ),
    )
    assert found.sources == (("engines.docker", str(program)),)


def test_the_first_docker_that_can_build_is_taken(tmp_path: Path) -> None:
    docker(tmp_path / "new", client="28.2.2", buildx=None)
    old = docker(tmp_path / "old", client="20.10.24+dfsg1", buildx=None)
    found = find(tmp_path / "new", tmp_path / "old")
    assert found.engines[0].client == "20.10.24+dfsg1"
    assert found.engines[0].buildkit == "integrated"
    assert found.sources == (("engines.docker", str(old)),)


def test_where_none_can_build_the_first_is_shown(tmp_path: Path) -> None:
    docker(tmp_path / "a", client="28.2.2", buildx=None)
    docker(tmp_path / "b", client="24.0.1", buildx=None)
    found = find(tmp_path / "a", tmp_path / "b")
    assert (found.engines[0].client, found.engines[0].buildkit) == ("28.2.2", None)


def test_one_program_reached_twice_is_asked_once(tmp_path: Path) -> None:
    program = docker(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/docker").symlink_to(program)
    env = {"PATH": f"{tmp_path}/b:{tmp_path}/a:{tmp_path}/none:"}
    assert ProbedMachine(env=env).on_path("docker") == (str(tmp_path / "b/docker"),)


@cases(
    "text problem",
    ("no permission", DENIED,
     ("permission denied on unix:///var/run/docker.sock: "
      "add this user to the docker group, or use sudo")),
    ("not running", STOPPED,
     "no daemon answers at unix:///var/run/docker.sock: start it, or set DOCKER_HOST"),
    ("not running, in the words of 29", STOPPED_29,
     "no daemon answers at unix:///var/run/docker.sock: start it, or set DOCKER_HOST"),
    ("anything else as it is", "error during connect: Get https://h: x509: expired",
     "error during connect: Get https://h: x509: expired"),
)  # fmt: skip
def test_a_refusal_says_what_to_do(tmp_path: Path, text: str, problem: str) -> None:
    docker(tmp_path / "bin", server=None, error=text)
    engine = find(tmp_path / "bin").engines[0]
    assert engine.problem == problem
    assert (engine.server, engine.gpu_runtime, engine.cdi_devices) == (None, None, None)
    assert engine.buildkit == "buildx 0.20.0"


def test_a_refusal_without_an_address_names_docker_host() -> None:
    text = "Is the docker daemon running?"
    assert "at tcp://h:2375:" in explain(text, {"DOCKER_HOST": "tcp://h:2375"})


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_engine_that_hangs_costs_its_limit_and_no_more(tmp_path: Path, name: str) -> None:
    program = write_program(tmp_path / "bin", name, "sleep 60")
    started = time.monotonic()
    found = find(tmp_path / "bin", timeout_s=0.2)
    assert time.monotonic() - started < 40
    row = Absent(
        fact=f"engines.{name}", source=str(program), reason=f"{name} did not answer within 0.2 s"
    )
    assert row in found.absent
    assert found.engines == ()


@cases(
    "body why",
    ("words", "echo hello", "does not answer like"),
    ("another JSON", "echo '[1]'", "does not answer like"),
    ("another client", "echo '{\"Client\": 3}'", "does not answer like"),
    ("bytes", "printf '\\377\\376'", "does not answer like"),
    ("an error", "echo broken >&2; exit 2", "broken"),
)
@pytest.mark.parametrize("name", ["docker", "podman"])
def test_garbage_is_no_engine(tmp_path: Path, name: str, body: str, why: str) -> None:
    write_program(tmp_path / "bin", name, body)
    found = find(tmp_path / "bin")
    assert found.engines == ()
    assert any(row.fact == f"engines.{name}" and why in row.reason for row in found.absent)


@cases(
    "body",
    ("by its own words",
     ('echo "Emulate Docker CLI using podman. Create ..." >&2\n'
      'echo \'{"Client": {"Version": "4.3.1"}}\'')),
    ("by the shape of its answer",
     'echo \'{"Client": {"Version": "4.3.1", "OsArch": "linux/amd64"}}\''),
)  # fmt: skip
def test_podmans_imitation_of_docker_is_not_docker(tmp_path: Path, body: str) -> None:
    write_program(tmp_path / "bin", "docker", body)
    found = find(tmp_path / "bin")
    assert found.engines == ()
    assert "podman's imitation" in found.absent[0].reason


def test_podman_that_works_is_described(tmp_path: Path) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(SPEC)
    body = """case "$1" in
version) echo '{"Client": {"Version": "4.3.1", "OsArch": "linux/amd64"}}' ;;
info) echo '{"host": {}, "version": {"Version": "4.3.1"}}' ;;
esac"""
    write_program(tmp_path / "bin", "podman", body)
    assert find(tmp_path / "bin", root=tmp_path).engines == (
        Engine(
            name="podman",
            client="4.3.1",
            server="4.3.1",
            gpu_runtime=False,
            cdi_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=all"),
        ),
    )


def test_podman_that_cannot_run_says_why(tmp_path: Path) -> None:
    body = """case "$1" in
version) echo '{"Client": {"Version": "4.3.1"}}' ;;
info) echo 'Error: cannot set up namespace: newuidmap: not found' >&2; exit 125 ;;
esac"""
    write_program(tmp_path / "bin", "podman", body)
    (engine,) = find(tmp_path / "bin").engines
    assert (engine.client, engine.server) == ("4.3.1", None)
    assert engine.problem == "Error: cannot set up namespace: newuidmap: not found"


def test_without_programs_both_are_absent(tmp_path: Path) -> None:
    assert [row.reason for row in find(tmp_path).absent] == [
        "no docker on PATH",
        "no podman on PATH",
    ]


@cases(
    "client expected",
    ("28 needs the plugin", "28.2.2", False),
    ("so does 23, the first", "23.0.0", False),
    ("Debian's 20.10 does not", "20.10.24+dfsg1", True),
    ("nor 18.09, the first with BuildKit", "18.09.1", True),
    ("before that there was none", "18.06.3-ce", False),
    ("unknown is not able", None, False),
)
def test_buildkit_is_inside_some_clients(client: str | None, *, expected: bool) -> None:
    assert has_integrated_buildkit(client) is expected


@cases(
    "text version",
    ("Docker's", "github.com/docker/buildx v0.13.1 788433953af1", "0.13.1"),
    ("Debian's", "github.com/docker/buildx 0.13.1+ds1 ", "0.13.1+ds1"),
    ("none", "docker: 'buildx' is not a docker command.", None),
)
def test_buildx_says_its_version(text: str, version: str | None) -> None:
    assert parse_buildx(text) == version


@cases(
    "info expected",
    ("registered", {"Runtimes": {"runc": {}, "nvidia": {}}}, True),
    ("not registered", {"Runtimes": {"runc": {}}}, False),
    ("not told", {"Runtimes": None}, None),
    ("not asked", {}, None),
)
def test_the_nvidia_runtime_is_in_dockers_list(
    info: dict[str, object], *, expected: bool | None
) -> None:
    assert parse_runtimes(info) is expected


@pytest.mark.parametrize(
    ("info", "local", "expected"),
    [
        pytest.param({}, True, None, id="no server, no answer"),
        pytest.param({"ServerVersion": "20.10.24"}, True, (), id="20.10 has no CDI"),
        pytest.param({"ServerVersion": "25.0.0", "CDISpecDirs": []}, True, (), id="CDI is off"),
        pytest.param({"ServerVersion": "27.0.0", "CDISpecDirs": ["/etc/cdi"]}, True,
                     ("nvidia.com/gpu=0", "nvidia.com/gpu=all"),
                     id="CDI is on, so its directories are read"),
        pytest.param({"ServerVersion": "27.0.0", "CDISpecDirs": ["/etc/cdi"]}, False, None,
                     id="but not those of another machine"),
        pytest.param(
            {
                "ServerVersion": "28.3.0",
                "CDISpecDirs": ["/etc/cdi"],
                "DiscoveredDevices": [
                    {"Source": "cdi", "ID": "nvidia.com/gpu=GPU-1"},
                    {"Source": "other", "ID": "x"},
                ],
            },
            False,
            ("nvidia.com/gpu=GPU-1",),
            id="28.2 and newer list the devices",
        ),
    ],
)  # fmt: skip
def test_dockers_cdi_devices_depend_on_its_version(
    tmp_path: Path, info: dict[str, object], *, local: bool, expected: tuple[str, ...] | None
) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(SPEC)
    env = {} if local else {"DOCKER_HOST": "tcp://192.0.2.1:2376"}
    assert read_docker_cdi(ProbedMachine(root=tmp_path, env=env), info) == expected


@cases(
    "text names",
    ("YAML, flush lists", SPEC, ("nvidia.com/gpu=0", "nvidia.com/gpu=all")),
    ("YAML, indented lists",
     "kind: 'a.b/c'\ndevices:\n  - name: x\n    containerEdits: {}\n  - name: \"y\"\n",
     ("a.b/c=x", "a.b/c=y")),
    ("JSON", '{"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": 1}, 7]}',
     ("nvidia.com/gpu=0",)),
    ("half a JSON", '{"kind": "nvidia.com/gpu", "devices"', ()),
    ("JSON without end", "{" * 99_999, ()),
    ("no kind", "devices:\n- name: x\n", ()),
    ("no devices", "kind: nvidia.com/gpu\ndevices: []\n", ()),
    ("no text", "\0\0", ()),
)  # fmt: skip
def test_a_cdi_spec_names_its_devices(text: str, names: tuple[str, ...]) -> None:
    assert parse_cdi(text) == names


def test_a_device_in_two_specs_is_named_once(tmp_path: Path) -> None:
    for directory in ("etc/cdi", "var/run/cdi"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "nvidia.yml").write_text(SPEC)
    (tmp_path / "etc/cdi/notes.txt").write_text(SPEC.replace("nvidia", "other"))
    assert read_cdi(ProbedMachine(root=tmp_path)) == ("nvidia.com/gpu=0", "nvidia.com/gpu=all")


def test_cdi_devices_in_yaml_are_unknown_where_no_reader_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of a fleet has the standard library only; none would be a claim."""
    folder = tmp_path / "etc" / "cdi"
    folder.mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    (folder / "a.json").write_text('{"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}')
    assert read_cdi(ProbedMachine(root=tmp_path)) == ("nvidia.com/gpu=0",)
    (folder / "b.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: all\n")
    assert read_cdi(ProbedMachine(root=tmp_path)) is None
