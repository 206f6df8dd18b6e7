"""Prometheus text for the textfile collector of node_exporter: point `--prometheus` at a *.prom
file in its folder.

Units are Prometheus's base units: seconds, bytes, bytes per second, ratios. Every series has the
framework and the image as labels, so that the files of several images can be in one folder: the
collector refuses the same series from two files.
"""

from __future__ import annotations

import calendar
import re
import time
from typing import Dict, Iterator, List, Mapping, Tuple

from verify.model.report import MetricRow, Report, ReportComparison
from verify.reports.formatting import clean, flat, proven

STATUSES = ("pass", "fail", "skip", "error")
VERDICTS = ("fit", "unfit", "no-verdict")
_OWN = ("check", "name", "unit", "framework", "image")
_FACTOR = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BASE = {
    "B": "bytes",
    "byte": "bytes",
    "bytes": "bytes",
    "flop": "flops",
    "s": "seconds",
    "Hz": "hertz",
    "W": "watts",
}
_PARTS = {"ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}

Labels = Mapping[str, str]
Samples = List[Tuple[Labels, float]]
Family = Tuple[str, str, Samples]


def render(report: Report) -> str:
    """The text, one family after the other, without duplicate series."""
    environment = report["environment"]
    both = {"framework": environment["framework"]["name"], "image": environment["image"] or ""}
    lines: List[str] = []
    for name, told, samples in _families(report):
        unique: Dict[str, float] = {}
        for labels, value in samples:
            unique.setdefault(series(name, {**both, **labels}), value)
        if unique:
            full = "gpu_provision_" + name
            lines += ["# HELP {} {}".format(full, told), "# TYPE {} gauge".format(full)]
            lines += ["{} {}".format(one, _value(value)) for one, value in unique.items()]
    return "\n".join(lines) + "\n"


def _families(report: Report) -> Iterator[Family]:
    checks = report["checks"]
    yield "report_timestamp_seconds", "Time when the checks started.", _started(report)
    yield (
        "verdict",
        "1 for the verdict of the run.",
        _states(report["verdict"], "verdict", VERDICTS),
    )
    yield "info", "Where the checks ran.", [(_info(report), 1)]
    statuses: Samples = [
        ({"check": check["id"], **labels}, value)
        for check in checks
        for labels, value in _states(check["status"], "status", STATUSES)
    ]
    yield "check_status", "1 for the status of the check.", statuses
    told = "1 if the check passed, and not only on the CPU."
    yield "check_proven", told, [({"check": check["id"]}, int(proven(check))) for check in checks]
    seconds: Samples = [({"check": check["id"]}, check["seconds"]) for check in checks]
    yield "check_seconds", "How long the check took.", seconds
    yield from _metric_families(report)
    if "comparison" in report:
        told = "Checks and metrics that are worse than in the baseline."
        yield "regressions", told, _regressions(report["comparison"])


def _metric_families(report: Report) -> Iterator[Family]:
    rows = [
        (_metric_labels(check["id"], metric), metric, base_unit(metric["unit"])[1])
        for check in report["checks"]
        for metric in check["measured"].get("metrics", [])
    ]
    told = "The median of the measured values, in the base unit given by the label."
    yield "metric", told, [(labels, m["value"] * factor) for labels, m, factor in rows]
    told = "The interquartile range of the repeats, as a share of the median."
    yield "metric_spread_ratio", told, [(labels, m["spread"]) for labels, m, _ in rows]
    with_spec = [row for row in rows if row[1]["spec"] is not None]
    told = "The GPU's specified value of the metric, in the same unit."
    yield "metric_specification", told, [(ls, m["spec"] * factor) for ls, m, factor in with_spec]


def _regressions(found: ReportComparison) -> Samples:
    worse = {"checks": len(found["checks"]["worse"]), "metrics": len(found["metrics"]["worse"])}
    return [({"kind": kind}, count) for kind, count in worse.items()]


def _states(found: str, label: str, known: Tuple[str, ...]) -> Samples:
    return [({label: one}, int(one == found)) for one in known]


def _started(report: Report) -> Samples:
    try:
        when = time.strptime(report["environment"]["started"], "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:  # digits in the right places, but not a date
        return []
    return [({}, calendar.timegm(when))]


def _info(report: Report) -> Dict[str, str]:
    facts = flat(report["environment"])
    names = ("framework.version", "python", "driver", "cuda_driver", "kernel", "arch", "container")
    rows = {name.replace(".", "_"): facts.get(name, "") for name in names}
    gpus = report["environment"]["gpus"]
    return {
        **rows,
        "level": report["level"],
        "gpu": ",".join(sorted({g["name"] or "" for g in gpus})),
    }


def _metric_labels(check: str, metric: MetricRow) -> Dict[str, str]:
    """The metric's own labels, under names that Prometheus allows and this module does not use."""
    labels = {"check": check, "name": metric["name"], "unit": base_unit(metric["unit"])[0]}
    for name in sorted(metric["labels"]):
        key = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        if key in _OWN or key.startswith("__") or not re.match(r"[a-zA-Z_]", key):
            key = "label_" + key.lstrip("_")
        while key in labels:
            key += "_"
        labels[key] = metric["labels"][name]
    return labels


def base_unit(unit: str) -> Tuple[str, float]:
    """The base unit and the factor to it: ("bytes_per_second", 1e9) for GB/s."""
    over, slash, under = unit.partition("/")
    name, factor = _base(over)
    if not slash:
        return name, factor
    below = {"s": "second"}.get(under, re.sub(r"\W+", "_", under))
    return "{}_per_{}".format(name, below), factor


def _base(unit: str) -> Tuple[str, float]:
    if unit in ("%", "percent"):
        return "ratio", 0.01
    if unit in _PARTS:
        return "seconds", _PARTS[unit]
    for base, name in _BASE.items():
        if unit in (base, base.upper()):
            return name, 1.0
        if unit[:1] in _FACTOR and unit[1:] in (base, base.upper()):
            return name, _FACTOR[unit[0]]
    return re.sub(r"\W+", "_", unit).strip("_") or "none", 1.0


def series(name: str, labels: Labels) -> str:
    """A series with its labels, in the exposition format."""
    inner = ",".join('{}="{}"'.format(key, _escaped(labels[key])) for key in sorted(labels))
    return "gpu_provision_{}{{{}}}".format(name, inner)


def _escaped(text: str) -> str:
    return clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _value(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
