"""CUDA graphs: what was captured once computes on other numbers when it is replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Sequence

from verify.backends.each_gpu import on_each
from verify.checks.numerics.accuracy import AccuracyReading, compare, judge_accuracy, tf32_override
from verify.checks.numerics.precision import Results
from verify.model.check import Check, Context, Outcome, Status
from verify.running.symptoms import explain

_ROWS, _TERMS, _COLUMNS = 128, 256, 64
_REPLAYS = 2
_SLACK = 4.0  # of a square, and of what it is multiplied by
_PARTS = ("", ", gradient by input", ", gradient by weight")


def check_graphs(context: Context) -> Outcome:
    """Capture a layer's forward and backward pass on each GPU, and replay both."""
    return on_each(context, _replay)


def _replay(_: Context, place: Any) -> Outcome:
    if not place.is_gpu:
        return Outcome(Status.SKIP, "CUDA graphs need a GPU", "no GPU is visible")
    place.backend.allow_tf32(on=False)
    found = Results(place.backend, [], {})
    doomed = AccuracyReading("replay", "fp32", _TERMS, gpu=place.gpu, slack=_SLACK)
    found.add(lambda: _readings(place, doomed), doomed)
    return judge_graphs(found.readings)


def _readings(place: Any, mine: AccuracyReading) -> List[AccuracyReading]:
    """Of each replay, against float64."""
    import torch

    readings = []
    with place.scope():
        first, *others = (_inputs(place, seed) for seed in range(_REPLAYS + 1))
        sample = tuple(place.put(one, "fp32").requires_grad_() for one in first[:2])
        graphed = torch.cuda.make_graphed_callables(_layer, sample)
        for given in others:
            sides = [place.put(one, "fp32").requires_grad_() for one in given[:2]]
            result = graphed(*sides)
            back = place.put(given[2], "fp32")
            found = (result, *torch.autograd.grad(result, sides, back))
            for part, got, true in zip(_PARTS, found, _formula(*given)):
                error, worst = compare(place.get(got), true)
                readings.append(replace(mine, what="replay" + part, error=error, worst=worst))
    return readings


def _inputs(place: Any, seed: int) -> Sequence[Any]:
    """An input, a weight and the gradient of the result, which fp32 holds."""
    host = place.backend.place("cpu")
    shapes = ((_ROWS, _TERMS), (_TERMS, _COLUMNS), (_ROWS, _COLUMNS))
    return [host.get(host.put(one, "fp32")) for one in place.backend.draw(seed, *shapes)]


def _layer(given: Any, weight: Any) -> Any:
    return (given @ weight) ** 2


def _formula(given: Any, weight: Any, back: Any) -> Sequence[Any]:
    product = given @ weight
    slope = 2 * product * back
    return product * product, slope @ weight.T, given.T @ slope


def judge_graphs(readings: Sequence[AccuracyReading]) -> Outcome:
    """Whether rounding explains what the replays gave. If not, a driver or a framework that replays
    something else is as likely as a GPU that computes wrongly.
    """
    outcome = judge_accuracy("replays of CUDA graphs", readings, override=tf32_override())
    raised = "".join(reading.raised or "" for reading in readings)
    if outcome.status is Status.PASS or explain(raised)[0]:
        return outcome
    wrong = "what was captured in a CUDA graph computes something else when it is replayed"
    fix = "look at numerics.matmul; if it passed, update the driver, or choose another build"
    cause = outcome.cause if raised else wrong
    return replace(outcome, cause=cause, fix=fix, at_fault=None)


CHECKS = (
    Check("numerics.graphs", "Replayed CUDA graphs are correct", check_graphs, "standard", 120),
)
