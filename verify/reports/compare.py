"""Finds what got worse between two reports, allowing for measurement noise.

A metric is worse when it moved in its bad direction by more than its *allowance*. That is the
larger of a tolerance (for changes between runs: clocks, heat, neighbours) and of what its own
scatter explains:

    Z * sqrt(se(baseline)^2 + se(current)^2),  se = 1.2533 * sigma / sqrt(repeats)

`se` is the standard error of a median of normal samples (sqrt(pi / 2) = 1.2533), relative to the
median. `sigma` comes from the spread in the report: `measures.spread` takes the samples a quarter
from either end, and for normal samples Blom's approximation of order statistics gives their average
distance in sigmas (1.35 for many samples, 0.59 for four).

With Z = 3, if sigma is well known, an unchanged metric is called worse through scatter alone once
in 700 comparisons. In simulations without tolerance it is once in 200 or less from seven repeats
on, once in 100 for three or five, and once in 35 for four, whose spread is the gap between two
samples. A number that was measured once has no spread of its own; it is assumed to scatter like the
other one.

Changes are relative to the larger of the two numbers, so that comparing B with A mirrors A with B.
"""

from __future__ import annotations

import math
import sys
from statistics import NormalDist
from typing import Dict, List, Tuple

from verify.model.report import (
    ChangeRow,
    Environment,
    MetricKey,
    MetricRow,
    MovedCheck,
    MovedChecks,
    MovedMetric,
    MovedMetrics,
    Report,
    ReportComparison,
    RunRow,
)
from verify.reports.formatting import flat, gpu_names, metrics_of, state

TOLERANCE = 0.05
Z = 3.0
MEDIAN_ERROR = math.sqrt(math.pi / 2)

# A pass only on the CPU proves less than a pass on a GPU, and more than a skip.
_RANKS = {"pass": 0, "pass-on-cpu": 1, "skip": 2, "fail": 3, "error": 3}
_VERDICTS = ("fit", "no-verdict", "unfit")
_NOT_TOLD = ("started", "gpus", "driver_error")  # always differs; shown by name; only text

Key = Tuple[str, str, Tuple[Tuple[str, str], ...], int]


def compare(baseline: Report, current: Report, tolerance: float = TOLERANCE) -> ReportComparison:
    """The comparison as `report.schema.json` describes it."""
    checks = _checks(baseline, current)
    metrics = _metrics(baseline, current, tolerance)
    verdict = _verdict(baseline["verdict"], current["verdict"])
    return {
        "schema": 1,
        "worse": bool(verdict == "worse" or checks["worse"] or metrics["worse"]),
        "verdict": verdict,
        "tolerance": tolerance,
        "baseline": _run(baseline),
        "current": _run(current),
        "unlike": _unlike(baseline, current),
        "environment": _environment(baseline["environment"], current["environment"]),
        "checks": checks,
        "metrics": metrics,
    }


def _run(report: Report) -> RunRow:
    environment = report["environment"]
    return {
        "started": environment["started"],
        "image": environment["image"],
        "verdict": report["verdict"],
        "level": report["level"],
    }


def _verdict(before: str, after: str) -> str:
    step = _VERDICTS.index(after) - _VERDICTS.index(before)
    return "worse" if step > 0 else "better" if step < 0 else "same"


def _unlike(baseline: Report, current: Report) -> List[str]:
    """Why the numbers of the two runs are hard to compare."""
    pairs = [("level", baseline["level"], current["level"])]
    for name, read in (
        ("GPUs", gpu_names),
        ("MIG", lambda env: "on" if any(gpu["mig"] for gpu in env["gpus"]) else "off"),
        ("framework", lambda env: env["framework"]["name"]),
        ("architecture", lambda env: env["arch"]),
    ):
        pairs.append((name, read(baseline["environment"]), read(current["environment"])))
    return ["{}: {} against {}".format(*pair) for pair in pairs if pair[1] != pair[2]]


