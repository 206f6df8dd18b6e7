"""What a round makes of the nodes' answers, and the result of all rounds."""

from __future__ import annotations

from typing import Any

import pytest

from provision.fleet.across.groups import AcrossError, AcrossOrder, GroupRun, RoundRun, end_of
from provision.fleet.across.result import exit_code, neighbours, readings, to_json, verify_across
from provision.fleet.across.search import AcrossDiagnosis
from provision.fleet.commands.across_text import describe_across, round_line
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.in_image import NodeRun
from tests.kit import schemas
from tests.kit.cases import cases

GROUP = ("a", "b", "c")
GONE = NodeFailure("node-silent", "b: it does not answer.", "See whether it is up.")


def report(code: str | None = None, **more: Any) -> dict[str, Any]:
    status = "pass" if code is None else "fail"
    found = {"across": 1, "status": status, "code": code, "message": "m", "cause": None}
    return {**found, "fix": "f", "backend": "gloo", "blamed": [], "measured": {}, **more}


def runs(*found: dict[str, Any] | NodeFailure) -> list[NodeRun]:
    return [
        NodeRun(name, None, None, "", None, None, one, 1.0)
        if isinstance(one, NodeFailure)
        else NodeRun(name, one, 7, "", "docker", {}, None, 1.0)
        for name, one in zip(GROUP, found, strict=True)
    ]


WRONG = report("across-wrong-result", suspects=[1])


@cases(
    "answers ok named",
    ("all work", [report()] * 3, True, []),
    ("a suspect is not named", [WRONG] * 3, False, []),
    ("a rank died", [report("across-rank-died", blamed=[1])] * 3, False, ["b"]),
    ("a node that did not come and does not answer is at fault",
     [report("across-node-missing", blamed=[1]), GONE, report("across-node-missing")], False,
     ["b"]),
    ("a node that did not come but answers was cut off",
     [report("across-node-missing", blamed=[1]), report("across-master-unreachable"),
      report("across-node-missing", blamed=[1])], False, []),
    ("a port is nobody's fault", [report("across-port-taken", blamed=[0])] * 3, False, []),
    ("nobody answers", [GONE, GONE, GONE], False, ["a", "b", "c"]),
    ("an answer is no report", [report(), {"x": 1}, report()], False, ["b"]),
    ("blame of a node that does not exist",
     [report("across-rank-died", blamed=[7, -1, "x", None])] * 3, False, []),
)  # fmt: skip
def test_whom_the_answers_of_a_group_name(
    answers: list[dict[str, Any] | NodeFailure], *, ok: bool, named: list[str]
) -> None:
    found = end_of(GROUP, runs(*answers))
    assert (found.ok, sorted(found.named)) == (ok, named)


@pytest.mark.parametrize("code", ["across-framework", "across-mismatch"])
def test_nodes_that_do_not_belong_together_are_an_error(code: str) -> None:
    with pytest.raises(AcrossError, match="m"):
        end_of(GROUP, runs(*[report(code)] * 3))


def test_what_a_node_runs() -> None:
    order = AcrossOrder(
        image="i", master="{node}-ib", interface="ib0", sizes="1M", join_s=30, timeout_s=60
    )
    work = order.work(1, GROUP, 21000, "r")
    words = list(work.command[2:])
    assert words[:6] == ["across", "--rank", "1", "--world", "3", "--run"]
    assert words[words.index("--master") + 1] == "a-ib:21000"
    assert words[-2:] == ["--sizes", "1M"]
    assert work.environment == {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0"}
    assert (work.network, work.timeout_s) == ("host", 150)
    assert "provision" not in work.ways
    six = AcrossOrder(image="i", master="fe80::1").work(0, GROUP, 5, "r")
    assert "[fe80::1]:5" in six.command


def ended(nodes: tuple[str, ...], gbs: float | None, *, ok: bool = True) -> GroupRun:
    rows = [] if gbs is None else [{"operation": "all-reduce", "bytes": 1, "gbs": [gbs] * 3}]
    return GroupRun(nodes, ok, None, "m", {}, report(measured={"largest": rows}))


def test_readings_are_of_pairs_that_work_the_slowest_first() -> None:
    pairs = [("a", "b", 10.0), ("c", "d", 4.0), ("b", "c", 10.0), ("d", "a", 5.0)]
    rounds = [RoundRun((ended(("a", "b", "c", "d"), 1.0),), 1.0)]
    rounds += [RoundRun((ended((one, other), gbs),), 1.0) for one, other, gbs in pairs]
    found = readings(rounds)
    assert [(row["node"], row["gbs"]) for row in found] == [
        ("d", 5.0),
        ("a", 10.0),
        ("b", 10.0),
        ("c", 10.0),
    ]
    assert found[0]["share"] == 0.5
    assert readings(rounds[:2]) == []


@pytest.mark.parametrize("count", [4, 5, 8])
def test_each_node_has_its_neighbours(count: int) -> None:
    nodes = [str(number) for number in range(count)]
    rounds = neighbours(nodes)
    for pairs in rounds:
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))
    assert {node for pairs in rounds for pair in pairs for node in pair} == set(nodes)


@pytest.mark.parametrize(
    ("status", "backend", "report_", "code"),
    [
        ("pass", "nccl", {}, 0),
        ("pass", "gloo", {}, 7),
        ("fail", "nccl", {}, 1),
        ("fail", None, None, 5),
    ],
)
def test_the_exit_code(
    status: str, backend: str | None, report_: dict[str, Any] | None, code: int
) -> None:
    run = GroupRun(GROUP, ok=False, code=None, message="", named={}, report=report_)
    assert exit_code(status, backend, [RoundRun((run,), 1.0)]) == code


def test_the_text_names_what_is_wrong() -> None:
    found = AcrossDiagnosis(
        {"x": "x: it is gone."},
        sick=("s",),
        links=(("a", "b"),),
        suspects=("t", "u"),
        complete=False,
        rounds=1,
    )
    rounds = [RoundRun((ended(("a", "b"), None, ok=False),), 2.0)]
    made = to_json(AcrossOrder(image="i"), found, rounds, {"r": "r: Slurm runs nothing there."})
    assert schemas.problems("fleet-verify#/properties/across", made) == []
    text = " ".join(describe_across(made).split())
    for words in (
        "x: it is gone.",
        "r: Slurm runs nothing there.",
        "s: fails with nodes that work",
        "a - b: both work with other nodes",
        "among t, u: these runs do not tell which",
        "there may be more",
    ):
        assert words in text
    assert made["exit_code"] == 1
    assert round_line(rounds[0]) == "1 group of 2: 1 failed: m (2.0 s)"
    assert "fewer than two nodes" in describe_across(None)


def test_one_node_cannot_be_tested_across() -> None:
    calls = [NodeCall("a", ("true",)), NodeCall("b", refused=GONE)]
    with pytest.raises(AcrossError, match="of 2 only 1 can be asked"):
        verify_across(calls, AcrossOrder(image="i"), lambda _: None)
