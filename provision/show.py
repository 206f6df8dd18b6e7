"""Plans, builds and reports for people: at most 80 columns, the answer first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.model import Plan

WIDTH = 80
_LABEL = 12


def describe_plan(plan: Plan) -> str:
    """The plan as a screenful: what, on what, why, what to mind."""
    if plan.error is not None:
        return "\n".join(
            [
                *_row("verdict", "none"),
                *_row("because", plan.error.message),
                *_row("fix", plan.error.fix),
                *_gpu_table(plan),
                *_alternatives(plan),
            ]
        )
    lines = [
        *_row("verdict", plan.verdict),
        *_row("framework", f"PyTorch {plan.framework_version} ({plan.wheel_tag})"),
        *_row(
            "cuda",
            f"{plan.cuda}, cuDNN {plan.cudnn or 'not known'}, NCCL {plan.nccl or 'not known'}",
        ),
        *_row("driver", f"{plan.driver_have or 'not seen'}, needed {plan.driver_need}"),
        *_row(
            "image",
            f"Python {plan.python} on {plan.base.reference if plan.base else '?'}"
            + (f" ({plan.base.suite})" if plan.base and plan.base.suite else ""),
        ),
        *_row("wheels", f"{plan.index}"),
    ]
    lines += _gpu_table(plan)
    lines += [line for r in plan.reasons for line in _row("why", r.message)]
    for warning in plan.warnings:
        lines += [*_row("warning", warning.message), *_row("", f"fix: {warning.fix}")]
    return "\n".join([*lines, *_alternatives(plan)])


def describe_build(account: Mapping[str, Any]) -> str:
    """What was made, what was proven and what not, and what to type next."""
    if account["command"]:
        return str(account["command"])
    image, report = account["image"], account["verify"]
    steps = ", ".join(f"{s['name']} {s['seconds']:.1f} s" for s in account["steps"])
    lines = [
        *_row("image", image["tag"] or "not tagged, since a check failed"),
        f"digest   {image['digest']}",  # 71 letters, and 80 columns
        *_row("size", f"{image['size_bytes'] / 1e9:.2f} GB"),
        *_row("lock", f"{account['lock']['path']}" if account["lock"]["path"] else "not kept"),
        *_row("took", steps),
        *_row("verify", report["verdict"] if report else "not run (--no-verify)"),
    ]
    lines += _list("proven", account["proven"])
    lines += _list("not proven", account["not_proven"])
    if report:
        lines += _failures(report)
    lines += _list("note", account["notes"])
    lines.append("next:" if image["tag"] else "to look inside:")
    lines += _command(account["next"])
    if account["next_on_gpu_host"]:
        lines += ["on a machine with NVIDIA GPUs:", *_command(account["next_on_gpu_host"])]
    return "\n".join(lines)


def describe_report(report: Mapping[str, Any]) -> str:
    """A verification report: a line a check, failures with cause and fix, the verdict last."""
    lines = []
    for check in report["checks"]:
        words = textwrap.wrap(f"{check['id']}: {check['message']}", WIDTH - 6) or [check["id"]]
        lines += [f"{check['status']:<5} {words[0]}", *(f"      {w}" for w in words[1:])]
    return "\n".join([*lines, *_failures(report), *_row("verdict", report["verdict"])])


def _failures(report: Mapping[str, Any]) -> list[str]:
    """Checks that failed for one cause stand together; the cause and its fix are said once."""
    together: dict[tuple[str | None, str | None], list[Mapping[str, Any]]] = {}
    for check in report["checks"]:
        if check["status"] in {"fail", "error"}:
            together.setdefault((check.get("cause"), check.get("fix")), []).append(check)
    lines: list[str] = []
    for (cause, fix), checks in together.items():
        for check in checks:
            lines += _row(check["status"], f"{check['id']}: {check['message']}")
        lines += _row("cause", cause) if cause else []
        lines += _row("fix", fix) if fix else []
    return lines


def _gpu_table(plan: Plan) -> list[str]:
    rows = [
        (_shortened(g.name or "?"), g.compute_capability or "?", g.runs, "ok" if g.ok else "no")
        for g in plan.gpus
    ]
    return _table([("GPU", "capability", "runs", ""), *rows]) if rows else []


def _alternatives(plan: Plan) -> list[str]:
    lines = []
    for row in plan.alternatives:
        lines += _row(
            "works here" if plan.error else "or",
            f"--cuda {row.cuda}: PyTorch {row.framework_version} ({row.wheel_tag}), {row.why}",
        )
    return lines


def _shortened(name: str, limit: int = 44) -> str:
    """A GPU's name that leaves room for the other columns."""
    return name if len(name) <= limit else f"{name[: limit - 3]}..."


def _command(text: str) -> list[str]:
    """A command that can be pasted, over as many lines as it needs."""
    words = textwrap.wrap(
        text,
        WIDTH - 2,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(f"{line} \\" for line in words[:-1]), words[-1]]


def _list(label: str, items: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for position, item in enumerate(items):
        lines += _row(label if position == 0 else "", item)
    return lines


def _row(label: str, text: object) -> list[str]:
    paragraphs = str(text).splitlines() or [""]
    wrapped = [w for p in paragraphs for w in _wrap(p.strip())]
    return [
        f"{label if i == 0 else '':<{_LABEL}}{words}".rstrip() for i, words in enumerate(wrapped)
    ]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - _LABEL, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    table = list(rows)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
