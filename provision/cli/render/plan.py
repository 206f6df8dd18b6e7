"""Render plans as text: the answer, what to type, then why; all details with --explain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from provision.model.plan import RUNS, TITLES, Alternative, Blocked, Cell, GpuVerdict, Plan, Verdict
from provision.output import chinese
from provision.output.text import answer, command, row, table

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
    "D runs, m runs by minor-version compatibility (the driver is older than this CUDA, but of the "
    "same major version), f runs with cuda-compat, ? not checked, - does not run, * the build is "
    "only likely to exist, [] chosen by the plan"
)
# How the driver runs the CUDA of a plan.
_DRIVERS: Mapping[Verdict, str] = {
    "direct": "; it natively supports this CUDA",
    "minor-version": "; it is older than this CUDA, but of the same major version, which is enough "
    "(minor-version compatibility)",
    "forward": "; it is older than this CUDA, so the image brings NVIDIA's cuda-compat package",
}
_CODE = re.compile(rf" \(({'|'.join(RUNS)})\)$")


class Installing(NamedTuple):
    """What to type for a plan that fits: the command that builds its image, and those that install
    it without a container. `toolkit`: CUDA must be there; else the wheels bring it.
    """

    build: str
    host: tuple[str, ...]
    toolkit: bool


def describe_plan(
    plan: Plan,
    installing: Installing | None = None,
    *,
    explain: bool = False,
    considered: Sequence[Cell] = (),
) -> str:
    """The answer, what to type, the decisions and what each GPU runs; with `explain` every reason
    and its source, and the result for each build that was not chosen (`considered`).
    """
    lines = _refusal(plan) if plan.error else _decision(plan, installing)
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
        lines += row("why", "add --explain, for every reason and its source")
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


def _answer(plan: Plan) -> list[str]:
    build = f"{TITLES[plan.framework]} {plan.framework_version} for CUDA {plan.cuda}"
    if plan.verdict == "unverified":
        return answer("Perhaps", f"{build}. Not everything is known; see the warnings.")
    how = " with cuda-compat" if plan.compat_package else ""
    names = [
        f"{count} x {name}" if count > 1 else name
        for name, count in Counter(map(_name, plan.gpus)).items()
    ]
    gpus = " and ".join(names) if len(names) < 3 else f"all {len(plan.gpus)} GPUs"
    return answer("Yes", f"{build} runs{how} on {gpus} with driver {plan.driver_have}.")


def _name(gpu: GpuVerdict) -> str:
    return _shortened(gpu.name or f"compute capability {gpu.compute_capability or 'unknown'}")


def _typed(installing: Installing) -> list[str]:
    lines = ["in a container:", *command(installing.build)]
    lines.append("or with pip, without a container (there are --format uv and conda, too):")
    return [*lines, *(line for one in installing.host for line in command(one))]


def _decision(plan: Plan, installing: Installing | None) -> list[str]:
    image = f"Python {plan.python} on {plan.base.reference if plan.base else '?'}"
    if plan.base and plan.base.suite:
        image += f" ({plan.base.suite})"
    if plan.base and plan.base.apt:
        image += f" with {', '.join(plan.base.apt)}"
    if plan.arch not in {None, "x86_64"}:
        image += f" for {plan.arch}"
    least = plan.driver_need
    if plan.compat_package:
        least = f"{least} without {plan.compat_package}"
        image += f", which contains {plan.compat_package}"
    brings = (("CUDA", plan.cuda), ("cuDNN", plan.cudnn), ("NCCL", plan.nccl))
    cuda = ", ".join(f"{name} {version}" for name, version in brings if version)
    if installing is not None and not installing.toolkit:
        cuda += "; no CUDA toolkit is needed: the wheels have it"
    how = _DRIVERS.get(plan.verdict, "")
    what = next((f"{one.requirement} from " for one in plan.indexes), "")
    return [
        *_answer(plan),
        *chinese.line(plan.verdict),
        "",
        *([*_typed(installing), ""] if installing is not None else []),
        *row("driver", f"{plan.driver_have or 'not found'} (minimum {least}){how}"),
        *row("cuda", cuda),
        *row("image", image),
        *row("wheels", f"{what}{plan.index_url}"),
    ]


def _refusal(plan: Plan) -> list[str]:
    assert plan.error is not None
    return [
        *answer("No", plan.error.message),
        *chinese.line(plan.error.code),
        "",
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
        why = f"{cell.message} [{cell.code}]" if cell.message else RUNS[cell.verdict]
        if cell.existence != "confirmed":
            why += f" (its existence is {cell.existence})"
        lines += row("considered" if not lines else "", f"{name}: {why}")
    return lines


def _alternatives(plan: Plan) -> list[str]:
    lines: list[str] = []
    for one in plan.alternatives:
        lines += row(
            "alternative" if plan.error else "or",
            f"--cuda {one.cuda} --framework-version {one.framework_version}: {_why(one)}",
        )
    return lines


def _why(one: Alternative) -> str:
    """Why another combination is offered; that it runs needs no word."""
    return _CODE.sub(lambda found: "" if found[1] == "direct" else f" ({RUNS[found[1]]})", one.why)


def _ordered(cuda: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cuda.split("."))


def _shortened(name: str, limit: int = 40) -> str:
    """A GPU's name that leaves room for the other columns."""
    return name if len(name) <= limit else f"{name[: limit - 3]}..."
