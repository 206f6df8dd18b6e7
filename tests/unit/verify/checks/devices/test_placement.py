"""The judge of where work really runs."""

from __future__ import annotations

from dataclasses import replace

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import holds
from verify.checks.devices.placement import Elsewhere, PlacedOp, judge_placement
from verify.model.check import Status

PASS, FAIL = Status.PASS, Status.FAIL
WORDS = Elsewhere("no kernel", "unset the settings", "it ran earlier")
PLACED = PlacedOp("GPU:0", "GPU:0", {"MatMul": "GPU:0"}, "GPU:0", "GPU:0", 1 << 20, 1 << 20)


@cases(
    "placed status word",
    ("all on the GPU passes", PLACED, PASS, "eagerly and in a graph"),
    ("eager work elsewhere fails", replace(PLACED, eager="CPU:0"), FAIL, "ran on CPU:0"),
    ("a graph's work elsewhere fails", replace(PLACED, graph={"_MklMatMul": "CPU:0"}), FAIL,
     "_MklMatMul"),
    ("an empty graph fails", replace(PLACED, graph={}), FAIL, "no matrix product"),
    ("models that would train elsewhere fail", replace(PLACED, unasked="CPU:0"), FAIL,
     "runs on CPU:0"),
    ("an empty GPU memory fails", replace(PLACED, held_bytes=0), FAIL, "another device's memory"),
    ("unknown memory passes", replace(PLACED, held_bytes=None), PASS, ""),
)  # fmt: skip
def test_placement(placed: PlacedOp, status: Status, word: str) -> None:
    holds(judge_placement(placed, "cuda", WORDS), status, word)
