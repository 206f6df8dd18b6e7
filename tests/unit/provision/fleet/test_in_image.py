"""A command in an image on many nodes: what runs it there, its words, and what the answer means.

The nodes are processes of this machine; programs on their PATH stand for the engines.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from images.engines import run_arguments
from images.system.process import Completed
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.in_image import (
    ImageWork,
    NodeRun,
    last_object,
    run_in_image,
    run_of,
    suite_command,
)
from provision.fleet.nodes.program import RUN_IN_IMAGE, node_program, read_answer
from provision.fleet.nodes.work import NodeAnswer, NodeLimits
from provision.fleet.on_node.image import WAYS, NodeRunError, choose_way, expected_gpus
from provision.model.plan import Gpu
from tests.kit.cases import cases

IMAGE = "team/torch:1"
# What docker and podman are asked here: they answer, and "run" shows its words and its input.
ENGINE = f"""#!{sys.executable}
import json, sys, os
words = sys.argv[1:]
with open(os.environ["ASKED"], "a") as file:
    file.write(json.dumps(words) + "\\n")
if words[0] == "run":
    {{body}}
"""
HONEST = (
    'print("a banner")\n    '
    'print(json.dumps({"words": words, "stdin": sys.stdin.read()}, indent=1))\n    sys.exit(1)'
)


class Node:
    """A node that is a folder of programs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "python3").symlink_to(sys.executable)
        self.asked = place / "asked"

    def program(self, name: str, body: str = HONEST) -> None:
        path = self.place / "bin" / name
        path.write_text(ENGINE.format(body=body))
        path.chmod(0o755)

    @property
    def argv(self) -> tuple[str, ...]:
        # as over ssh: python3 reads the program from standard input
        return (
            *("env", "-i", f"PATH={self.place / 'bin'}", f"ASKED={self.asked}"),
            *("HOME=/nonexistent", sys.executable, "-I", "-"),
        )

    def call(self, name: str = "n1") -> NodeCall:
        return NodeCall(name, self.argv, failing)

    def commands(self) -> list[list[str]]:
        return [json.loads(line) for line in self.asked.read_text().splitlines()]


def failing(done: Completed) -> NodeFailure:
    return NodeFailure("node-failed", f"n: {done.code} {done.output}", "x")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def ran(*calls: NodeCall, timeout_s: float = 60, **more: Any) -> tuple[NodeRun, ...]:
    work = ImageWork(
        image=IMAGE, command=suite_command("--json", "--expect", "-"), timeout_s=timeout_s, **more
    )
    told: list[NodeRun] = []
    limits = NodeLimits(len(calls), timeout_s + 30)
    found = run_in_image(calls, lambda _: work, limits, told.append)
    assert {one.name for one in told} == {one.name for one in calls}
    return found


def test_each_node_runs_its_own_words_at_the_same_time(node: Node, tmp_path: Path) -> None:
    """The nodes meet: none of them ends before all have started."""
    meet = (
        f"open({str(tmp_path)!r} + '/' + words[-1], 'w')\n    import time\n    "
        f"while len([n for n in os.listdir({str(tmp_path)!r}) if n.isdigit()]) < 3: "
        "time.sleep(0.05)\n    print(json.dumps({'rank': words[-1]}, indent=1))"
    )
    node.program("docker", meet)
    calls = [node.call(f"n{rank}") for rank in range(3)]
    runs = run_in_image(
        calls,
        lambda call: ImageWork(
            image=IMAGE, command=suite_command("across", call.name[1:]), timeout_s=40
        ),
        NodeLimits(3, 60),
        lambda _: None,
    )
    assert [(one.name, one.json) for one in runs] == [
        (f"n{rank}", {"rank": str(rank)}) for rank in range(3)
    ]


def test_the_suite_gets_the_nodes_gpus_and_its_exit_code_comes_back(node: Node) -> None:
    node.program("docker")
    (run,) = ran(node.call(), expect={"schema": 1, "gpus": None, "cuda": "11.7"})
    assert run.failure is None
    assert (run.way, run.code) == ("docker", 1)
    assert json.loads(run.json["stdin"])["cuda"] == "11.7"
    assert "gpus" in json.loads(run.json["stdin"])
    assert run.json["words"][:3] == ["run", "--rm", "--interactive"]
    assert run.json["words"][-6:] == [IMAGE, *suite_command("--json", "--expect", "-")]
    assert run.host["arch"] == os.uname().machine
    assert node.commands()[-1][:2] == ["rm", "--force"], "a container never stays"


def test_limits_that_a_machine_refuses_are_omitted(node: Node) -> None:
    node.program(
        "docker",
        'if "--ulimit" in words: sys.exit(print("error setting rlimit", file=sys.stderr) or 125)'
        "\n    " + HONEST,
    )
    (run,) = ran(node.call())
    assert run.failure is None
    assert "--ulimit" not in run.json["words"]


