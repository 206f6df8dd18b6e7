"""Three nodes on the loopback with real PyTorch over gloo, and one of them at fault."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.frameworks.place import Command, run_forked

pytestmark = pytest.mark.frameworks

WORLD = 3
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


class End(NamedTuple):
    """How a node's command ended; a node whose job died has no report."""

    code: int
    report: dict[str, Any]


def node(number: int, fault: str = "", *more: str, **env: str) -> Command:
    argv = [
        *("across", "--rank", str(number), "--world", str(WORLD), "--json", "--sizes", "4K,256K"),
        *("--master", "127.0.0.1:{port}", "--join", "30", "--timeout", "40", *more),
    ]
    return Command(tuple(argv), fault, env)


def nodes(fault: str, *more: str, **env: str) -> list[Command]:
    seeds = {0 if fault == "cannot start" else 1: FAULTS[fault]}
    return [node(i, seeds.get(i, ""), *more, **env) for i in range(WORLD)]


NO_INTERFACE = "no interface"
ABSENT = "does not come"
ASTRAY = "goes elsewhere"
# What waits longest begins first.
GROUPS = {
    "sleeps": nodes("sleeps", "--timeout", "30"),
    ABSENT: [node(i, "", "--join", "8") for i in (0, 2)],
    ASTRAY: [
        *(node(i, "", "--join", "8") for i in (0, 2)),
        node(1, "", "--join", "4", "--master", "127.0.0.1:{other}"),
    ],
    NO_INTERFACE: nodes("sound", GLOO_SOCKET_IFNAME="nope0"),
    **{fault: nodes(fault) for fault in FAULTS if fault != "sleeps"},
}


@pytest.fixture(scope="module")
def ends() -> dict[str, list[End]]:
    """How each group's nodes ended."""
    found = {}
    for name, done in run_forked(GROUPS).items():
        assert "Traceback" not in "".join(one.stderr for one in done)
        found[name] = [
            End(one.returncode, json.loads(one.stdout) if one.stdout else {}) for one in done
        ]
    return found


Ends = dict[str, list[End]]


def test_sound_nodes_agree_and_gloo_proves_nothing_about_nccl(ends: Ends) -> None:
    sound = ends["sound"]
    assert [end.code for end in sound] == [7] * WORLD
    assert sound[0].report == sound[1].report == sound[2].report
    report = sound[0].report
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
    ("fault", "code", "blamed", "suspects", "word"),
    [
        ("adds 1 to its numbers", "across-wrong-result", [], [1], "all-reduce by rank"),
        ("adds 1 to every sum", "across-wrong-result", [], [], "wrong"),
        ("sleeps", "across-hang", [], [1], "at the input of all-reduce"),
        ("its rank dies", "across-rank-died", [1], [], "SIGSEGV"),
        ("raises", "across-rank-failed", [], [1], "RuntimeError"),
        ("cannot start", "across-rank-failed", [], [0], "ZeroDivisionError"),
        ("its job dies", "across-node-lost", [1], [], "closed the connection"),
    ],
)
def test_a_fault_of_one_node_is_named(
    ends: Ends, fault: str, code: str, blamed: list[int], suspects: list[int], word: str
) -> None:
    for number, end in enumerate(ends[fault]):
        if (fault, number) == ("its job dies", 1):
            assert end == (-9, {})
            continue
        assert (end.code, end.report["status"]) == (1, "fail")
        found = end.report["code"], end.report["blamed"], end.report["suspects"]
        assert found == (code, blamed, suspects), end.report
        assert word in end.report["message"]
        assert end.report["cause"]
        assert end.report["fix"]


def test_a_node_that_does_not_come_is_named(ends: Ends) -> None:
    for end in ends[ABSENT]:
        assert end.code == 1
        assert (end.report["code"], end.report["blamed"]) == ("across-node-missing", [1])
        assert "node 1 of 3 did not join within 8 s" in end.report["message"]


def test_a_wrong_master_is_said_by_the_node_that_was_given_it(ends: Ends) -> None:
    first, last, astray = ends[ASTRAY]
    assert astray.report["code"] == "across-master-unreachable"
    assert "refused" in astray.report["message"]
    assert first.report["blamed"] == last.report["blamed"] == [1]


def test_an_interface_that_is_not_there_is_a_code_of_gloo(ends: Ends) -> None:
    assert {end.report["code"] for end in ends[NO_INTERFACE]} == {"gloo-no-interface"}
