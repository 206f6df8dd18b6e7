"""How nodes are listed and called, and what their tools' messages mean. The texts are those that
OpenSSH 9.2 and Slurm 22.05 print.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.errors import Failure
from images.system import process
from images.system.process import Completed
from provision.cli import main as cli
from provision.errors import BadInputError
from provision.fleet.nodes import ray_driver
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.collect import NodeReading, collect
from provision.fleet.nodes.kubernetes_call import arguments
from provision.fleet.nodes.program import NodeProgram, node_program
from provision.fleet.nodes.slurm import (
    SlurmJob,
    SlurmNode,
    explain_srun,
    parse_partition,
    parse_sinfo,
    slurm_calls,
)
from provision.fleet.nodes.ssh import explain_ssh, read_ssh_hosts, ssh_calls
from provision.fleet.nodes.work import NodeLimits, ask_nodes
from provision.fleet.report import nodes_to_json
from tests.kit import schemas
from tests.kit.cases import cases


def ended(code: int, err: str) -> Completed:
    return Completed(argv=("x",), code=code, output=err, stdout="", seconds=0.1)


def listed(tmp_path: Path, text: str) -> list[tuple[str, str | None, int | None]]:
    (tmp_path / "hosts").write_text(text)
    return [(one.host, one.user, one.port) for one in read_ssh_hosts(str(tmp_path / "hosts"))]


@cases(
    "text hosts",
    ("a name", "n1\n", [("n1", None, None)]),
    ("all parts", "me@n1.example.org:2222", [("n1.example.org", "me", 2222)]),
    ("an IPv6 address", "[fe80::1]:22", [("fe80::1", None, 22)]),
    ("comments, twice", "# all\n\n n1 # first\nn1\n", [("n1", None, None)]),
    ("CRLF", "n1\r\nn2\r\n", [("n1", None, None), ("n2", None, None)]),
)
def test_a_list_of_hosts(
    tmp_path: Path, text: str, hosts: list[tuple[str, str | None, int | None]]
) -> None:
    assert listed(tmp_path, text) == hosts


@cases(
    "text",
    ("empty", ""),
    ("comments only", "# nothing"),
    ("an option", "-oProxyCommand=x"),
    ("two on a line", "n1 n2"),
    ("port 0", "n1:0"),
    ("a port that is too high", "n1:65536"),
    ("a host that begins like an option", "me@-n1"),
    ("a command", "n1;reboot"),
    ("a path", "../n1"),
)
def test_a_line_that_is_no_host_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInputError) as raised:
        listed(tmp_path, text)
    assert raised.value.fix


@given(st.text(max_size=40))
def test_no_line_becomes_an_option_or_a_path(text: str) -> None:
    from provision.fleet.nodes import ssh

    try:
        host = ssh._host(text, "here")
    except BadInputError:
        return
    call = ssh_calls([host], None)[0]
    assert "/" not in call.name
    assert call.name[0] not in "-."
    place = call.argv.index("--")
    assert not call.argv[place + 1].startswith("-")


def test_hosts_of_one_address_have_their_port_in_the_name(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a:1\na:2\nb\n[::1]\n")
    calls = ssh_calls(read_ssh_hosts(str(tmp_path / "hosts")), "conf")
    assert [one.name for one in calls] == ["a-1", "a-2", "b", "__1"]
    assert calls[0].argv[:3] == ("ssh", "-F", "conf")
    with pytest.raises(BadInputError):
        ssh_calls(read_ssh_hosts(str(_write(tmp_path, "me@a\nyou@a\n"))), None)


def test_python_on_a_node_imports_nothing_of_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to a node starts it isolated, without the variables of Python and the directory."""
    (tmp_path / "json.py").write_text("raise SystemExit('theirs')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    over_ssh = ssh_calls(read_ssh_hosts(str(_write(tmp_path, "a\n"))), None)[0].argv
    over_slurm = slurm_calls(parse_sinfo(SINFO), SlurmJob(wait_s=30, run_s=60))[0].argv
    in_pod = arguments("import json; print('ours')")
    for words in (over_ssh[-1].split()[1:], over_slurm[-3:], in_pod):
        done = process.run(
            [sys.executable, *words[1:]], timeout_s=60, input="import json; print('ours')"
        )
        assert (words[0], done.output) == ("python3", "ours")
    assert ray_driver.run_program(b"import json; print('ours')", 60, 1)[:2] == (0, b"ours\n")
    assert "--export=PATH,LD_LIBRARY_PATH,HOME,USER,LOGNAME" in over_slurm


def _write(folder: Path, text: str) -> Path:
    (folder / "hosts").write_text(text)
    return folder / "hosts"


@pytest.mark.parametrize(
    ("code", "err", "expected"),
    [
        (255, "ssh: Could not resolve hostname n9: Name or service not known", "host-name-unknown"),
        (255, "ssh: connect to host n1 port 22: Connection refused", "connection-refused"),
        (255, "ssh: connect to host n1 port 22: Connection timed out", "node-silent"),
        (255, "ssh: connect to host n1 port 22: No route to host", "node-silent"),
        (255, "Connection timed out during banner exchange", "node-silent"),
        (255, "Timeout, server n1 not responding.", "node-silent"),
        (255, "root@n1: Permission denied (publickey).", "login-refused"),
        (255, "Host key verification failed.", "host-key-unknown"),
        (255,
         ("@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
          "Host key verification failed."), "host-key-changed"),
        (127, "bash: line 1: exec: python3: not found", "no-python"),
        (127, "fish: Unknown command: python3", "no-python"),
        (1, "Permission denied", "node-failed"),
        (255, "", "node-failed"),
        (-9, "", "node-failed"),
    ],
)  # fmt: skip
def test_what_ssh_says(code: int, err: str, expected: str) -> None:
    found = explain_ssh("n1", ended(code, err))
    assert found.code == expected
    assert found.message.startswith("n1: ")
    assert found.fix


@pytest.mark.parametrize(
    ("err", "expected"),
    [
        ("srun: error: Unable to allocate resources: Requested nodes are busy", "node-busy"),
        (("srun: error: Task launch for StepId=4.0 failed on node n1: Communication "
          "connection failure\nsrun: error: Application launch failed: Communication "
          "connection failure\nsrun: Job step aborted"), "node-silent"),
        (("srun: error: Task launch for StepId=9.0 failed on node n0: Socket timed out on "
          "send/recv operation\nsrun: Job step aborted"), "node-silent"),
        ("srun: error: Node failure on n1", "node-silent"),
        (("slurmstepd: error: execve(): python3: No such file or directory\n"
          "srun: error: n1: task 0: Exited with exit code 2"), "no-python"),
        (("srun: error: Unable to allocate resources: Invalid account or account/partition "
          "combination specified"), "node-failed"),
        (("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T19:00:00 DUE TO "
          "TIME LIMIT ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to "
          "finish.\nsrun: error: n1: task 0: Terminated"), "job-time-limit"),
        ("*** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T19:00:00 DUE TO PREEMPTION ***",
         "job-preempted"),
        (("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T19:00:00 DUE TO JOB "
          "REQUEUE ***"), "job-requeued"),
        (("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T19:00 DUE TO NODE "
          "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"), "node-silent"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T19:00:00 ***",
         "job-canceled"),
        (("srun: error: Unable to allocate resources: Required node not available (down, "
          "drained or reserved)"), "node-out-of-service"),
        ("", "node-failed"),
    ],
)  # fmt: skip
def test_what_srun_says(err: str, expected: str) -> None:
    found = explain_srun("n1", ended(1, err))
    assert found.code == expected
    assert found.message.startswith("n1: ")
    assert "Job step aborted" not in found.message


SINFO = """n0|idle|gpu|up|1000|gpu:2|infinite|none
n0|idle|all|up|1000|gpu:2|1:00|none
n1|mixed-|gpu|up|1|gpu:a100:4(S:0-1),gpu:v100:2(S:0)|30:00|none
n2|drained|gpu|up|1000|gpu:2|2-12:00:00|bad PSU | check
n3|down*|gpu|up|1000|(null)|1:30:00|Not responding
n4|planned$|gpu|down|1000|(null)|1:00|none
n4|planned$|all|up|1000|mps:100,gpu:h100:8|n/a|none
n5|idle~|all|up|1000|gpu:8|infinite|none
bad line
../n6|idle|gpu|up|1000|(null)|infinite|none
"""


def node(name: str, state: str, partition: str, gpus: int, reason: str) -> SlurmNode:
    return SlurmNode(
        name=name,
        state=state,
        mark="",
        partition=partition,
        memory=1000,
        minutes=None,
        gpus=gpus,
        reason=reason,
    )


def test_the_nodes_of_a_cluster() -> None:
    assert parse_sinfo(SINFO) == (
        node("n0", "idle", "gpu", 2, ""),
        node("n1", "mixed", "gpu", 6, "")._replace(memory=1, minutes=30),
        node("n2", "drained", "gpu", 2, "bad PSU | check")._replace(minutes=3600),
        node("n3", "down", "gpu", 0, "Not responding")._replace(mark="not responding", minutes=90),
        node("n4", "planned", "all", 8, ""),
        node("n5", "idle", "all", 8, "")._replace(mark="powered down"),
    )


def test_only_nodes_in_service_are_asked_and_for_all_their_gpus() -> None:
    calls = {
        one.name: one for one in slurm_calls(parse_sinfo(SINFO), SlurmJob(wait_s=30, run_s=60))
    }
    refused = {name: one.refused.message for name, one in calls.items() if one.refused}
    assert refused == {
        "n2": "n2: Slurm runs nothing there, it is drained: bad PSU | check.",
        "n3": "n3: Slurm runs nothing there, it is down, not responding: Not responding.",
        "n5": "n5: Slurm runs nothing there, it is idle, powered down.",
    }
    assert "--gres=gpu:6" in calls["n1"].argv
    assert "--mem=256M" in calls["n0"].argv
    assert not any("--mem" in word for word in calls["n1"].argv)
    assert not any("gres" in word for word in calls["n3"].argv)
    assert len({one.cleanup for one in calls.values() if one.cleanup}) == 3


@cases(
    "run_s minutes asked",
    ("no limit", 1800, None, 31),
    ("a longer limit", 1800, 60, 31),
    ("a shorter limit", 1800, 20, 20),
    ("seconds", 1800, 0, 1),
)
def test_a_job_asks_for_no_more_time_than_its_partition_gives(
    run_s: float, minutes: int | None, asked: int
) -> None:
    one = node("n0", "idle", "gpu", 2, "")._replace(minutes=minutes)
    (call,) = slurm_calls((one,), SlurmJob(wait_s=30, run_s=run_s))
    assert f"--time={asked}" in call.argv


def test_a_suite_gets_the_node_alone() -> None:
    call = slurm_calls(parse_sinfo(SINFO), SlurmJob(wait_s=300, run_s=1800, whole=True))[0]
    assert {"--exclusive", "--mem=0", "--gres=gpu:2", "--time=31", "--immediate=300"} <= {
        *call.argv
    }
    assert not any(word.startswith("--cpus-per-task") for word in call.argv)


@pytest.mark.parametrize("text", ["-x", "a b", "a;b", "$(x)"])
def test_a_partition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        parse_partition(text)


PYTHON = (sys.executable, "-")
FAST = NodeLimits(4, 60)


def gathered(
    tmp_path: Path,
    *calls: NodeCall,
    again: bool = False,
    limits: NodeLimits = FAST,
    program: NodeProgram | None = None,
) -> dict[str, NodeReading]:
    told: list[str] = []
    found = collect(
        calls,
        program or node_program(),
        tmp_path,
        limits,
        again=again,
        tell=lambda one: told.append(one.name),
    )
    assert sorted(told) == sorted(one.name for one in calls)
    assert [one.name for one in found] == [one.name for one in calls]
    return {one.name: one for one in found}


def failing(done: Completed) -> NodeFailure:
    return NodeFailure("node-failed", f"n: {done.code}", "x")


def test_a_file_for_each_that_answers(tmp_path: Path) -> None:
    down = NodeFailure("node-out-of-service", "n3: down", "x")
    found = gathered(
        tmp_path,
        NodeCall("n1", PYTHON, failing),
        NodeCall("n2", (sys.executable, "-c", "raise SystemExit(3)"), failing),
        NodeCall("n3", refused=down),
    )
    assert {name: one.status for name, one in found.items()} == {
        "n1": "read",
        "n2": "failed",
        "n3": "failed",
    }
    assert found["n3"].failure == down
    printed = nodes_to_json(tuple(found.values()), tmp_path)
    assert schemas.problems("fleet-detect", printed) == []
    assert [one.name for one in tmp_path.iterdir()] == ["n1.json"]
    assert stat.S_IMODE((tmp_path / "n1.json").stat().st_mode) == 0o644
    again = gathered(tmp_path, NodeCall("n1", (sys.executable, "-c", "1"), failing), again=True)
    assert again["n1"].status == "failed"
    assert again["n1"].path == tmp_path / "n1.json"  # of the earlier run


def test_a_node_that_hangs_is_ended_and_cleaned_up_after(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    call = NodeCall("n1", ("sleep", "600"), failing, cleanup=("touch", str(tmp_path / "cleaned")))
    found = gathered(tmp_path / "out", call, limits=NodeLimits(1, 1))
    assert found["n1"].failure is not None
    assert found["n1"].failure.code == "node-timeout"
    assert (tmp_path / "cleaned").exists()


def test_an_answer_counts_though_the_connection_hangs(tmp_path: Path) -> None:
    script = f"{sys.executable} -; exec sleep 600"
    found = gathered(
        tmp_path, NodeCall("n1", ("sh", "-c", script), failing), limits=NodeLimits(1, 8)
    )
    assert found["n1"].status == "read"


def test_no_more_nodes_at_a_time_than_allowed(tmp_path: Path) -> None:
    """Each call counts those that run beside it."""
    (tmp_path / "running").mkdir()
    (tmp_path / "out").mkdir()
    script = (
        f"cd {tmp_path}/running; mkdir $0; ls | wc -l >> ../counts; sleep 0.2; rmdir $0; exit 3"
    )
    calls = [NodeCall(f"n{i}", ("sh", "-c", script, f"n{i}"), failing) for i in range(9)]
    gathered(tmp_path / "out", *calls, limits=NodeLimits(3, 60))
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 9
    assert max(counts) <= 3


def test_a_missing_program_and_a_full_disk_end_the_run(tmp_path: Path) -> None:
    calls = [NodeCall(f"n{i}", ("no-such-program",), failing) for i in range(50)]
    with pytest.raises(Failure) as raised:
        gathered(tmp_path, *calls)
    assert raised.value.code == "tool-missing"
    (tmp_path / "n1.json").mkdir()
    with pytest.raises(BadInputError):
        gathered(tmp_path, NodeCall("n1", PYTHON, failing))
    assert [one.name for one in tmp_path.iterdir()] == ["n1.json"]
    assert threading.active_count() < 20


def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
    began = time.monotonic()
    found = gathered(tmp_path, NodeCall("n1", ("yes",), failing))
    assert found["n1"].status == "failed"
    assert time.monotonic() - began < 55


@cases(
    "words",
    ("another engine", ["--on", "telnet:x"]),
    ("no list", ["--on", "ssh"]),
    ("a list that is not there", ["--on", "ssh:/nowhere/hosts"]),
    ("a partition that is none", ["--on", "slurm:a b"]),
    ("ssh's options with Slurm", ["--on", "slurm", "--ssh-config", "x"]),
    ("the address of Ray's dashboard", ["--on", "ray:http://x:8265"]),
    ("Kubernetes without an image", ["--on", "kubernetes"]),
    ("an image without Kubernetes", ["--on", "slurm", "--image", "x"]),
    ("a class without Kubernetes", ["--on", "slurm", "--runtime-class", "x"]),
    ("ssh's options with Kubernetes", ["--on", "kubernetes", "--image", "x", "--ssh-config", "x"]),
    ("no time", ["--on", "ssh:x", "--timeout", "0"]),
    ("not a number", ["--on", "ssh:x", "--at-once", "many"]),
)
def test_bad_input_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["fleet", "detect", "--output", str(tmp_path / "out"), "--json", *words])
    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["error"]["code"]) == (2, "bad-input")
    assert not (tmp_path / "out").exists()


def test_slurm_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code = cli.main(["fleet", "detect", "--on", "slurm", "--output", str(tmp_path), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["error"]["code"]) == (5, "tool-missing")
    assert "sinfo" in answer["error"]["message"]
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_an_endless_answer_is_ended_and_named() -> None:
    flood = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    call = NodeCall("n1", (sys.executable, "-c", flood), lambda _: NodeFailure("other", "x", "x"))
    (answer,) = ask_nodes([call], lambda _: node_program(), NodeLimits(1, 60), lambda _: None)
    assert answer.failure is not None
    assert answer.failure.message == "n1: it sent more than 12 MiB and was ended."
