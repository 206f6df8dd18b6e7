"""From hits and facts to ranked causes. Pure: the same text and facts give the same answer.

- A symptom that is *proof* names its cause. Of causes that share a *typical* text, facts of the
  machine decide: what they refute is ruled out, what they support goes first. Where they cannot
  decide, the more frequent cause stands first and nobody is sure.
- A generic cause (a module, a file that is missing) counts only where a text ends with it, and
  ranks after each cause that says more.
- An outcome (a container, a build, a rank that failed) follows from whatever else the text shows,
  if that is more than another reading of the same lines. A cause that `beats` another explains it,
  too. What follows comes after its cause.
- A proof far before the end of a text that gives its own reason may have led there, and is no
  proof of it, unless hardware failed, which no later program repairs.
- Confidence: high needs a typical text with support from the machine, or a proof in a line that
  says why its text ended (or the machine's support, or hardware that failed), and no rival as good
  on the same line. A hint alone is never more than low.
- In which order they stand: `place` in ranking.py. A rule on one cause belongs to its data.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from provision.doctor.conditions import holds, in_words, suits, tags
from provision.doctor.context import TextContext
from provision.doctor.fixes import pick_fixes
from provision.doctor.model import (
    Cause,
    Condition,
    Confidence,
    Diagnosis,
    Evidence,
    Facts,
    Hit,
    KnownFailure,
    RuledOut,
    Strength,
)
from provision.doctor.outline import IS_CODE, telling
from provision.doctor.ranking import STRENGTHS, Suspect, confidence_in, in_order
from provision.doctor.reasons import PROMPT, reads_like_a_reason
from provision.doctor.scope import is_near, is_together

if TYPE_CHECKING:
    from provision.doctor.knowledge import Knowledge

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_EVIDENCE_SHOWN = 4


def find_causes(
    knowledge: Knowledge,
    hits: Mapping[str, Hit],
    facts: Facts,
    reading: TextContext | None = None,
    *,
    machine: bool = True,
) -> Diagnosis:
    """Rank what the texts and the machine show. `hits` are by pattern, each the first of its text;
    both may be empty. `machine`: also what the facts show without any text.
    """
    reading = reading or TextContext()
    suspects = [
        suspect
        for failure in knowledge.candidates(hits, host=machine)
        if (suspect := _suspect(failure, hits, facts, reading)) is not None
        and (machine or suspect.strength is not None)
    ]
    facts = {**reading.first_reported, **facts}  # a fix is for the machine here
    ranked = in_order(
        [one for one in suspects if not one.refuted and (one.at_end or not one.failure.generic)]
    )
    where = tags(facts)
    causes = [_cause(one, confidence_in(one, ranked), where, facts) for one in ranked]
    if ranked and ranked[0].failure.outcome:
        causes[0] = replace(
            causes[0], evidence=(*causes[0].evidence, *reading.raised_before(ranked[0].hits))
        )
    unexplained = _is_unexplained(ranked, reading)
    ended_well = (
        bool(reading.outlines)
        and all(one.done for one in reading.outlines)
        and all(one.survived or one.severity == "warns" for one in ranked if one.hits)
    )
    shown = telling(reading.outlines)
    seen = [] if unexplained else [one for one in causes[:1] if one.in_text]
    return Diagnosis(
        causes=tuple(causes),
        ruled_out=tuple(
            RuledOut(
                code=one.failure.code, title=_filled(one.failure.title, one), evidence=one.refuted
            )
            for one in suspects
            if one.refuted is not None
        ),
        reasons=tuple(reading.reasons),
        telling=shown,
        failed=None if ended_well else _failed(seen, reading.reasons, shown),
        unexplained=unexplained,
        ended_well=ended_well,
    )


def _failed(
    seen: Sequence[Cause], reasons: Sequence[Evidence], shown: Sequence[Evidence]
) -> Evidence | None:
    """The line that says what failed: of a symptom that is sure its own, else the first that says
    why the text ended, the one that shows the first cause, or the last of the text's end. What was
    typed at a prompt, or a bare value that it printed, says nothing alone.
    """
    said = [(one, each) for one in seen for each in one.evidence if not _is_typed(each.says)]
    own = [each for _, each in said[:1]]
    sure = [each for one, each in said[:1] if one.confidence == "high"]
    return next(iter([*sure, *reasons, *own, *shown[-1:]]), None)


def _is_typed(line: str) -> bool:
    return PROMPT.match(line) is not None or line in {"True", "False", "None"}


def _is_unexplained(ranked: Sequence[Suspect], reading: TextContext) -> bool:
    """Whether a text ends badly and what is known does not say why, or just stops after a hint."""
    if not any(one.ends for one in reading.outlines):
        return bool(ranked) and ranked[0].strength == "hint" and ranked[0].end == "is elsewhere"
    return all(one.survived for one in ranked) or not ranked[0].explains_end


def explained(failure: KnownFailure) -> Cause:
    """A failure as it is known, seen nowhere: its names filled from the defaults, all its fixes."""
    return _cause(Suspect(failure=failure, strength=None), "high", frozenset(), None)


# --- suspects ---------------------------------------------------------------------------------


def _suspect(
    failure: KnownFailure, hits: Mapping[str, Hit], facts: Facts, reading: TextContext
) -> Suspect | None:
    if any(pattern in hits for pattern in failure.unless):
        return None
    found = _find_symptoms(failure, hits, reading)
    strength, seen = _strongest(found)
    if found:
        facts = {**facts, **reading.besides(seen)}
    proven = bool(failure.host) and all(holds(one, facts) for one in failure.host)
    if strength is None and not proven:
        return None
    if proven and strength == "hint":
        strength = "typical"  # the machine says so, too
    speaking = [clue for clue in failure.clues if clue.supports and holds(clue.condition, facts)]
    conditions = [*(clue.condition for clue in speaking), *(failure.host if proven else ())]
    against = [clue.condition for clue in failure.clues if not clue.supports]
    if strength == "proof":
        against = []  # the text itself says otherwise
    alone = [one for one in found if one.strength == "proof" and not one.shared]
    closing = any(reading.after(hit) <= 1 for hit in seen)
    at_end = proven or not found or any(one.at_end for one in found)
    says_why = any(one.says_why for one in found)
    supported = tuple(dict.fromkeys(_evidence(conditions, facts)))
    doubted = strength == "proof" and not (at_end or supported or failure.is_hardware_failure)
    if doubted and all(reading.ends_by_itself(hit.source) for hit in seen):
        strength = "typical"
    elsewhere = found and not (strength == "proof" or supported)
    elsewhere = elsewhere and _is_elsewhere(found, seen, reading, outcome=failure.outcome)
    return Suspect(
        failure=failure,
        strength=strength,
        hits=seen,
        supported=supported,
        decided=any(clue.decisive for clue in speaking),
        proven=proven,
        refuted=next(_evidence(against, facts), None),
        survived=bool(found) and not proven and all(one.survived for one in found),
        at_end=at_end,
        end="is elsewhere" if elsewhere else "says why" if at_end and says_why else "is near",
        is_sure=any(one.says_why or closing or failure.is_hardware_failure for one in alone),
    )


def _is_elsewhere(
    found: Sequence[_FoundSymptom], seen: Sequence[Hit], reading: TextContext, *, outcome: bool
) -> bool:
    """Whether what is no proof stands apart from the lines that say why a text ended, or says less
    than they do: a hint or, in other lines, an outcome or no failure.
    """
    if not any(one.by_a_reason for one in found):
        return True
    says_why = any(one.says_why for one in found if one.strength == found[0].strength)
    says_less = outcome or not any(reads_like_a_reason(hit.line) for hit in seen)
    less = found[0].strength == "hint" or (says_less and not says_why)
    return less and all(map(reading.is_stated, seen))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundSymptom:
    """A symptom that is there, with the lines that show it."""

    strength: Strength
    hits: Sequence[Hit]
    survived: bool
    at_end: bool
    says_why: bool
    by_a_reason: bool
    shared: bool


def _find_symptoms(
    failure: KnownFailure, hits: Mapping[str, Hit], reading: TextContext
) -> list[_FoundSymptom]:
    """The symptoms that are there. One whose parts are of several messages is a hint."""
    found = []
    for symptom in failure.symptoms:
        if not all(part in hits for part in symptom.parts):
            continue
        seen = reading.together.get(symptom.parts) or [hits[part] for part in symptom.parts]
        if failure.generic and len(seen) == 1:
            seen = [reading.last.get(symptom.parts[0], seen[0])]
        if all(IS_CODE.match(hit.line) for hit in seen):
            continue
        other = hits.get(symptom.without)
        if other is not None and is_near(other, seen[0]):
            continue
        near = len(seen) == 1 or is_together(symptom, seen)
        over = all(map(reading.is_over, seen))
        survivable = symptom.survived or any(map(reading.warned_early, seen))
        gone_on = survivable and all(map(reading.has_gone_on, seen))
        strength = symptom.strength if near else "hint"
        if strength == "hint" and all(map(reading.is_apart, seen)):
            continue
        joined = len(seen) == 1 and seen[0].joined  # two lines that may not belong together
        if strength == "proof" and (over or gone_on or joined):
            strength = "typical"
        latest = [*seen, *(reading.last[part] for part in symptom.parts if part in reading.last)]
        ends = reading.ends_with if failure.generic else reading.is_at_end
        found.append(
            _FoundSymptom(
                strength=strength,
                hits=seen,
                survived=over or gone_on,
                at_end=any(map(ends, latest)),
                says_why=any(map(reading.says_why, latest)),
                by_a_reason=any(map(reading.is_by_a_reason, latest)),
                shared=symptom.shared,
            )
        )
    return sorted(found, key=lambda one: STRENGTHS.index(one.strength))


def _strongest(found: Sequence[_FoundSymptom]) -> tuple[Strength | None, tuple[Hit, ...]]:
    """How strong the strongest symptom is, and the lines of all, the strongest first."""
    if not found:
        return None, ()
    seen = [hit for one in found for hit in one.hits]
    by_line = {(hit.source, hit.number): hit for hit in reversed(seen)}
    return found[0].strength, tuple(by_line.values())[::-1]


def _evidence(conditions: Iterable[Condition], facts: Facts) -> Iterator[Evidence]:
    """The facts by which conditions hold."""
    for one in conditions:
        if holds(one, facts):
            fact = facts[one.fact]
            said = one.says or f"{one.fact} is {in_words(fact)}"
            yield Evidence(says=said.replace("{value}", in_words(fact)), where=fact.where)


# --- words --------------------------------------------------------------------------------------


def _cause(
    one: Suspect, confidence: Confidence, where: frozenset[str], facts: Facts | None
) -> Cause:
    failure = one.failure
    fixes = [fix for fix in failure.fixes if facts is None or suits(fix, facts)]
    seen = [Evidence(says=hit.line, where=hit.where) for hit in one.hits]
    return Cause(
        code=failure.code,
        layer=failure.layer,
        title=_filled(failure.title, one),
        states=failure.states,
        cause=_filled(failure.cause, one),
        severity=one.severity,
        confidence="medium" if one.survived and confidence == "high" else confidence,
        evidence=(*seen[:_EVIDENCE_SHOWN], *one.supported),
        fixes=tuple(
            replace(fix, note=_filled(fix.note, one), run=_filled(fix.run, one, quote=True))
            for fix in pick_fixes(fixes, where)
        ),
        confirm=_filled(failure.confirm, one, quote=True),
        sources=failure.sources,
        follows_from=one.beaten_by,
        in_text=bool(one.hits),
        machine="proves" if one.proven else "agrees" if one.supported else "silent",
    )


def _filled(text: str, one: Suspect, *, quote: bool = False) -> str:
    """`{library}` of a pattern's group, else of the defaults; in shell text it is quoted."""
    found = {name: word for hit in reversed(one.hits) for name, word in hit.groups.items()}
    values = {**one.failure.defaults, **found}

    def value(name: re.Match[str]) -> str:
        word = values.get(name[1])
        if word is None:
            return name[0]
        return shlex.quote(word) if quote else word

    return PLACEHOLDER.sub(value, text) if values else text