@cases(
    "body code",
    ("the engine cannot get the image",
     'sys.exit(print("manifest unknown", file=sys.stderr) or 125)', "no-image-on-node"),
    ("the container does not start", 'sys.exit(print("no GPU runtime", file=sys.stderr) or 125)',
     "node-run-failed"),
    ("the suite says nothing", "sys.exit(3)", "node-no-report"),
    ("half a report", 'print("{"); sys.exit(0)', "node-no-report"),
    ("a flood", 'print("x" * (17 << 20))', "node-no-report"),
    ("the suite hangs", "import time; time.sleep(600)", "node-timeout"),
)  # fmt: skip
def test_a_run_without_a_report_is_a_result(node: Node, body: str, code: str) -> None:
    node.program("docker", body)
    (run,) = ran(node.call(), timeout_s=4 if "sleep" in body else 60)
    assert run.failure is not None
    assert run.failure.code == code
    assert run.failure.message.startswith("n1: ")
    assert run.failure.fix
    assert node.commands()[-1][:2] == ["rm", "--force"]


def test_a_node_without_any_engine_says_what_to_install(node: Node) -> None:
    (run,) = ran(node.call())
    assert run.failure is not None
    assert run.failure.code == "no-way-to-run"
    assert "no docker; no podman; no apptainer; no enroot" in run.failure.message
    assert "--provision" in run.failure.fix


def test_a_shared_checkout_is_the_first_way(node: Node) -> None:
    node.program("docker")
    checkout = node.place / "provision"
    checkout.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        "print(json.dumps({'words': sys.argv[1:]}, indent=1))\n"
    )
    checkout.chmod(0o755)
    (run,) = ran(
        node.call(), provision=f"{checkout} provision", verify=("--json", "--level", "quick")
    )
    assert run.way == "provision"
    assert run.json["words"] == ["provision", "verify", IMAGE, "--json", "--level", "quick"]


def test_an_error_of_provision_verify_is_the_nodes(node: Node) -> None:
    checkout = node.place / "provision"
    error = {"schema": 1, "error": {"code": "x", "message": "There is no image.", "fix": "Push."}}
    checkout.write_text(f"#!/bin/sh\necho '{json.dumps(error, indent=1)}'\nexit 5\n")
    checkout.chmod(0o755)
    (run,) = ran(node.call(), provision=str(checkout), verify=("--json",))
    assert run.failure is not None
    assert run.failure.message == "n1: There is no image."


