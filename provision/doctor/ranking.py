"""Which of several suspects comes first, and how sure that is. Pure; the rules: judge.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from provision.doctor.context import TextContext
from provision.doctor.model import Confidence
from provision.doctor.suspect import Suspect


def in_order(suspects: Sequence[Suspect]) -> list[Suspect]:
    """The first of them is the answer."""
    return _reasons_first(_closing_first(_ending_first(sorted(suspects, key=_rank))))


def survived_together(suspects: Sequence[Suspect]) -> list[Suspect]:
    """A hint on lines alone that the run went on after was survived, too."""
    lines = {line for one in suspects if one.survived for line in one.lines}
    return [
        replace(one, survived=True) if one.strength == "hint" and one.lines <= lines else one
        for one in suspects
    ]


def before_the_end(suspects: Sequence[Suspect], reading: TextContext) -> list[Suspect]:
    """What stands far before the last end of a text, if that is an exception with a reason of its
    own: a proof may have led there, and is no proof of it, unless hardware failed, which no later
    program repairs; the rest was survived, unless the end is explained by something else, which
    then stands first anyway.
    """
    sources = {hit.source for one in suspects for hit in one.hits}
    other = {name for name in sources if reading.ends_by_itself(name)}
    explained = {
        hit.source
        for one in suspects
        if one.at_end and not one.survived and one.strength != "hint"
        for hit in one.hits
    }

    def weighed(one: Suspect) -> Suspect:
        heard = {hit.source for hit in one.hits}
        if one.strength is None or one.at_end or one.supported or not heard <= other:
            return one
        if one.strength == "proof":
            return one if one.failure.is_hardware_failure else replace(one, strength="typical")
        return one if heard & explained else replace(one, survived=True)

    return [weighed(one) for one in suspects]


def explained_by(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Each with the cause that it follows from."""
    beaten = {
        code: one.failure.code
        for one in suspects
        if one.strength != "hint"
        for code in one.failure.beats
    }
    by_a_reason = {beaten.get(one.failure.code) for one in suspects if one.by_a_reason}
    found = [
        replace(
            one,
            beaten_by=beaten.get(one.failure.code),
            by_a_reason=one.by_a_reason or one.failure.code in by_a_reason,
        )
        for one in suspects
    ]
    roots = [one for one in sorted(found, key=_rank) if one.is_root]
    return [
        replace(one, beaten_by=next((r.failure.code for r in roots if r.explains(one)), None))
        if one.failure.outcome and one.beaten_by is None
        else one
        for one in found
    ]


def _ending_first(ranked: list[Suspect]) -> list[Suspect]:
    """The proof of what ended a program, on other lines, ranks before what it goes on without."""
    if not ranked or ranked[0].severity != "degrades":
        return ranked
    ended = [
        one
        for one in ranked
        if one.is_root
        and (one.strength, one.severity) == ("proof", "blocks")
        and one.at_end
        and not one.lines & ranked[0].lines
    ]
    return [*ended[:1], *(one for one in ranked if one not in ended[:1])]


def _closing_first(ranked: list[Suspect]) -> list[Suspect]:
    """The last words of a long text rank before a cause far above them that is no proof, or a proof
    that is not sure and stands apart from the lines that say why the text ended.
    """
    if not ranked or not ranked[0].early:
        return ranked
    if ranked[0].strength == "proof" and (ranked[0].is_sure or ranked[0].by_a_reason):
        return ranked
    last = [
        one
        for one in ranked
        if one.closing and one.is_root and one.strength != "hint" and not one.failure.generic
    ]
    return [*last[:1], *(one for one in ranked if one not in last[:1])]


def _reasons_first(ranked: list[Suspect]) -> list[Suspect]:
    """What is in a line that says why the text ended ranks before what stands apart from all."""
    if not ranked or not ranked[0].is_elsewhere:
        return ranked
    near = [
        one
        for one in ranked
        if one.is_root and one.strength != "hint" and one.says_why and not one.failure.generic
    ]
    return [*near[:1], *(one for one in ranked if one not in near[:1])]


def _rank(one: Suspect) -> tuple[bool, bool, int, bool, bool, bool, int, int, str]:
    """What the text shows goes before what the machine shows besides, and that before a hint. What
    does no harm does not stand before what does, and what the run survived before nothing.
    """
    kind = 1 if one.strength is None else 2 if one.strength == "hint" and not one.supported else 0
    first = min((hit.number for hit in one.hits), default=0)
    harmless = one.severity == "warns"
    root = one.strength == "proof" and one.severity == "blocks"
    elsewhere = not one.at_end and not root
    after = (harmless, elsewhere, one.failure.generic, -one.points, first, one.failure.code)
    return (one.beaten_by is not None, one.survived, kind, *after)


def confidence_in(one: Suspect, all_of_them: Iterable[Suspect]) -> Confidence:
    """How sure it is, beside the others that its lines may mean as well."""
    if one.strength is None:
        return "high"
    if one.strength == "hint":
        return "medium" if one.supported else "low"
    if one.beaten_by is not None:
        return "medium"
    lines, points = one.lines, one.points
    rivals = [
        other
        for other in all_of_them
        if other is not one
        and other.strength != "hint"
        and other.beaten_by is None
        and any((hit.source, hit.number) in lines for hit in other.hits)
    ]
    better = [other for other in rivals if other.points >= points]
    if one.strength == "proof":
        doubtful = any(other.strength == "proof" for other in better)
        known = (one.is_sure and one.failure.states == "symptom") or bool(one.supported)
        return "high" if known and not doubtful else "medium"
    if one.decided and not any(other.decided for other in rivals):
        return "high"
    if one.supported and not any(other.supported for other in rivals):
        return "high"
    return "low" if len(rivals) > 1 and better else "medium"