def _environment(before: Environment, after: Environment) -> List[ChangeRow]:
    """Changes around or in the image that may explain the others."""
    old, new = (
        {"gpus": gpu_names(env), **flat({k: v for k, v in env.items() if k not in _NOT_TOLD})}
        for env in (before, after)
    )
    return [
        {"name": name, "baseline": old.get(name), "current": new.get(name)}
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _checks(baseline: Report, current: Report) -> MovedChecks:
    old, new = (
        {check["id"]: check for check in report["checks"]} for report in (baseline, current)
    )
    worse: List[MovedCheck] = []
    better: List[MovedCheck] = []
    changed: List[MovedCheck] = []
    for name in old:
        if name in new and state(old[name]) != state(new[name]):
            before, after = state(old[name]), state(new[name])
            step = _RANKS[after] - _RANKS[before]
            rows = worse if step > 0 else better if step < 0 else changed
            said = new[name]["message"]
            rows.append({"id": name, "baseline": before, "current": after, "message": said})
    return {
        "worse": worse,
        "better": better,
        "changed": changed,
        "missing": [name for name in old if name not in new],
        "new": [name for name in new if name not in old],
    }


def _metrics(baseline: Report, current: Report, tolerance: float) -> MovedMetrics:
    old, new = keyed(baseline), keyed(current)
    worse: List[MovedMetric] = []
    better: List[MovedMetric] = []
    alike = [key for key in old if key in new and _same_measure(old[key], new[key])]
    for key in alike:
        row = _moved(key, old[key], new[key], tolerance)
        if abs(row["change"]) > row["allowance"]:
            rose = row["change"] > 0
            (better if rose is (row["better"] == "higher") else worse).append(row)
    for moved in (worse, better):
        moved.sort(key=lambda row: -abs(row["change"]))
    return {
        "compared": len(alike),
        "worse": worse,
        "better": better,
        "missing": [_name(key) for key in old if key not in alike],
        "new": [_name(key) for key in new if key not in alike],
    }


def keyed(report: Report) -> Dict[Key, MetricRow]:
    """Each metric by its check, name and labels; repeated ones also by a counter."""
    found: Dict[Key, MetricRow] = {}
    for check in report["checks"]:
        for metric in metrics_of(check):
            turn, labels = 0, tuple(sorted(metric["labels"].items()))
            while (check["id"], metric["name"], labels, turn) in found:
                turn += 1
            found[check["id"], metric["name"], labels, turn] = metric
    return found


def _same_measure(old: MetricRow, new: MetricRow) -> bool:
    """Whether unit and good direction are unchanged; otherwise it is a different metric."""
    return bool(old["unit"] == new["unit"] and old["better"] == new["better"])


def _name(key: Key) -> MetricKey:
    return {"check": key[0], "name": key[1], "labels": dict(key[2])}


def _moved(key: Key, old: MetricRow, new: MetricRow, tolerance: float) -> MovedMetric:
    return {
        "check": key[0],
        "name": key[1],
        "labels": dict(key[2]),
        "unit": new["unit"],
        "better": new["better"],
        "baseline": old["value"],
        "current": new["value"],
        "change": change(old["value"], new["value"]),
        "allowance": allowance(old, new, tolerance),
    }


def change(old: float, new: float) -> float:
    """The change relative to the larger of the two: -0.2 if a fifth was lost."""
    larger = max(abs(old), abs(new))
    return new / larger - old / larger if larger else 0.0


def allowance(old: MetricRow, new: MetricRow, tolerance: float) -> float:
    """How far it may move and still count as unchanged."""
    before, after = sigma(old), sigma(new)
    if old["repeats"] == 1:
        before = after
    elif new["repeats"] == 1:
        after = before
    both = math.hypot(before / math.sqrt(old["repeats"]), after / math.sqrt(new["repeats"]))
    return max(tolerance, min(Z * MEDIAN_ERROR * both, sys.float_info.max))


def noise(metric: MetricRow) -> float:
    """How far one median may be from its true value through its own scatter, relative to it."""
    error = sigma(metric) / math.sqrt(max(1, metric["repeats"]))
    return min(Z * MEDIAN_ERROR * error, sys.float_info.max)


def sigma(metric: MetricRow) -> float:
    """The relative standard deviation of one sample; 0 without repeats."""
    repeats = int(metric["repeats"])
    if repeats < 2:
        return 0.0
    return float(metric["spread"]) / quartile_distance(repeats)


def quartile_distance(repeats: int) -> float:
    """The average distance, in sigmas, between the samples that `measures.spread` takes.

    Blom (1958): the i-th of n normal samples is at the quantile (i - 0.375) / (n + 0.25).
    """
    upper = repeats - repeats // 4
    return 2 * NormalDist().inv_cdf((upper - 0.375) / (repeats + 0.25))
