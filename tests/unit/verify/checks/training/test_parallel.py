"""Parallel training: what the judge says of losses and weights."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from verify.checks.collectives.ranks import Team, World
from verify.checks.training import parallel, steps
from verify.model.check import Outcome, Status
from verify.running.children import Ending

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP
BEFORE = {"0.weight": [1.0, 2.0], "2.weight": [3.0]}
AFTER = {"0.weight": [1.5, 2.5], "2.weight": [2.0]}
REFERENCE = {"before": BEFORE, "losses": [4.0, 2.0], "weights": AFTER}
KILLED = Ending(signal="SIGKILL", seconds=1.0)


def holds(outcome: Outcome, status: Status, word: str = "") -> None:
    """The status, the telling word somewhere, and a cause and a fix on every failure."""
    assert outcome.status is status
    assert word in " | ".join(filter(None, (outcome.message, outcome.cause, outcome.fix)))
    if status is not SKIP:
        assert (outcome.cause is not None, outcome.fix is not None) == ((status is FAIL),) * 2


def run(weights: dict[str, list[float]] | None = None, **more: Any) -> dict[str, Any]:
    return {"losses": [4.0, 2.0], "weights": AFTER if weights is None else weights, **more}


def off(name: str, value: float) -> dict[str, list[float]]:
    return {**AFTER, name: [value, *AFTER[name][1:]]}


@cases(
    "runs status word",
    ("equal", [run(), run()], PASS, "2 steps as on one device, to the last bit"),
    ("rounding", [run(off("2.weight", 2 + 1e-13))], PASS, "within 1.0e-13"),
    ("too far", [run(off("2.weight", 2 + 1e-8))], FAIL, "2.weight is off by"),
    ("the losses' mean counts", [run(losses=[3.0, 1.0]), run(losses=[5.0, 3.0])], PASS, ""),
    ("another loss", [run(losses=[4.0, 2.1])], FAIL, "losses differ"),
    ("a step is missing", [run(losses=[4.0])], FAIL, "missing"),
    ("the ranks drifted apart", [run(), run(off("0.weight", 9.0))], FAIL,
     "the ranks' weights differ by 7.5e+00 in 0.weight"),
    ("all agree on another", [run(off("0.weight", 9.0))] * 2, FAIL, "combined wrongly"),
    ("a part got no gradient", [run({**AFTER, "0.weight": [1.0, 2.0]})], FAIL,
     "0.weight never changed"),
    ("not a number", [run(off("2.weight", math.nan))], FAIL, "not finite"),
    ("an infinite loss", [run(losses=[4.0, math.inf])], FAIL, "not finite"),
    ("a weight is missing", [run({"0.weight": [1.5, 2.5]})], FAIL, "missing"),
    ("a shard is missing", [run(), run({**AFTER, "0.weight": [1.5]})], FAIL, "missing"),
    ("no weights", [run({})], FAIL, "missing"),
)  # fmt: skip
def test_steps(runs: list[dict[str, Any]], status: Status, word: str) -> None:
    outcome = steps.judge("it", REFERENCE, runs, {"device": "cpu"}, "somewhere")
    holds(outcome, status, word)
    assert outcome.message.startswith("it: ")


@given(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["0.weight", "2.weight"]),
    st.integers(0, 2),
)
def test_only_what_is_within_the_tolerance_passes(value: float, name: str, rank: int) -> None:
    runs = [run() for _ in range(3)]
    runs[rank] = run(off(name, value))
    passed = steps.judge("it", REFERENCE, runs, {}, "somewhere").status is PASS
    assert passed == (abs(value - AFTER[name][0]) <= steps.TOLERANCE)


def world(*values: dict[str, Any] | Ending, backend: str = "nccl") -> World:
    endings = [v if isinstance(v, Ending) else Ending(value=v, returned=True) for v in values]
    return World(Team(backend, len(endings)), tuple(endings))


def first(**more: Any) -> dict[str, Any]:
    return run(reference=REFERENCE, **more)


def stage(name: str, losses: list[float], **more: Any) -> dict[str, Any]:
    return {"weights": {name: AFTER[name]}, "losses": losses, "whole": False, **more}


LACKING = "this torch has it on GPUs only (reduce_scatter is not supported)"


@cases(
    "seen status word",
    ("two GPUs", world(first(), run()), PASS, "2 GPUs over NCCL"),
    ("one GPU says so", world(first()), PASS, "nothing to transfer between GPUs"),
    ("gloo says so", world(first(), run(), backend="gloo"), PASS, "NCCL not tested"),
    ("a rank is lost", world(first(), KILLED), FAIL, "rank 1 of 2 killed"),
    ("split in two", world(first(held=2, total=3), run(held=1, total=3)), PASS, ""),
    ("filled up to even", world(first(held=2, total=3), run(held=2, total=3)), PASS, ""),
    ("whole", world(first(held=3, total=3), run(held=3, total=3)), FAIL, "nothing was split"),
    ("a shard is lost", world(first(held=1, total=3), run(held=1, total=3)), FAIL, "is on no rank"),
    ("one rank holds all", world(first(held=3, total=3)), PASS, ""),
    ("not on CPUs", world(first(lacking=LACKING), run(lacking=LACKING)), SKIP, "GPUs only"),
    ("two stages are one model",
     world(stage("0.weight", [], reference=REFERENCE), stage("2.weight", [4.0, 2.0])), PASS,
     "2 steps"),
    ("a stage is missing",
     world(stage("0.weight", [], reference=REFERENCE), stage("0.weight", [4.0, 2.0])), FAIL,
     "missing"),
)  # fmt: skip
def test_ranks(seen: World, status: Status, word: str) -> None:
    outcome = parallel.judge_ranks("it", seen)
    holds(outcome, status, word)
    assert outcome.measured["device"] == seen.team.kind


def test_a_rank_has_its_own_rows() -> None:
    batch = (list(range(24)), list(range(24)))
    shares = [steps.share(batch, index) for index in range(3)]
    assert [row for rows, _ in shares for row in rows] == batch[0]
    assert all(len(rows) == steps.BATCH == len(targets) for rows, targets in shares)
