"""The judge of where work really runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.verify.checks.test_judges import holds
from verify.checks.devices.placement import Elsewhere, PlacedOp, judge_placement
from verify.model.check import Status

PASS, FAIL = Status.PASS, Status.FAIL
WORDS = Elsewhere("no kernel", "unset the settings", "it ran earlier")
PLACED = PlacedOp("GPU:0", "GPU:0", {"MatMul": "GPU:0"}, "GPU:0", "GPU:0", 1 << 20, 1 << 20)


@pytest.mark.parametrize(
    ("placed", "status", "word"),
    [
        pytest.param(PLACED, PASS, "eagerly and in a graph", id="all on the GPU passes"),
        pytest.param(replace(PLACED, eager="CPU:0"), FAIL, "ran on CPU:0",
                     id="eager work elsewhere fails"),
        pytest.param(replace(PLACED, graph={"_MklMatMul": "CPU:0"}), FAIL, "_MklMatMul",
                     id="a graph's work elsewhere fails"),
        pytest.param(replace(PLACED, graph={}), FAIL, "no matrix product",
                     id="an empty graph fails"),
        pytest.param(replace(PLACED, unasked="CPU:0"), FAIL, "runs on CPU:0",
                     id="models that would train elsewhere fail"),
        pytest.param(replace(PLACED, held_bytes=0), FAIL, "another device's memory",
                     id="an empty GPU memory fails"),
        pytest.param(replace(PLACED, held_bytes=None), PASS, "", id="unknown memory passes"),
    ],
)  # fmt: skip
def test_placement(placed: PlacedOp, status: Status, word: str) -> None:
    holds(judge_placement(placed, "cuda", WORDS), status, word)
