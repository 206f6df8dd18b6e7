"""Three nodes on the loopback with real PyTorch over gloo, and one of them at fault."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.clusters.ssh_servers import free_port
from tests.frameworks.place import ENV, ROOT, python_of

pytestmark = pytest.mark.frameworks

WORLD = 3
LIMIT_S = 55
# What node 1 does. It patches the suite, which then forks its ranks.
FAULTS = {
    "sound": "",
    "adds 1 to its numbers": "work.contribution = lambda rank, *a: true(rank, *a) + (rank == 1)",
    "sleeps": "work.contribution = lambda *a: time.sleep(600)",
    "its rank dies": "work.contribution = lambda *a: os.kill(os.getpid(), signal.SIGSEGV)",
    "its job dies": "work.contribution = lambda *a: os.kill(os.getppid(), signal.SIGKILL)",
    "cannot start": "ranks.take_device = lambda rank: 1 / 0",
    "raises": "work.contribution = lambda *a: torch.empty(1 << 60)",
    "adds 1 to every sum": """
import torch.distributed as dist
reduce = dist.all_reduce
def wrong(tensor, *more, **named):
    tensor += 1
    return reduce(tensor, *more, **named)
dist.all_reduce = wrong
""",
}
START = """
import os, signal, sys, time
import torch
from verify.across import work
from verify.checks import ranks
from verify.commands.main import main
true = work.contribution
exec({fault!r})
sys.exit(main({argv!r}))
"""


class End(NamedTuple):
    """How a node's command ended."""

    code: int
    report: dict[str, Any]


def start(number: int, port: int, fault: str = "", *more: str, **env: str) -> subprocess.Popen[str]:
    argv = [
        *("across", "--rank", str(number), "--world", str(WORLD), "--json", "--sizes", "4K,256K"),
        *("--master", f"127.0.0.1:{port}", "--join", "30", "--timeout", "40", *more),
    ]
    code = START.format(fault=fault, argv=argv) if fault else ""
    command = ["-c", code] if fault else ["-m", "verify", *argv]
    return subprocess.Popen(
        [python_of("pytorch"), *command],
        cwd=ROOT,
        env={**ENV, "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(nodes: Sequence[subprocess.Popen[str]]) -> Iterator[End]:
    """Each node's end; a node whose job died has no report."""
    deadline = time.monotonic() + LIMIT_S
    try:
        for node in nodes:
            out, err = node.communicate(timeout=max(1, deadline - time.monotonic()))
            assert "Traceback" not in err
            yield End(node.returncode, json.loads(out) if out else {})
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def run(fault: str, *more: str, **env: str) -> list[End]:
    port = free_port()
    seeds = {0 if fault == "cannot start" else 1: FAULTS[fault]}
    return list(finish([start(i, port, seeds.get(i, ""), *more, **env) for i in range(WORLD)]))


def test_sound_nodes_agree_and_gloo_proves_nothing_about_nccl() -> None:
    ends = run("sound")
    assert [end.code for end in ends] == [7] * WORLD
    assert ends[0].report == ends[1].report == ends[2].report
    report = ends[0].report
    assert (report["status"], report["code"], report["backend"]) == ("pass", None, "gloo")
    assert "gloo; NCCL not tested" in report["message"]
    assert [row["bytes"] for row in report["measured"]["largest"]] == [1 << 18, (1 << 18) - 4]
    assert all(
        len(row["gbs"]) >= 5 and min(row["gbs"]) > 0 for row in report["measured"]["largest"]
    )
    answers = report["measured"]["tables"][0]["rows"]
    assert {row[0] for row in answers} >= {"all-reduce by rank", "all-reduce", "broadcast"}
    assert {cell for row in answers for cell in row[1:]} <= {"right", "not supported"}


@pytest.mark.parametrize(
    ("fault", "more", "code", "blamed", "suspects", "word"),
    [
        ("adds 1 to its numbers", (), "across-wrong-result", [], [1], "all-reduce by rank"),
        ("adds 1 to every sum", (), "across-wrong-result", [], [], "wrong"),
        ("sleeps", ("--timeout", "30"), "across-hang", [], [1], "at the input of all-reduce"),
        ("its rank dies", (), "across-rank-died", [1], [], "SIGSEGV"),
        ("raises", (), "across-rank-failed", [], [1], "RuntimeError"),
        ("cannot start", (), "across-rank-failed", [], [0], "ZeroDivisionError"),
        ("its job dies", (), "across-node-lost", [1], [], "closed the connection"),
    ],
)
def test_a_fault_of_one_node_is_named(
    fault: str,
    more: tuple[str, ...],
    code: str,
    blamed: list[int],
    suspects: list[int],
    word: str,
) -> None:
    for number, end in enumerate(run(fault, *more)):
        if (fault, number) == ("its job dies", 1):
            assert end == (-9, {})
            continue
        assert (end.code, end.report["status"]) == (1, "fail")
        found = end.report["code"], end.report["blamed"], end.report["suspects"]
        assert found == (code, blamed, suspects), end.report
        assert word in end.report["message"]
        assert end.report["cause"]
        assert end.report["fix"]


def test_a_node_that_does_not_come_is_named() -> None:
    port = free_port()
    for end in finish([start(i, port, "", "--join", "8") for i in (0, 2)]):
        assert end.code == 1
        assert (end.report["code"], end.report["blamed"]) == ("across-node-missing", [1])
        assert "node 1 of 3 did not join within 8 s" in end.report["message"]


def test_a_wrong_master_is_said_by_the_node_that_was_given_it() -> None:
    port = free_port()
    others = [start(i, port, "", "--join", "8") for i in (0, 2)]
    first, last, astray = finish([*others, start(1, free_port(), "", "--join", "4")])
    assert astray.report["code"] == "across-master-unreachable"
    assert "refused" in astray.report["message"]
    assert first.report["blamed"] == last.report["blamed"] == [1]


def test_an_interface_that_is_not_there_is_a_code_of_gloo() -> None:
    ends = run("sound", GLOO_SOCKET_IFNAME="nope0")
    assert {end.report["code"] for end in ends} == {"gloo-no-interface"}
