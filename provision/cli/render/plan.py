"""Render plans as text: the answer first; all details with --explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from provision.model.plan import TITLES, Blocked, Cell, GpuVerdict, Plan
from provision.output.text import row, table

_MOST_ROWS = 12
# How a verdict is written in a cell of the matrix.
_MARKS: Mapping[str, str] = {
    "direct": "D",
    "minor-version": "m",
    "forward": "f",
    "unverified": "?",
    "none": "-",
}
_LEGEND = (
    "D direct, m minor-version, f forward (with cuda-compat), ? unverified, - does not run, "
    "* the build is only likely to exist, [] chosen by the plan"
)


def describe_plan(plan: Plan, *, explain: bool = False, considered: Sequence[Cell] = ()) -> str:
    """The decisions and what each GPU runs; with `explain` every reason and its source, and the
    result for each build that was not chosen (`considered`).
    """
    lines = _refusal(plan) if plan.error else _decision(plan)
    lines += _limits(plan)
    lines += _gpu_table(plan.gpus) if not plan.blocked else _blocked_table(plan.blocked)
    if explain:
        for reason in plan.reasons:
            lines += row("why", f"{reason.message} [{reason.code}]")
            lines += row("", f"source: {reason.source}") if reason.source else []
        lines += _considered(plan, considered)
    for warning in plan.warnings:
        lines += [*row("warning", warning.message), *row("", f"fix: {warning.fix}")]
    for note in plan.notes:
        lines += row("note", note.message)
    lines += _alternatives(plan)
    if plan.reasons and not explain:
        lines += row("why", "add --explain")
    return "\n".join(lines)


def describe_matrix(cells: Sequence[Cell], plan: Plan) -> str:
    """Releases down, CUDA across; what the plan chose is in brackets."""
    title = TITLES[plan.framework]
    if not cells:
        return f"No build of {title} matches the request."
    cudas = sorted({cell.cuda for cell in cells}, key=_ordered)
    marks: dict[str, dict[str, str]] = {}
    for cell in cells:
        mark = _MARKS[cell.verdict] + ("*" if cell.existence != "confirmed" else "")
        if (cell.framework_version, cell.cuda) == (plan.framework_version, plan.cuda):
            mark = f"[{mark}]"
        marks.setdefault(cell.framework_version, {})[cell.cuda] = mark
    rows = [(v, *(found.get(cuda, "") for cuda in cudas)) for v, found in marks.items()]
    lines = [*table([(title, *cudas), *rows], gap=1), *row("", _LEGEND)]
    return "\n".join([*lines, *(_refusal(plan) if plan.error else []), *_limits(plan)])


def _decision(plan: Plan) -> list[str]:
    framework = f"{TITLES[plan.framework]} {plan.framework_version}"
    image = f"Python {plan.python} on {plan.base.reference if plan.base else '?'}"
    if plan.base and plan.base.suite:
        image += f" ({plan.base.suite})"
    if plan.base and plan.base.apt:
        image += f" with {', '.join(plan.base.apt)}"
    if plan.arch not in {None, "x86_64"}:
        image += f" for {plan.arch}"
    if plan.compat_package:
        image += f", which contains {plan.compat_package}"
    return [
        *row("verdict", plan.verdict),
        *row("framework", framework + (f" ({plan.wheel_tag})" if plan.wheel_tag else "")),
        *row(
            "cuda",
            f"{plan.cuda}, cuDNN {plan.cudnn or 'unknown'}, NCCL {plan.nccl or 'unknown'}",
        ),
        *row("driver", f"{plan.driver_have or 'not found'} (minimum {plan.driver_need})"),
        *row("image", image),
        *row("wheels", f"{plan.index}"),
    ]


def _refusal(plan: Plan) -> list[str]:
    assert plan.error is not None
    return [
        *row("verdict", "none"),
        *row("because", plan.error.message),
        *row("fix", plan.error.fix),
    ]


def _limits(plan: Plan) -> list[str]:
    """Which hosts limit the others."""
    if plan.limited_by is None:
        return []
    said = plan.error.message if plan.error else ""
    return row("limited by", plan.limited_by.words(plan.framework, said))


def _gpu_table(gpus: Sequence[GpuVerdict]) -> list[str]:
    counted = list(Counter(gpus).items())
    rows = [
        (
            _shortened(f"{count} x {g.name or '?'}" if count > 1 else g.name or "?"),
            g.compute_capability or "?",
            g.runs,
            "ok" if g.ok else "not checked" if g.runs == "unknown" else "no",
        )
        for g, count in counted[:_MOST_ROWS]
    ]
    more = len(counted) - _MOST_ROWS
    lines = table([("GPU", "capability", "runs", "verdict"), *rows]) if rows else []
    return [*lines, *([f"  and {more} more kinds"] if more > 0 else [])]


def _blocked_table(blocked: Sequence[Blocked]) -> list[str]:
    rows = [
        (
            _shortened(f"{b.gpu or '?'}" + (f", {b.host}" if b.host else ""), 33),
            b.compute_capability or "?",
            _shortened(b.served_by or "nothing", 37),
        )
        for b in blocked[:_MOST_ROWS]
    ]
    more = len(blocked) - _MOST_ROWS
    lines = table([("GPU", "cap.", "supported by"), *rows])
    return [*lines, *([f"  and {more} more"] if more > 0 else [])]


def _considered(plan: Plan, cells: Sequence[Cell]) -> list[str]:
    """The other builds of the chosen release; where nothing fits, the newest build of each CUDA."""
    if plan.error is None:
        rows = [c for c in cells if c.framework_version == plan.framework_version]
    else:
        rows = list({cell.cuda: cell for cell in reversed(cells)}.values())
    lines: list[str] = []
    for cell in rows:
        if (cell.framework_version, cell.cuda) == (plan.framework_version, plan.cuda):
            continue
        name = (
            f"{cell.framework_version}+{cell.wheel_tag}"
            if cell.wheel_tag
            else (f"{cell.framework_version}, CUDA {cell.cuda}")
        )
        why = f"{cell.message} [{cell.code}]" if cell.message else cell.verdict
        if cell.existence != "confirmed":
            why += f" (its existence is {cell.existence})"
        lines += row("considered" if not lines else "", f"{name}: {why}")
    return lines


def _alternatives(plan: Plan) -> list[str]:
    lines: list[str] = []
    for one in plan.alternatives:
        lines += row(
            "alternative" if plan.error else "or",
            f"--cuda {one.cuda} --framework-version {one.framework_version}: {one.why}",
        )
    return lines


def _ordered(cuda: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cuda.split("."))


def _shortened(name: str, limit: int = 40) -> str:
    """A GPU's name that leaves room for the other columns."""
    return name if len(name) <= limit else f"{name[: limit - 3]}..."
