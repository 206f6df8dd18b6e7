"""A failure that may be the cause, with all that speaks for it, or against it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.doctor.model import Evidence, Hit, KnownFailure, Severity, Strength

STRENGTHS: tuple[Strength, ...] = ("proof", "typical", "hint")  # the strongest first


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
    is_elsewhere: bool = False  # it is apart from such lines, or says less than they do
    is_sure: bool = False  # a proof of it alone is there, or in a text's last words; or hardware

    @property
    def severity(self) -> Severity:
        return "warns" if self.survived else self.failure.severity

    @property
    def weight(self) -> tuple[int, int, int]:
        """How far the machine confirms it, how strong its text is, its frequency: least first."""
        confirmed = bool(self.supported) + self.decided
        strength = STRENGTHS.index(self.strength) if self.strength else 0
        return -confirmed, strength, -self.failure.often

    @property
    def is_aside(self) -> bool:
        """Whether it does no harm, and is not what ended the run."""
        return self.severity == "warns" and not (self.at_end and self.says_why)

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
