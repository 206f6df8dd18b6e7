"""Which node a run over several nodes names, from readings that no machine here gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from verify.across import codes, diagnosis
from verify.across.diagnosis import AcrossEnd, AcrossNode, NodeEnd
from verify.checks.collectives.ranks import Trace
from verify.running.children import Ending

NODES = tuple(AcrossNode(i, f"n{i}", 2, "nccl", "PyTorch 2.7.0") for i in range(3))


@cases(
    "cells node",
    ("two nodes get one node's numbers wrong", {(0, 1), (2, 1)}, 1),
    ("one node gets two nodes' numbers wrong", {(1, 0), (1, 2)}, 1),
    ("one node is in both, as sender and as receiver", {(0, 1), (1, 2)}, 1),
    ("a node gets its own numbers wrong", {(1, 1)}, 1),
    ("one receiver and one sender cannot be told apart", {(0, 1)}, None),
    ("nor can two that get each other's wrong", {(0, 1), (1, 0)}, None),
    ("two pairs have no node in common", {(0, 1), (2, 3)}, None),
    ("nothing is wrong", set(), None),
)
def test_the_node_that_is_in_all_that_is_wrong(
    cells: set[tuple[int, int]], node: int | None
) -> None:
    assert diagnosis.culprit(cells) == node


@given(st.integers(0, 9), st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_a_node_that_is_not_in_every_wrong_answer_is_never_a_suspect(
    node: int, cells: set[tuple[int, int]]
) -> None:
    found = diagnosis.culprit(cells)
    assert found is None or all(found in cell for cell in cells)
    assert diagnosis.culprit({(node, other) for other in range(10)}) == node


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("misc/socket.cc:12 NCCL WARN Bootstrap : no socket interface found", "nccl-no-interface"),
        ("NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes", "nccl-shared-memory"),
        ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0", "nccl-duplicate-gpu"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "nccl-cuda-error"),
        ("[enforce fail at gloo/device.cc] ifa != nullptr. Unable to find interface for: eth9",
         "gloo-no-interface"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 MiB", "gpu-out-of-memory"),
        ("ValueError: something else", "across-rank-failed"),
    ],
)  # fmt: skip
def test_an_error_of_the_node_itself_has_a_code(text: str, code: str) -> None:
    assert (codes.classify(text).code, codes.classify(text).own) == (code, True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ncclRemoteError: A call failed possibly due to a network error", "nccl-remote-error"),
        ("ncclSystemError: System call (e.g. socket, malloc) failed", "nccl-system-error"),
        ("ncclInternalError: Internal check failed.", "nccl-internal-error"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)", "nccl-timeout"),
        (
            "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1",
            "gloo-connection-closed",
        ),
        ("[.../unbound_buffer.cc:81] Timed out waiting 1800000ms for recv", "gloo-timeout"),
        ("Gloo connectFullMesh failed with [pair.cc:144] no error", "gloo-connect-failed"),
        ("DistNetworkError: The client socket has timed out after 10s", "store-unreachable"),
    ],
)
def test_an_error_of_a_connection_has_a_code_and_is_no_nodes_fault(text: str, code: str) -> None:
    assert (codes.classify(text).code, codes.classify(text).own) == (code, False)


def rows(*wrong: int, operation: str = "all-gather") -> list[dict[str, Any]]:
    right = {"dtype": "float32", "wrong": 0, "total": 8, "kind": None}
    found = [{**right, "operation": name} for name in ("all-reduce", operation)]
    if wrong:
        found[1] = {**found[1], "wrong": 1, "kind": "has other numbers", "senders": list(wrong)}
    return found


def ended(values: list[list[dict[str, Any]]], seconds: float = 0.001) -> AcrossEnd:
    times = [{"operation": "all-reduce", "bytes": 1 << 20, "seconds": [seconds] * 5}]
    endings = [
        Ending(value={"operations": value, "bandwidth": times}, returned=True) for value in values
    ]
    pairs = [
        NodeEnd(tuple(endings[2 * i : 2 * i + 2]), (Trace(), Trace()), ("NET",)) for i in range(3)
    ]
    return AcrossEnd(NODES, dict(enumerate(pairs)))


def test_a_pass_has_the_bus_bandwidth_of_all_ranks() -> None:
    report = diagnosis.judge(ended([rows()] * 6))
    assert (report["status"], report["code"], report["blamed"]) == ("pass", None, [])
    (row,) = report["measured"]["largest"]  # 2(n-1)/n of bytes by seconds, n is 6
    assert row["gbs"] == pytest.approx([(1 << 20) / 0.001 * 10 / 6 / 1e9] * 5)
    assert report["measured"]["transports"] == ["NET"]


def test_wrong_numbers_of_a_nodes_ranks_make_it_a_suspect_and_no_more() -> None:
    report = diagnosis.judge(ended([rows(2), rows(3), rows(), rows(), rows(3), rows()]))
    assert (report["code"], report["blamed"]) == ("across-wrong-result", [])
    assert report["suspects"] == [1]
    assert "node 1 (n1)" in report["cause"]


def lost(*endings: Ending, counts: tuple[int, ...] = (4,) * 6) -> dict[str, Any]:
    six = [*endings, *[Ending(timed_out=True, seconds=9.0)] * 6][:6]
    ends = {
        i: NodeEnd(
            tuple(six[2 * i : 2 * i + 2]),
            tuple(Trace(counts[j], f"step {counts[j]}") for j in (2 * i, 2 * i + 1)),
        )
        for i in range(3)
    }
    return diagnosis.judge(AcrossEnd(NODES, ends))


def test_a_hang_suspects_the_node_that_is_behind() -> None:
    report = lost(counts=(4, 4, 4, 3, 4, 4))
    assert (report["code"], report["blamed"], report["suspects"]) == ("across-hang", [], [1])


def test_a_hang_at_one_step_names_nobody() -> None:
    report = lost()
    assert (report["code"], report["blamed"], report["suspects"]) == ("across-hang", [], [])


def test_the_node_whose_rank_died_is_blamed_and_not_those_that_lost_it() -> None:
    echo = Ending(raised="RuntimeError: Connection closed by peer")
    report = lost(echo, echo, Ending(signal="SIGBUS"), echo)
    assert (report["code"], report["blamed"]) == ("across-rank-died", [1])
    assert "node 1 (n1)" in report["message"]


def test_ranks_that_only_lost_another_blame_nobody() -> None:
    report = lost(*[Ending(raised="RuntimeError: Connection closed by peer")] * 6)
    assert (report["code"], report["blamed"]) == ("gloo-connection-closed", [])
    assert report["suspects"] == []


def test_nodes_that_left_are_blamed() -> None:
    report = diagnosis.judge(AcrossEnd(NODES, lost={2: "it closed the connection"}))
    assert (report["code"], report["blamed"]) == ("across-node-lost", [2])


def test_nodes_without_gpus_beside_nodes_with_gpus_are_listed() -> None:
    report = diagnosis.mismatch([*NODES[:2], AcrossNode(2, "n2", 1, "gloo", "PyTorch 2.7.0")])
    assert report is not None
    assert report["code"] == "across-mismatch"
    assert "gloo: node 2 (n2)" in report["message"]
    assert diagnosis.mismatch(NODES) is None