@contextlib.contextmanager
def started(node: Node, entries: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The program of a node, once its engine has noted so much; and its answer's mark."""
    work = ImageWork(image=IMAGE, command=("x",), timeout_s=500)
    program = node_program(RUN_IN_IMAGE, work._asdict())
    process = subprocess.Popen(
        node.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(program.text.encode())
    process.stdin.close()
    deadline = time.monotonic() + 60
    try:
        while not node.asked.exists() or len(node.commands()) < entries:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process, program.mark
        process.wait(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
    assert node.commands()[-1][:2] == ["rm", "--force"]


def test_what_runs_on_a_node_ends_with_the_connection(node: Node) -> None:
    """As over ssh: the caller dies, and nobody signals the node's processes."""
    node.program("docker", "import time; time.sleep(600)")
    with started(node, 2) as (process, _):
        assert process.stdout is not None
        process.stdout.close()


TELLS = (
    "import signal, time; end = lambda *_: (print('{\\n\"said\": 1\\n}'), sys.exit(143));"
    "signal.signal(signal.SIGTERM, end); print(json.dumps(['ready']),"
    " file=open(os.environ['ASKED'], 'a'), flush=True); time.sleep(600)"
)


def test_what_a_signal_ends_on_a_node_says_what_it_has_found(node: Node) -> None:
    """As Slurm ends a job at its time limit: the node's program gets it, not the container."""
    node.program("docker", TELLS)
    with started(node, 3) as (process, mark):
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        with process.stdout as stream:
            out = stream.read().decode()
    run = run_of(NodeAnswer("n1", read_answer("n1", out, mark), None, 1.0))
    assert (run.json, run.code, run.failure) == ({"said": 1}, 143, None)


def test_a_signal_before_there_is_a_report_ends_the_nodes_program(node: Node) -> None:
    """Slurm then says why: a time limit, a canceled job."""
    node.program("docker", "import time; time.sleep(600)")
    with started(node, 2) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        with process.stdout as stream:
            stream.read()
    assert process.returncode == -signal.SIGTERM


def test_ctrl_c_leaves_what_the_nodes_have_found(node: Node) -> None:
    pressed = f"os.kill({os.getpid()}, signal.SIGINT); time.sleep(600)"
    node.program("docker", TELLS.replace("time.sleep(600)", pressed))
    told: list[NodeRun] = []
    work = ImageWork(image=IMAGE, command=("x",), timeout_s=60)
    with pytest.raises(KeyboardInterrupt):
        run_in_image([node.call()], lambda _: work, NodeLimits(1, 90), told.append)
    assert [(run.json, run.code) for run in told] == [({"said": 1}, 143)]


@cases(
    "there broken expected",
    ("docker before podman", ("docker", "podman"), (), ("docker", "docker")),
    ("docker is down", ("docker", "podman"), ("docker",), ("podman", "podman")),
    ("its older name", ("singularity",), (), ("apptainer", "singularity")),
    ("enroot alone", ("enroot",), (), ("enroot", "enroot")),
    ("nothing", (), (), None),
    ("only one, and it is down", ("docker",), ("docker",), None),
)
def test_which_way_a_node_takes(
    there: Sequence[str], broken: Sequence[str], expected: tuple[str, str] | None
) -> None:
    def which(name: str) -> str | None:
        return f"/usr/bin/{name}" if name in there else None

    def answers(argv: Sequence[str]) -> str:
        return "is the daemon running?" if argv[0] in broken else ""

    if expected is None:
        with pytest.raises(NodeRunError):
            choose_way(WAYS, None, which, answers)
    else:
        assert choose_way(WAYS, None, which, answers) == expected


@pytest.mark.parametrize(
    ("engine", "gpus", "expected"),
    [
        ("docker", "runtime", ["--gpus", "all"]),
        ("docker", "cdi", ["--device", "nvidia.com/gpu=all"]),
        ("podman", "runtime", ["--device", "nvidia.com/gpu=all"]),
        ("apptainer", "runtime", ["--nv"]),
        ("docker", "none", []),
        ("podman", "none", []),
        ("apptainer", "none", []),
        ("enroot", "runtime", []),
    ],
)
def test_how_each_engine_is_asked_for_gpus(engine: str, gpus: str, expected: list[str]) -> None:
    assert run_arguments.gpu_words(engine, gpus) == expected


def test_the_words_of_apptainer_and_enroot() -> None:
    command = ("python3", "x")
    assert run_arguments.apptainer_words(
        "singularity", "i.sif", gpus="runtime", environment={"A": "1"}, command=command
    ) == [
        *("singularity", "exec", "--containall", "--no-home", "--cleanenv", "--nv"),
        *("--env", "A=1", "i.sif", "python3", "x"),
    ]
    assert run_arguments.enroot_words("r", gpus="runtime", environment={}, command=command) == [
        *("enroot", "start", "--env", "NVIDIA_VISIBLE_DEVICES=all"),
        *("--env", "NVIDIA_DRIVER_CAPABILITIES=all", "r", "python3", "x"),
    ]
    assert run_arguments.enroot_words("r", gpus="none", environment={}, command=command)[2] == "r"


@pytest.mark.parametrize(
    ("image", "apptainer", "enroot"),
    [
        ("reg.example/a/b:1", "docker://reg.example/a/b:1", "docker://reg.example#a/b:1"),
        ("localhost:5000/b:1", "docker://localhost:5000/b:1", "docker://localhost:5000#b:1"),
        ("team/torch:1", "docker://team/torch:1", "docker://team/torch:1"),
        ("oci:/shared:a", "oci:/shared:a", "docker://oci:/shared:a"),
        ("/shared/a.sqsh", "/shared/a.sqsh", "/shared/a.sqsh"),
    ],
)
def test_how_an_image_is_named(image: str, apptainer: str, enroot: str) -> None:
    assert run_arguments.apptainer_source(image) == apptainer
    if not image.startswith(("oci:", "/")):
        assert run_arguments.enroot_source(image) == enroot


def test_the_expected_gpus_of_a_node() -> None:
    specs: Mapping[str, Mapping[str, Any]] = {"NVIDIA A100": {"nvlink": 1}}
    cards = (
        Gpu(name="A100", compute_capability=(8, 0), uuid="GPU-1"),
        Gpu(name="other", compute_capability=None, uuid=None),
    )
    assert expected_gpus(None, specs) is None
    assert expected_gpus(cards, specs) == [
        {
            "uuid": "GPU-1",
            "name": "A100",
            "compute_capability": "8.0",
            "spec": {"nvlink": 1},
        },
        {"uuid": None, "name": "other", "compute_capability": None},
    ]


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], {}, {"code": "1", "stdout": "", "stderr": ""}, {"code": 0, "stdout": 1}, "x"),
        {"way": "docker\x1b[2J", "code": 0, "stdout": "", "stderr": ""},
        {"way": "W" * (1 << 20), "code": 0, "stdout": "", "stderr": ""},
        {"way": None, "code": 0, "stdout": "", "stderr": ""},
        {"way": "docker", "code": True, "stdout": "", "stderr": ""},
        {"way": "docker", "code": 10**400, "stdout": "", "stderr": ""},
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_an_answer_that_is_damaged_is_the_nodes_failure(value: object) -> None:
    run = run_of(NodeAnswer("n1", value, None, 1.0))
    assert run.failure is not None
    assert run.failure.code == "node-failed"
    assert (run.json, run.way) == (None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('banner\n{\n"a": 1\n}\n', {"a": 1}),
        ('{\n"a": 1\n}\n{\n"b": 2\n}', {"b": 2}),
        ("{}", None),
        ("{\n[[[\n}", None),
        ("", None),
    ],
)
def test_the_last_object_counts(text: str, expected: object) -> None:
    assert last_object(text) == expected
