"""Training: what the judges say of losses, of drifting weights and of mixed precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.unit.verify.checks.numerics.test_numerics import sound
from tests.unit.verify.checks.test_judges import FAIL, PASS, holds
from verify.checks.training.amp import FALL, LAG, ROUNDED, MixedRun, judge_amp
from verify.checks.training.loss import FACTOR, TrainingSteps, judge_loss, judge_same
from verify.model.check import Outcome, Status

NAN, INF = math.nan, math.inf


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9))
def test_a_loss_must_fall_by_the_factor(losses: list[float]) -> None:
    outcome = judge_loss(losses, "cuda")
    assert outcome.status is (PASS if losses[-1] * FACTOR <= losses[0] else FAIL)
    sound(outcome)


@given(st.lists(st.floats(), min_size=1, max_size=9), st.sampled_from([NAN, INF]), st.data())
def test_one_loss_that_is_no_number_is_found(
    losses: list[float], strange: float, data: st.DataObject
) -> None:
    losses.insert(data.draw(st.integers(0, len(losses))), strange)
    outcome = judge_loss(losses, "cpu")
    holds(outcome, FAIL, "at step")
    sound(outcome)


def steps(**changes: Any) -> TrainingSteps:
    plain = TrainingSteps((2.0, 1.0), (2.0, 1.0), drift=6e-7, way=0.1, terms=8192)
    return replace(plain, **changes)


@cases(
    "found status word",
    ("only by rounding", steps(), PASS, "2 fp32 steps match float64"),
    ("beside the CPU's", steps(cpu_drift=5e-7), PASS, "(CPU: 5e-07)"),
    ("as far as TF32 takes it", steps(drift=1.8e-4), FAIL, "TF32 was used"),
    ("somewhere else", steps(drift=0.4), FAIL, "gradients or the optimiser"),
    ("weights are no numbers", steps(drift=NAN), FAIL, "NaN or infinity"),
    ("nor are the reference's", steps(way=NAN, drift=NAN), FAIL, "NaN"),
    ("a loss is no number", steps(losses=(2.0, NAN)), FAIL, "NaN or infinity"),
    ("another loss", steps(losses=(2.0, 1.1)), FAIL, "losses are 0.1"),
    ("a step is missing", steps(losses=(2.0,)), FAIL, "NaN or infinity"),
    ("nothing moved", steps(way=0.0), FAIL, "did not change any weight"),
    ("no step", steps(losses=(), reference=()), FAIL, "did not change any weight"),
)
def test_the_same_steps(found: TrainingSteps, status: Status, word: str) -> None:
    outcome = judge_same(found, "cuda")
    holds(outcome, status, word)
    sound(outcome)


def test_the_same_steps_on_the_cpu_name_no_tf32() -> None:
    outcome = judge_same(steps(drift=1.8e-4), "cpu")
    holds(outcome, FAIL, "numerics.convolution")
    assert "TF32" not in (outcome.cause or "")
    assert "on the CPU: no GPU visible" in judge_same(steps(), "cpu").message


@given(st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_both_weights_and_losses_must_be_near(drift: float, gap: float) -> None:
    found = steps(drift=drift, losses=(2.0, 1.0 + gap))
    near = drift <= found.allowed and found.loss_gap <= found.allowed
    assert judge_same(found, "cuda").status is (PASS if near else FAIL)


PLAIN = MixedRun("fp32", (1.0, 0.1, 0.01, 0.003), "fp32", seconds=(0.2,) * 5, peak_bytes=1000)
BF16 = replace(PLAIN, dtype="bf16", computed_in="bf16", seconds=(0.1,) * 5, peak_bytes=600)
FP16 = replace(BF16, dtype="fp16", computed_in="fp16", skipped=(0, 1), overflows=True)
SLOW = (1.0, 0.5, 0.1, 0.01)
LONG = replace(PLAIN, losses=(1.74, 6.7e-7))  # JAX on a CPU, level full


@cases(
    "runs status word",
    ("as it should be", [PLAIN, BF16, FP16], PASS, "bf16 (2 times as fast"),
    ("skips are told", [PLAIN, FP16], PASS, "2 steps skipped to find the scale"),
    ("memory saved is told", [PLAIN, BF16], PASS, "40% less memory"),
    ("no autocast", [PLAIN, replace(BF16, computed_in="fp32")], FAIL, "computed in fp32"),
    ("a late skip", [PLAIN, replace(FP16, skipped=(0, 3))], FAIL, "skipped step 3"),
    ("no skip at all", [PLAIN, replace(FP16, skipped=())], FAIL, "does not see infinite"),
    ("a NaN weight", [PLAIN, replace(FP16, finite=False)], FAIL, "overflow was not"),
    ("a loss of inf", [PLAIN, replace(BF16, losses=(1.0, INF))], FAIL, "does not overflow"),
    ("no fall", [PLAIN, replace(BF16, losses=(1.0, 0.9))], FAIL, "not down 10-fold"),
    ("behind fp32", [PLAIN, replace(BF16, losses=SLOW)], FAIL, "0.003 in fp32"),
    ("at bf16's last bits", [LONG, replace(BF16, losses=(1.74, 1.1e-5))], PASS, "like fp32"),
    ("above them", [LONG, replace(BF16, losses=(1.74, 2e-4))], FAIL, "6.7e-07 in fp32"),
    ("no step", [PLAIN, replace(BF16, losses=())], FAIL, "nan to nan"),
    ("fp32 is wrong", [replace(PLAIN, losses=(1.0, 0.9)), BF16], FAIL, "fp32: the loss"),
    ("nothing mixed", [PLAIN], FAIL, "no run in mixed precision"),
    ("nothing to put beside", [BF16], FAIL, "no run in mixed precision"),
)
def test_mixed_precision(runs: Sequence[MixedRun], status: Status, word: str) -> None:
    outcome = judge_amp(runs, "cuda")
    holds(outcome, status, word)
    sound(outcome)


def metrics_of(outcome: Outcome) -> dict[tuple[str, str], float]:
    rows = outcome.measured.get("metrics", [])
    return {(row["name"], row["labels"]["dtype"]): row["value"] for row in rows}


def test_gains_on_a_gpu_are_metrics() -> None:
    found = metrics_of(judge_amp([PLAIN, BF16, FP16], "cuda"))
    assert found == {
        ("amp_speedup", "bf16"): 2.0,
        ("amp_memory_saved", "bf16"): 0.4,
        ("amp_speedup", "fp16"): 2.0,
        ("amp_memory_saved", "fp16"): 0.4,
    }


def test_gains_on_a_cpu_are_not() -> None:
    outcome = judge_amp([PLAIN, BF16], "cpu", {"fp16": "an old torch"})
    holds(outcome, PASS, "fp16 not tried: an old torch")
    assert not metrics_of(outcome)
    assert outcome.measured["device"] == "cpu"
    assert len(outcome.measured["tables"][0]["rows"]) == 2


@given(st.floats(1e-9, 1), st.floats(1e-9, 1))
def test_a_last_loss_must_be_low_and_near_that_of_fp32(plain: float, mixed: float) -> None:
    runs = [replace(run, losses=(1.0, last)) for run, last in ((PLAIN, plain), (BF16, mixed))]
    fell = plain * FALL <= 1 and mixed * FALL <= 1
    good = fell and mixed <= max(LAG * plain, ROUNDED)
    assert judge_amp(runs, "cuda").status is (PASS if good else FAIL)
