"""Formats numbers and texts for people: rounded, and safe to show on a page."""

from __future__ import annotations

import calendar
import math
import re
import time
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

from verify.model.report import (
    CheckRow,
    Environment,
    MetricKey,
    MetricRow,
    PlotRow,
    Report,
    TableRow,
)

NONE = "\u2013"
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LONGEST_LINE = 20_000
_STEPS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "\u00b5s"), (1e-9, "ns")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
}


def clean(text: str) -> str:
    """The text without terminal colours, and with U+FFFD for characters that are not allowed.

    XML 1.0 forbids most control characters, and no Unicode encoding has lone surrogates.
    """
    text = _ESCAPES.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return _UNFIT.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The text on one line, without its end if it is endless: to wrap a word of 10 MB takes
    minutes.
    """
    line = " ".join(clean(text[:_LONGEST_LINE]).split())
    return line if len(text) <= _LONGEST_LINE else line + " ..."


def shortened(text: str, limit: int) -> str:
    """The text; only its head and tail if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return "{}\n[... {} characters left out ...]\n{}".format(text[:half], left_out, text[-half:])


def number(value: float) -> str:
    """A count as it is, anything else to 3 significant digits: 12,300 or 0.00123 or 4.5e-09."""
    if isinstance(value, int):
        return "{:,}".format(value)
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e15:
        return "{:.3g}".format(value)
    rounded = float("{:.3g}".format(value))
    if rounded == int(rounded):
        return "{:,}".format(int(rounded))
    places = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return "{:.{}f}".format(rounded, places).rstrip("0")


def quantity(value: float, unit: str) -> str:
    """A number with its unit; seconds and bytes with the prefix that reads best."""
    steps = _STEPS.get(unit)
    if steps is None or not value:
        return "{} {}".format(number(value), unit)
    size, word = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    scaled = value if size == 1.0 else value / size
    return "{} {}".format(number(scaled), word)


def percent(share: float) -> str:
    """0.123 as "12.3 %"."""
    return "{} %".format(number(float("{:.3g}".format(share * 100.0))))


def labels(row: Mapping[str, str]) -> str:
    """{"dtype": "bf16", "gpu": "0"} as "dtype bf16, gpu 0"; a number of bytes as a size."""
    return ", ".join(_label(name, row[name]) for name in sorted(row))


def _label(name: str, value: str) -> str:
    if name == "bytes" and value.isdecimal() and len(value) < 16:
        return size(int(value))
    return "{} {}".format(name, value)


def size(count: float) -> str:
    """Bytes in powers of two, as is usual for message and buffer sizes: "256 MiB"."""
    for power, word in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**power:
            return "{} {}".format(number(float(count) / 2**power), word)
    return "{} B".format(number(float(count)))


def varying(metrics: Sequence[MetricRow]) -> List[str]:
    """For each metric of a chart, the labels in which it differs; the title can say the rest."""
    if len(metrics) < 2 or len({metric["name"] for metric in metrics}) > 1:
        return [named(metric) for metric in metrics]
    same = set.intersection(*(set(metric["labels"].items()) for metric in metrics))
    rest = [dict(set(metric["labels"].items()) - same) for metric in metrics]
    return [labels(row) or named(metric) for row, metric in zip(rest, metrics)]


def named(metric: Union[MetricRow, MetricKey]) -> str:
    """A metric's name with its labels: "gemm (dtype bf16, gpu 0)"."""
    said = labels(metric["labels"])
    return "{} ({})".format(metric["name"], said) if said else str(metric["name"])


