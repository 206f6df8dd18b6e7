"""The texts of --fix, at most 80 columns wide. Commands are printed as they are typed, one per
line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from images.text.printable import printable
from provision.doctor.mending.backup import KeptFile
from provision.doctor.mending.choice import Refusal
from provision.doctor.mending.effects import changes_anything, warning
from provision.doctor.model import Cause, Fix
from provision.output.text import filled

_INDENT = "    "


def wrapped(text: str, indent: str = "") -> str:
    return "\n".join(filled(clean(text), indent, indent))


def clean(line: str) -> str:
    """Text without characters that move a terminal's cursor."""
    return printable(line, instead=" ")


def output_line(line: str) -> str:
    return f"{_INDENT}| {clean(line)}"


def listed(commands: Iterable[str]) -> str:
    return "\n".join(
        textwrap.indent(printable(command, instead=" ", keep="\n\t"), _INDENT)
        for command in commands
    )


def cause_text(cause: Cause) -> str:
    lines = [wrapped(f"{cause.title} ({cause.code})"), wrapped(cause.cause, "  ")]
    lines += [wrapped(f"seen: {one.says} ({one.where})", "  ") for one in cause.evidence]
    return "\n".join(lines)


def fix_text(fix: Fix, commands: Sequence[str], files: Sequence[str]) -> str:
    lines = [wrapped(f"fix: {fix.note}", "  ")] if fix.note else []
    lines.append(listed(commands))
    if files:
        lines.append(wrapped(f"kept before: {', '.join(files)}", "  "))
    return "\n".join(lines)


def by_hand_text(cause: Cause, refusal: Refusal) -> str:
    lines: list[str] = []
    if cause.confirm and any(changes_anything(fix.run) for fix in cause.fixes):
        lines += [wrapped("check first:", "  "), listed(cause.confirm.splitlines())]
    for fix in cause.fixes:
        lines += [wrapped(f"fix: {fix.note}", "  ")] * bool(fix.note)
        lines += [wrapped(said, "  ")] if (said := warning(fix.run)) else []
        lines += [listed(fix.run.splitlines())] * bool(fix.run)
    return "\n".join([*lines, wrapped(f"not run: {refusal.why} {refusal.fix}", "  ")])


def restored_text(kept: Sequence[KeptFile]) -> str:
    """What --undo would do to each file."""
    lines = ["To be restored:"]
    for one in kept:
        how = f"from {one.copy}" if one.copy else "removed: it was not there before"
        lines.append(f"{_INDENT}{clean(one.path)}  ({clean(how)})")
    return "\n".join(lines)


def undo_text(kept: Sequence[KeptFile], restores: Sequence[str], done: Sequence[str]) -> str:
    """How to restore files, and what was run: only changes to these files are undone."""
    lines = ["  To put the kept files back:", listed(restores)] if kept else []
    lines += ["  Run so far:", listed(done)] if done else []
    return "\n".join(lines) or "  Nothing was changed."
