"""What is known of the texts besides the first hit of each pattern: how each ends, for one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.doctor.log_facts import ReportedFacts, first_of
from provision.doctor.model import Evidence, Facts, Hit
from provision.doctor.outline import IS_RAISED, Outline, is_warning
from provision.doctor.scope import MESSAGE, PARAGRAPH

ORDINARY = re.compile(
    r"\b(?:File(?:NotFound|Exists)|NotADirectory|IsADirectory|Key|Index|Name|Type|Attribute"
    r"|ZeroDivision|JSONDecode|UnicodeDecode|UnboundLocal)Error\b|\bKeyboardInterrupt\b",
    re.ASCII,
)
# An exception that reports another one, or a process that ended.
REPORTS = re.compile(
    r"CalledProcessError|ChildFailed|Process(?:Raised|Exited)|SystemExit|KeyboardInterrupt"
    r"|(?i:above|exit(?:ed)?\b|terminat|worker|\brank\b|process|engine|failed)",
    re.ASCII,
)
_SOON = 15  # lines: what ended the run stands so near to what it is about


@dataclass(frozen=True, slots=True, kw_only=True)
class TextContext:
    """What is known of the texts besides the first hit of each pattern. `together`: hits near to
    one another of symptoms whose first ones are not; `last`: the last hits; `outlines`: how
    each text ends, and `reasons` the lines that say why; `reported`: what the texts say of the
    machine that they were written on.
    """

    together: Mapping[tuple[str, ...], tuple[Hit, ...]] = field(default_factory=dict)
    last: Mapping[str, Hit] = field(default_factory=dict)
    outlines: Sequence[Outline] = ()
    reasons: Sequence[Evidence] = ()
    reported: ReportedFacts = field(default_factory=dict)

    @property
    def first_reported(self) -> Facts:
        """What the texts say of their machine; of several values the first one."""
        return first_of(self.reported)

    def besides(self, seen: Sequence[Hit]) -> Facts:
        """What the texts state on other lines: a line does not speak for itself."""
        own = {hit.where for hit in seen}
        return {name: fact for name, fact in self.first_reported.items() if fact.where not in own}

    def is_over(self, hit: Hit) -> bool:
        """Whether the text says further down, at its end, that all is done."""
        return any(one.source == hit.source and hit.number < one.done for one in self.outlines)

    def has_gone_on(self, hit: Hit) -> bool:
        """Whether nothing ended badly soon after a line, or what has no need of what a warning is
        about: a file that is not there, a name that is not defined.
        """
        return not self._ends(hit, hit.number, hit.number + _SOON, but=ORDINARY)

    def warned_early(self, hit: Hit) -> bool:
        """Whether a line is a warning of Python's with much behind it."""
        return is_warning(hit.line) and any(
            one.source == hit.source
            and (one.lines > hit.number + _SOON or one.ends_after(hit.number + 1, one.lines))
            for one in self.outlines
        )

    def is_at_end(self, hit: Hit) -> bool:
        """Whether a line is near to the lines by which its text ends, if it ends badly."""
        for one in self.outlines:
            end = one.last_end() if one.source == hit.source else ()
            if end and not end[0][0] - _SOON <= hit.number:
                return False
        return True

    def after(self, hit: Hit) -> int:
        """How many lines stand between a line and the last words of its text."""
        return max(
            (one.last - hit.number for one in self.outlines if one.source == hit.source), default=0
        )

    def ends_with(self, hit: Hit) -> bool:
        """Whether a line is near to the end of its text, or says in its later part that something
        ended badly, or says why the text ends.
        """
        own = [one.where for one in self.reasons if one.where.startswith(f"{hit.source}:")]
        says_why = hit.where in own[-1:]
        for one in self.outlines:
            last = one.ends[-1][0] if says_why and one.ends else hit.number
            if one.source == hit.source and one.lines - last > max(MESSAGE, one.lines // 2):
                return False
        return says_why or self.is_at_end(hit) or self._ends(hit, hit.number, hit.number)

    def says_why(self, hit: Hit) -> bool:
        """Whether a line says why its text ended badly, or no line of the text does, or the text is
        no longer than one message.
        """
        said = [one for one in self.reasons if one.where.startswith(f"{hit.source}:")]
        if not said or any(one.where == hit.where or hit.line in one.says for one in said):
            return True
        return any(one.source == hit.source and one.lines <= PARAGRAPH for one in self.outlines)

    def is_stated(self, hit: Hit) -> bool:
        """Whether the text of a line is longer than one message, and says why it ended."""
        said = any(one.where.startswith(f"{hit.source}:") for one in self.reasons)
        return said and any(
            one.source == hit.source and one.lines > PARAGRAPH for one in self.outlines
        )

    def is_by_a_reason(self, hit: Hit) -> bool:
        """Whether a line is near to one that something ended by and that says why, or says the
        same, or is the text's last words, or no line says why.
        """
        if any(one.says == hit.line for one in self.reasons):
            return True
        said = [
            int(number)
            for source, _, number in (one.where.rpartition(":") for one in self.reasons)
            if source == hit.source and number.isdecimal()
        ]
        numbers = [
            number
            for one in self.outlines
            if one.source == hit.source
            for number in said
            if one.has_end(number)
        ]
        near = any(abs(hit.number - number) <= _SOON for number in numbers)
        return near or not numbers or self.after(hit) <= 1

    def is_apart(self, hit: Hit) -> bool:
        """Whether something ended badly in the text, and nothing near a line: a hint there is no
        more than one of many words.
        """
        ended = any(one.ends for one in self.outlines if one.source == hit.source)
        return ended and not self._ends(hit, hit.number - _SOON, hit.number + _SOON)

    def ends_by_itself(self, source: str) -> bool:
        """Whether the last end of a text is an exception that gives its own reason."""
        for one in self.outlines:
            said = [line for _, line in one.last_end() if IS_RAISED.match(line)]
            if one.source == source and said:
                return REPORTS.search(said[-1]) is None
        return False

    def raised_before(self, hits: Sequence[Hit]) -> tuple[Evidence, ...]:
        """The exception before an outcome: what it goes back to, where no cause is known."""
        first = min((hit.number for hit in hits), default=0)
        return tuple(
            Evidence(says=f"the first to fail: {said}", where=f"{one.source}:{number}")
            for one in self.outlines
            for number, said in [one.raised or (0, "")]
            if 0 < first - number <= MESSAGE and said and hits[0].source == one.source
        )

    def _ends(self, hit: Hit, first: int, last: int, *, but: re.Pattern[str] | None = None) -> bool:
        return any(
            one.source == hit.source and one.ends_after(first, last, but=but)
            for one in self.outlines
        )
