"""Render an inspection as text: first the verdict and what to do, then the contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from images.inspect.image import Inspection
from images.text.printable import printable
from provision.lock.labels import targets_of
from provision.model.plan import TITLES, Gpu
from provision.output.text import row, table
from provision.verification.inspection.outcome import gpu_words, in_units
from provision.verification.inspection.packages import cut_label, plan_label

_MOST_SHARES = 6
_MOST_LIBRARIES = 8
_WORDS = {
    "fit": "fit",
    "unfit": "unfit",
    "no-verdict": "no verdict: nothing failed, but not everything could be checked",
}
_SHORT = {
    "inspect.needs": "needs",
    "inspect.glibc": "versions",
    "inspect.symbols": "symbols",
    "inspect.architectures": "code",
    "inspect.packages": "packages",
    "inspect.sizes": "size",
}


def describe_inspection(report: Mapping[str, Any], found: Inspection, gpus: Sequence[Gpu]) -> str:
    """The page: at most 80 columns."""
    lines = [*row("verdict", _verdict(report, gpus)), ""]
    for check in report["checks"]:
        if check["status"] == "fail":
            lines += _trouble(check)
    lines += [*row(found.contents.kind, printable(found.contents.shown)), *_about(found)]
    for check in report["checks"]:
        if check["status"] != "fail":
            lines += row(_SHORT[check["id"]], _said(check))
            if check["status"] == "skip" and check["fix"]:
                lines += row("", f"fix: {printable(check['fix'])}")
    lines += _shares(found)
    lines += _libraries(found, gpus)
    return "\n".join(lines)


def _verdict(report: Mapping[str, Any], gpus: Sequence[Gpu]) -> str:
    where = f" for {gpu_words(gpus[0])}" if gpus else ""
    if len(gpus) > 1:
        where = f" for all of: {', '.join(gpu_words(gpu) for gpu in gpus)}"
    word, colon, rest = _WORDS[report["verdict"]].partition(":")
    return f"{word}{where}{colon}{rest}"


def _trouble(check: Mapping[str, Any]) -> list[str]:
    return [
        *row("FAIL", _said(check)),
        *row("", f"cause: {printable(check['cause'])}"),
        *row("", f"fix: {printable(check['fix'])}"),
        "",
    ]


def _said(check: Mapping[str, Any]) -> str:
    told = printable(check["message"])
    return f"not checked: {told}" if check["status"] == "skip" else told


def _about(found: Inspection) -> list[str]:
    package = found.framework_package
    plan = plan_label(found)
    parts = [
        f"Python {found.python}" if found.python else "",
        f"{TITLES[_framework(found)]} {package.version}" if package else "",
        f"CUDA {found.packages.cuda}" if found.packages.cuda else "",
        found.machine or "",
    ]
    lines = row("contains", ", ".join(filter(None, parts)) or "nothing known")
    if claims := found.contents.claims:
        lines.append(f"digest   {found.contents.digest}")  # 71 letters, and 80 columns
        lines += row("", f"of the file; it says that it is image {claims[0]}, which proves nothing")
    if plan is not None:
        lines += row("built as", f"{plan.framework} {plan.framework_version}, {plan.wheel_tag}")
    if cut := cut_label(found):
        lines += row("cut", f"code for {' and '.join(targets_of(cut))} alone; the rest was removed")
    return lines


def _framework(found: Inspection) -> Any:  # noqa: ANN401  a key of TITLES
    return found.framework


def _shares(found: Inspection) -> list[str]:
    if len(found.shares) < 2:
        return []
    shown = found.shares[:_MOST_SHARES]
    rows = [
        ("bytes", "files", "of"),
        *((in_units(s.size), f"{s.files:,}", printable(s.name, limit=44)) for s in shown),
    ]
    rest = found.shares[_MOST_SHARES:]
    if rest:
        size, files = sum(s.size for s in rest), sum(s.files for s in rest)
        rows.append((in_units(size), f"{files:,}", f"{len(rest)} more"))
    return ["", *table(rows)]


def _libraries(found: Inspection, gpus: Sequence[Gpu]) -> list[str]:
    """What each library with device code runs on the given GPUs, the larger first."""
    if not found.coded or not gpus:
        return []
    counts = {code.name: code.fatbins for code in found.coded}
    names = sorted(counts, key=lambda name: (name not in found.must_run, -counts[name]))
    columns = [
        {row.library: row.runs for row in found.coverage(gpu.compute_capability)}
        for gpu in gpus[:3]
        if gpu.compute_capability is not None
    ]
    rows = [
        (
            "library",
            *(f"on {'.'.join(map(str, gpu.compute_capability or ()))}" for gpu in gpus[:3]),
        ),
        *(
            (printable(name.rpartition("/")[2], limit=34), *(column[name] for column in columns))
            for name in names[:_MOST_LIBRARIES]
        ),
    ]
    more = len(names) - _MOST_LIBRARIES
    return [
        "",
        *table(rows),
        *([f"  and {more} more, in the report (--report FILE)"] if more > 0 else []),
    ]
