"""Which of several suspects comes first, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from provision.doctor.model import Confidence
from provision.doctor.suspect import Suspect


def place(
    one: Suspect,
) -> tuple[bool, bool, bool, bool, bool, bool, bool, tuple[int, int, int], int, str]:
    """The order of causes: the first is the answer. Each rule decides what those above leave equal.

    1. A cause comes before what follows from it: what it `beats`, an outcome that it explains.
    2. What ended something comes before what the run survived.
    3. A hint that no fact of the machine supports comes after all that is more.
    4. What a text shows comes before what the machine shows besides, and harm before no harm.
    5. What is near the text's end, or is a proof of what blocks, comes before what is elsewhere.
    6. What is specific comes before what any program has (`generic`).
    7. Its weight: how far the machine confirms it, then proof, typical, hint, then how frequent.
    8. The line further up, then the code. All else is the cause's own data.
    """
    blocks = one.strength == "proof" and one.severity == "blocks"
    return (
        one.beaten_by is not None,
        one.survived,
        one.strength == "hint" and not one.supported,
        one.strength is None,
        one.severity == "warns",
        not (one.at_end or blocks),
        one.failure.generic,
        one.weight,
        min((hit.number for hit in one.hits), default=0),
        one.failure.code,
    )


def in_order(suspects: Sequence[Suspect]) -> list[Suspect]:
    """By their place, each with the cause that it follows from. A cause is near the lines that say
    why a text ended if what follows from it is; a hint on lines alone that the run survived was
    survived, too.
    """
    beaten = {
        code: one.failure.code
        for one in suspects
        if one.strength != "hint"
        for code in one.failure.beats
    }
    near = {beaten.get(one.failure.code) for one in suspects if not one.is_elsewhere}
    passed = {line for one in suspects if one.survived for line in one.lines}
    found = [
        replace(
            one,
            survived=one.survived or (one.strength == "hint" and one.lines <= passed),
            beaten_by=beaten.get(one.failure.code),
            is_elsewhere=one.is_elsewhere and one.failure.code not in near,
        )
        for one in suspects
    ]
    roots = [one for one in sorted(found, key=place) if one.is_root]
    outcomes = [
        replace(one, beaten_by=next((r.failure.code for r in roots if r.explains(one)), None))
        if one.failure.outcome and one.beaten_by is None
        else one
        for one in found
    ]
    return sorted(outcomes, key=place)


def confidence_in(one: Suspect, all_of_them: Iterable[Suspect]) -> Confidence:
    """How sure it is, beside the others that its lines may mean as well."""
    if one.strength is None:
        return "high"
    if one.strength == "hint":
        return "medium" if one.supported else "low"
    if one.beaten_by is not None:
        return "medium"
    lines = one.lines
    rivals = [
        other
        for other in all_of_them
        if other is not one
        and other.strength != "hint"
        and other.beaten_by is None
        and any((hit.source, hit.number) in lines for hit in other.hits)
    ]
    better = [other for other in rivals if other.weight <= one.weight]
    if one.strength == "proof":
        doubtful = any(other.strength == "proof" for other in better)
        known = (one.is_sure and one.failure.states == "symptom") or bool(one.supported)
        return "high" if known and not doubtful else "medium"
    if one.decided and not any(other.decided for other in rivals):
        return "high"
    if one.supported and not any(other.supported for other in rivals):
        return "high"
    return "low" if len(rivals) > 1 and better else "medium"