def local_time(moment: str) -> str:
    """A time in UTC (2026-11-26T04:19:10Z) as the clock of the machine that renders it shows it; a
    day that does not exist, which the schema allows, as it is.
    """
    try:
        here = time.localtime(calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ")))
    except (ValueError, OverflowError, OSError):
        return moment
    return time.strftime("%Y-%m-%d %H:%M UTC%z", here).replace("UTC+0000", "UTC")


def counted(count: int, thing: str) -> str:
    """A number of things: "1 check", "2 checks"."""
    return "{} {}{}".format(count, thing, "" if count == 1 else "s")


def proven(check: CheckRow) -> bool:
    """Whether the check proved its point: a pass on the CPU proves nothing about a GPU."""
    return bool(check["status"] == "pass" and check["measured"].get("device") != "cpu")


def state(check: CheckRow) -> str:
    """The status; a pass on the CPU is distinguished from one on a GPU."""
    status = str(check["status"])
    return "pass-on-cpu" if status == "pass" and not proven(check) else status


def interruption(report: Report) -> str:
    """That a signal ended the run, in words; "" if none did."""
    name = report["environment"].get("interrupted")
    return "the run was interrupted ({})".format(name) if name else ""


def why(check: CheckRow) -> str:
    """What the check says: a line each for its message, cause, fix and what is at fault."""
    rows = (
        ("", check["message"]),
        ("cause: ", check["cause"]),
        ("fix: ", check["fix"]),
        ("at fault: ", check.get("at_fault")),
    )
    return "\n".join(head + text for head, text in rows if text)


def metrics_of(check: CheckRow) -> List[MetricRow]:
    """The numbers that the check measured."""
    found: List[MetricRow] = check["measured"].get("metrics", [])
    return found


def tables_of(check: CheckRow) -> List[TableRow]:
    """The tables that the check shows."""
    found: List[TableRow] = check["measured"].get("tables", [])
    return found


def plots_of(check: CheckRow) -> List[PlotRow]:
    """The plots that the check shows."""
    found: List[PlotRow] = check["measured"].get("plots", [])
    return found


def other_readings(check: CheckRow) -> Dict[str, Any]:
    """Readings that are not drawn, and what was expected."""
    drawn = ("metrics", "tables", "plots")
    rest = {key: value for key, value in check["measured"].items() if key not in drawn}
    return {**rest, **({"expected": check["expected"]} if check["expected"] else {})}


def troubles(report: Report) -> List[Tuple[CheckRow, List[str]]]:
    """Each distinct failure or error once, with the ids of later checks with the same one."""
    found: Dict[Tuple[Any, ...], Tuple[CheckRow, List[str]]] = {}
    for check in report["checks"]:
        if check["status"] in ("fail", "error"):
            told = (check["cause"] or check["message"], check["fix"])
            found.setdefault(told, (check, []))[1].append(check["id"])
    return [(check, ids[1:]) for check, ids in found.values()]


def flat(environment: Mapping[str, object]) -> Dict[str, str]:
    """The environment as names and texts: {"framework.name": "pytorch", "gpus.0.name": "A100"}.

    Null values are left out.
    """
    return dict(leaf for name in environment for leaf in _leaves(name, environment[name]))


def _leaves(name: str, value: Any) -> List[Tuple[str, str]]:
    if isinstance(value, Mapping):
        pairs: Any = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    elif value is None:
        return []
    else:
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        return [(name, text)]
    return [leaf for key, part in pairs for leaf in _leaves("{}.{}".format(name, key), part)]


def gpu_names(environment: Environment) -> str:
    """The GPUs with their numbers: "8 x NVIDIA H100", or "none visible"."""
    counts: Dict[str, int] = {}
    for gpu in environment["gpus"]:
        name = gpu["name"] or "unnamed GPU"
        counts[name] = counts.get(name, 0) + 1
    each = ["{} x {}".format(count, name) for name, count in counts.items()]
    return ", ".join(each) or "none visible"


def short_digest(digest: str) -> str:
    """A digest shortened as Docker does: sha256:0123456789ab."""
    kind, colon, value = digest.partition(":")
    return kind + colon + value[:12]


def framework_title(environment: Environment) -> str:
    """The framework's official name, with its version."""
    from verify.model.frameworks import FRAMEWORKS

    framework = environment["framework"]
    return "{} {}".format(
        FRAMEWORKS[framework["name"]].title, framework["version"] or "(not installed)"
    )
