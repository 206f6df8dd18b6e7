"""Which of several suspects comes first, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from provision.doctor.model import Confidence, Evidence, Hit, KnownFailure, Severity, Strength

STRENGTHS: tuple[Strength, ...] = ("proof", "typical", "hint")  # the strongest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A failure of the knowledge for which something speaks, and what does."""

    failure: KnownFailure
    strength: Strength | None  # None: the machine alone shows it
    hits: tuple[Hit, ...] = ()
    supported: tuple[Evidence, ...] = ()  # by facts of the machine
    decided: bool = False  # one of these is decisive
    proven: bool = False  # they need no text
    refuted: Evidence | None = None
    beaten_by: str | None = None  # the code of the cause that it follows from
    survived: bool = False  # the program went on
    at_end: bool = True  # what ended the run is near
    end: Literal["says why", "is near", "is elsewhere"] = "is near"  # the text's, to its lines
    is_sure: bool = False  # a proof of it alone is there, or in a text's last words; or hardware

    @property
    def severity(self) -> Severity:
        return "warns" if self.survived else self.failure.severity

    @property
    def weight(self) -> tuple[int, int, int]:
        """How far the machine confirms it, how strong its text is, its frequency: least first."""
        strength = STRENGTHS.index(self.strength) if self.strength else 0
        return -bool(self.supported) - self.decided, strength, -self.failure.often

    @property
    def is_guess(self) -> bool:
        """Whether it is a hint that no fact of the machine supports."""
        return self.strength == "hint" and not self.supported

    @property
    def explains_end(self) -> bool:
        """Whether it may be why its text ended."""
        return self.end == "says why" or (self.end == "is near" and self.severity != "warns")

    @property
    def lines(self) -> frozenset[tuple[str, int]]:
        return frozenset((hit.source, hit.number) for hit in self.hits)


def place(one: Suspect) -> tuple[bool, bool, bool, bool, bool, bool, bool, object, int, str]:
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
        one.is_guess,
        one.strength is None,
        one.severity == "warns",
        not (one.at_end or blocks),
        one.failure.generic,
        one.weight,
        min((hit.number for hit in one.hits), default=0),
        one.failure.code,
    )


def in_order(suspects: Sequence[Suspect]) -> list[Suspect]:
    """By their place, each with the cause that it follows from. A hint on lines alone that the run
    survived was survived, too.
    """
    beaten = {
        code: one.failure.code
        for one in suspects
        if one.strength != "hint"
        for code in one.failure.beats
    }
    passed = {line for one in suspects if one.survived for line in one.lines}
    found = [
        replace(
            one,
            survived=one.survived or (one.strength == "hint" and one.lines <= passed),
            beaten_by=beaten.get(one.failure.code),
        )
        for one in suspects
    ]
    roots = [
        one
        for one in sorted(found, key=place)
        if not (one.is_guess or one.severity == "warns" or one.beaten_by or one.failure.outcome)
    ]
    outcomes = [
        replace(one, beaten_by=next((r.failure.code for r in roots if _explains(r, one)), None))
        if one.failure.outcome and one.beaten_by is None
        else one
        for one in found
    ]
    return sorted(outcomes, key=place)


def _explains(root: Suspect, outcome: Suspect) -> bool:
    """Whether it is more than another reading of the outcome's lines. What any program has does
    not explain an outcome that its text proves, nor does what is likely and far from the end
    explain one that ended the text.
    """
    sure = root.strength == "proof" or bool(root.supported)
    far = not root.at_end and outcome.at_end and not sure
    if outcome.strength == "proof" and (root.failure.generic or far):
        return False
    return sure or not root.lines <= outcome.lines


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
