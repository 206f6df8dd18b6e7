"""A failure that may be the cause, with all that speaks for it, or against it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.doctor.model import Evidence, Hit, KnownFailure, Severity, Strength

POINTS: Mapping[Strength, int] = {"proof": 30, "typical": 20, "hint": 10}
_SUPPORT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A failure of the knowledge for which something speaks, and what does."""

    failure: KnownFailure
    strength: Strength | None  # None: the machine alone shows it
    hits: tuple[Hit, ...] = ()
    supported: tuple[Evidence, ...] = ()
    decided: bool = False  # by a decisive clue
    proven: bool = False  # by the facts that need no text
    refuted: Evidence | None = None
    beaten_by: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    survived: bool = False  # the program went on
    at_end: bool = True  # what ended the run is near
    says_why: bool = False  # its strongest symptom is in the lines that say why a text ended
    by_a_reason: bool = True  # one of its symptoms is near to such a line
    stated: bool = False  # its text is long, and says why it ended
    told: bool = True  # one of its lines reads like the reason of a failure
    is_sure: bool = False  # a proof of it alone is there, or in a text's last words; or hardware
    closing: bool = False  # the last words of a text show it
    early: bool = False  # it is far from the last words of its text

    @property
    def severity(self) -> Severity:
        return "warns" if self.survived else self.failure.severity

    @property
    def points(self) -> int:
        base = POINTS[self.strength] if self.strength else POINTS["proof"]
        support = bool(self.supported) + self.decided
        return base + _SUPPORT * support + self.failure.often

    @property
    def is_aside(self) -> bool:
        """Whether it does no harm, and is not what ended the run."""
        return self.severity == "warns" and not (self.at_end and self.says_why)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is no proof, and either stands apart from the lines that say why the text
        ended, or says less than they do: a hint or, in other lines, an outcome or no failure.
        """
        if self.strength == "proof" or self.supported:
            return False
        tells_less = not self.says_why and (self.failure.outcome or not self.told)
        return not self.by_a_reason or (self.stated and (self.strength == "hint" or tells_less))

    @property
    def is_root(self) -> bool:
        """Whether an outcome can follow from it."""
        possible = (self.strength != "hint" or self.supported) and self.severity != "warns"
        return bool(possible) and self.beaten_by is None and not self.failure.outcome

    def explains(self, outcome: Suspect) -> bool:
        """Whether it is more than another reading of the outcome's lines. What any program has does
        not explain an outcome that its text proves, nor does what is likely and far from the end
        explain one that ended the text.
        """
        sure = bool(self.strength == "proof" or self.supported or self.proven)
        far = not self.at_end and outcome.at_end and not sure
        if outcome.strength == "proof" and (self.failure.generic or far):
            return False
        return sure or not self.lines <= outcome.lines

    @property
    def lines(self) -> frozenset[tuple[str, int]]:
        return frozenset((hit.source, hit.number) for hit in self.hits)
