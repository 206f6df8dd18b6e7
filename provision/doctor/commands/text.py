"""Render a diagnosis as text: the cause, its fix, and the evidence.

The fix comes first, then the reasons; before a fix that changes something, the command that checks
whether the cause is there. Commands are printed as they are, one a line, so that they can be
copied, even where they are longer than a line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from provision.doctor.account import COLLECT, Place, Verdict
from provision.doctor.mending.effects import changes_anything, warning
from provision.doctor.model import Cause, Diagnosis, Evidence, Fix
from provision.doctor.overview import OverviewLine
from provision.output import chinese
from provision.output.text import row

THIS_MACHINE = "this machine"
_OTHERS = 3
_FIXES = 2
_EVIDENCE = 3
_LINKS = 2
_ABOUT = 30  # characters: a quoted line that has no more than these besides is no news
_SURE = {"high": "sure", "medium": "likely", "low": "possible"}
_PLACES: Mapping[Place, str] = {
    "here": "on this machine: {}. In full: provision doctor",
    "image": "in the image: {}",
    "bundle": "on the machine of the bundle: {}",
}
_SEVERITIES = {"blocks": "error", "degrades": "degraded", "warns": "trap"}


def describe_diagnosis(
    diagnosis: Diagnosis,
    verdict: Verdict,
    *,
    about: str,
    place: Place | None = None,
    readings: Sequence[OverviewLine] = (),
    no_gpu: str = "",
    whole: bool = False,
    case: Mapping[str, str] | None = None,
) -> str:
    """The first cause in full and the others in short, or all in full; then the machine. `no_gpu`:
    why no program sees a GPU there.
    """
    causes = diagnosis.causes
    conflicts = [*_contradictions(diagnosis)]
    lines: list[str] = []
    in_full = causes if whole else [c for i, c in enumerate(causes) if i == 0 or _stands_out(c)]
    if verdict == "unknown":
        lines += [*_unknown(about, diagnosis), *conflicts]
        in_full = causes if whole else ()
    elif diagnosis.ended_well:
        lines += [f"No failure found: {about} ends normally."]
        lines += _earlier(diagnosis.telling)
        lines += [""] if causes else []
        in_full = causes if whole else ()
    elif not causes:
        lines += _nothing(about, no_gpu)
    failed = _failed(diagnosis) if in_full else None
    lines += row("failed", _seen(failed)) if failed else []
    for i, cause in enumerate(in_full):
        said = [one for one in diagnosis.reasons if one != failed] if i == 0 else []
        beside = () if i or verdict == "unknown" else conflicts
        lines += [*_in_full(cause, said, failed, beside, whole=whole), ""]
    rest = [cause for cause in causes if cause not in in_full]
    lines += _in_short(rest, "warned" if diagnosis.ended_well else "also")
    if whole:
        lines += _ruled_out(diagnosis)
    closing = [
        *_partly(diagnosis),
        *_origin(diagnosis, verdict, place),
        *_besides(diagnosis, place),
    ]
    if (readings and rest) or closing:
        lines = ["\n".join(lines).rstrip(), ""]
    lines += closing
    for one in readings:
        lines += row(one.what, one.says)
    if case is not None:
        lines += ["", *row("case", f"{case['file']}  Look into it, then share it.")]
        lines += row("search", case["search"]) if case["search"] else []
    return "\n".join(lines).rstrip()


def _partly(diagnosis: Diagnosis) -> Iterator[str]:
    for one in diagnosis.partly:
        read = (
            f"the first {one.first:,} and last {one.last:,} of {one.lines:,} lines of {one.source}"
        )
        yield from row("read", f"{read}, which match very much that is known.")


def _failed(diagnosis: Diagnosis) -> Evidence | None:
    """The line that says what failed, where the first title is another reading of it or a guess."""
    first = diagnosis.causes[0]
    says_it = first.states == "symptom" and first.confidence == "high"
    return diagnosis.failed if first.in_text and not says_it else None


def _contradictions(diagnosis: Diagnosis) -> Iterator[str]:
    """What the log says of its machine and does not go together: the reason, then the lines."""
    for one in diagnosis.contradictions:
        yield from row("conflict", f"{one.says}:")
        for evidence in one.evidence:
            yield from row("", _seen(evidence))


def _origin(diagnosis: Diagnosis, verdict: Verdict, place: Place | None) -> Iterator[str]:
    """Whose machine was judged, where it is not the one that the doctor was sent to."""
    origin = diagnosis.origin
    if origin is None or place != "here":
        return
    says = "; ".join(_seen(one) for one in origin.says)
    if not origin.counts and origin.agreement == "differs":
        old = "If it is an old one from here, add --here."
        yield from row("machine", f"The log is from another one: {says}. {old}")
    elif not origin.counts and verdict != "healthy":
        yield from row("machine", "Only the log was judged. If it was written here, add --here.")
    elif origin.agreement == "agrees":
        yield from row("machine", f"The log is from this one: {says}.")


def _besides(diagnosis: Diagnosis, place: Place | None) -> Iterator[str]:
    """What keeps a machine from working and no log shows: never the answer for a log."""
    codes = [f"{one.title} ({one.code})" for one in diagnosis.besides if one.severity == "blocks"]
    if codes and place is not None:
        more = f"; {len(codes) - 1} more" if len(codes) > 1 else ""
        yield from row("also", _PLACES[place].format(codes[0] + more))


def _nothing(about: str, no_gpu: str) -> Iterator[str]:
    where = "on this machine" if about == THIS_MACHINE else f"in {about}"
    yield f"No GPU can be used {where}: {no_gpu}." if no_gpu else f"No problems found {where}."


def describe_known(causes: Sequence[Cause]) -> str:
    """Everything about each cause, with the fixes for every distribution."""
    return "\n\n".join("\n".join(_known(cause)) for cause in causes)


def list_known(causes: Sequence[Cause]) -> str:
    """All codes, layer by layer."""
    lines: list[str] = []
    for layer in sorted({cause.layer for cause in causes}):
        lines += [layer, *(f"  {one.code}" for one in causes if one.layer == layer)]
    return "\n".join([*lines, f"{len(causes)} causes; details: provision doctor explain CODE"])


def describe_step(cause: Cause) -> str:
    """Two or three lines below a step that failed."""
    fix = next(iter(cause.fixes), None)
    lines = row("cause", f"{cause.title} ({cause.layer}; {_SURE[cause.confidence]})")
    if fix is not None:
        lines += _check_first(cause, [fix])
        lines += row("fix", fix.note or "type:")
        lines += _commands(fix)
    return "\n".join(lines)


def _stands_out(cause: Cause) -> bool:
    return cause.confidence == "high" and cause.follows_from is None and cause.severity == "blocks"


def _in_full(
    cause: Cause,
    said: Sequence[Evidence],
    failed: Evidence | None,
    beside: Sequence[str],
    *,
    whole: bool,
) -> Iterator[str]:
    yield from row(_SEVERITIES[cause.severity], cause.title)
    yield from chinese.line(cause.code)
    yield from row("", f"{cause.code}, {cause.layer}: {_SURE[cause.confidence]}")
    yield from _log_says([one for one in said if not _is_seen(one, cause)])
    yield from beside
    shown = cause.fixes if whole else cause.fixes[:_FIXES]
    checked = tuple(_check_first(cause, shown))
    yield from checked
    for i, fix in enumerate(shown):
        whom = f"({', '.join(fix.on)}) " if fix.on and len(cause.fixes) > 1 else ""
        yield from row("fix" if i == 0 else "or", f"{whom}{fix.note or 'Type:'}")
        yield from _commands(fix)
    if len(shown) < len(cause.fixes):
        more = len(cause.fixes) - len(shown)
        yield from row("", f"{more} more: provision doctor explain {cause.code}")
    if not checked:
        yield from _check("then check", cause)
    seen = [one for one in cause.evidence[:_EVIDENCE] if not failed or one.where != failed.where]
    for i, evidence in enumerate(seen):
        yield from row("seen" if i == 0 else "", _seen(evidence))
    yield from row("why", cause.cause)
    if cause.follows_from:
        yield from row("", f"It follows from {cause.follows_from}.")
    for i, link in enumerate(cause.sources[:_LINKS]):
        yield from row("more" if i == 0 else "", link)


def _known(cause: Cause) -> Iterator[str]:
    yield from row(_SEVERITIES[cause.severity], cause.title)
    yield from row("", f"{cause.code}, {cause.layer}")
    yield from row("why", cause.cause)
    checked = tuple(_check_first(cause, cause.fixes))
    yield from checked
    for fix in cause.fixes:
        whom = f"({', '.join(fix.on)}) " if fix.on else ""
        yield from row("fix", f"{whom}{fix.note or 'Type:'}")
        yield from _commands(fix)
        if fix.seen:
            yield from row("", f"Seen to work with {fix.seen}.")
    if not checked:
        yield from _check("then check", cause)
    for i, link in enumerate(cause.sources):
        yield from row("more" if i == 0 else "", link)


def _in_short(causes: Sequence[Cause], label: str) -> Iterator[str]:
    for i, cause in enumerate(causes[:_OTHERS]):
        sure = "follows" if cause.follows_from else _SURE[cause.confidence]
        yield from row(label if i == 0 else "", f"{cause.title} ({cause.code}; {sure})")
    if causes:
        more = len(causes) - _OTHERS
        yield from row("", f"{f'{more} more; ' if more > 0 else ''}in full: --all")


def _ruled_out(diagnosis: Diagnosis) -> Iterator[str]:
    for i, one in enumerate(diagnosis.ruled_out):
        why = f"{one.title}: {one.evidence.says} ({one.evidence.where})"
        yield from row("not" if i == 0 else "", why)


def _unknown(about: str, diagnosis: Diagnosis) -> Iterator[str]:
    said = f"Nothing in {about} matches a known problem."
    if diagnosis.causes:
        said = f"No known problem explains how {about} ends."
    yield from row("unknown", said)
    yield from _log_says(diagnosis.reasons)
    quoted = {evidence.where for evidence in diagnosis.reasons}
    telling = [evidence for evidence in diagnosis.telling if evidence.where not in quoted]
    for i, evidence in enumerate(telling):
        yield from row("last lines" if i == 0 else "", _seen(evidence))
    for i, line in enumerate(COLLECT):
        yield from row("collect" if i == 0 else "", line)


def _earlier(telling: Sequence[Evidence]) -> Iterator[str]:
    """What went wrong before a text ends normally, as the text says it."""
    for i, evidence in enumerate(telling[-_EVIDENCE:]):
        yield from row("earlier" if i == 0 else "", _seen(evidence))


def _is_seen(reason: Evidence, cause: Cause) -> bool:
    """Whether the evidence shows a line about as far."""
    shown = {evidence.where: evidence.says for evidence in cause.evidence[:_EVIDENCE]}
    seen = shown.get(reason.where)
    return seen is not None and len(reason.says) <= len(seen) + _ABOUT


def _log_says(reasons: Sequence[Evidence]) -> Iterator[str]:
    for i, evidence in enumerate(reasons):
        yield from row("log says" if i == 0 else "", _seen(evidence))


def _seen(evidence: Evidence) -> str:
    return f"{evidence.says}  [{evidence.where}]"


def _check_first(cause: Cause, shown: Sequence[Fix]) -> Iterator[str]:
    """The check of a cause, if one of the fixes that follow changes something."""
    if any(changes_anything(fix.run) for fix in shown):
        says = "Go on only if it shows the problem. Run it again after the fix."
        yield from _check("check first", cause, says)


def _check(name: str, cause: Cause, says: str = "") -> Iterator[str]:
    if cause.confirm:
        yield from row(name, says)
        yield from _indented(cause.confirm)


def _commands(fix: Fix) -> Iterator[str]:
    if fix.run:
        if said := warning(fix.run):
            yield from row("", said)
        yield from _indented(fix.run)


def _indented(commands: str) -> Iterator[str]:
    for line in textwrap.dedent(commands).strip().splitlines():
        yield f"    {line}".rstrip()
