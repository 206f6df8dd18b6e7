"""What the page must know to answer for a pasted error text as `provision doctor FILE` does.

Of every cause it has what is matched, how causes are ranked, and the title, so that it sees each
rival that the command sees; of the commonest ones also the other texts. All of it is read from the
doctor's own data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, TypeAlias

from provision.doctor import context, outline, reasons
from provision.doctor.knowledge import Knowledge
from provision.doctor.literals import needs_of
from provision.doctor.model import Condition, Fix, KnownFailure, Stated, Symptom
from provision.doctor.scope import within

Json: TypeAlias = dict[str, Any]

_LONGEST_WORD = 10  # letters: where a line holds no word of a pattern, it is not tried
_USUAL: tuple[object, ...] = (False, [], {}, "", "blocks")  # 0 is False
STRENGTHS = {"proof": 30, "typical": 20, "hint": 10}


def common_codes() -> tuple[str, ...]:
    """The causes that are answered, the commonest first; `data/common.json` says how they were
    counted.
    """
    file = resources.files("provision.cli.page") / "data" / "common.json"
    return tuple(json.loads(file.read_text(encoding="utf-8"))["codes"])


def causes(knowledge: Knowledge) -> Json:
    """All of it, as the scripts read it: patterns and words are numbers elsewhere."""
    stated = [
        (fact, kind.kind, one) for fact, kind in knowledge.facts.items() for one in kind.stated
    ]
    facts = {fact for fact, _, _ in stated}
    table = _Patterns()
    common = set(common_codes())
    rows = [_failure(one, table, facts, shown=one.code in common) for one in knowledge.failures]
    told = [[fact, kind, *_stated(one, table)] for fact, kind, one in stated]
    after = knowledge.patterns.after
    return {
        "failures": rows,
        "stated": told,
        "after": [[table.number(p), [*map(table.number, other)]] for p, other in after.items()],
        "outline": _outline(),
        "texts": {one.code: _texts(one, facts) for one in knowledge.failures if one.code in common},
        **table.json(),
    }


class _Patterns:
    """Each pattern once, with the words that it needs, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, pattern: str) -> int:
        return self._numbers.setdefault(pattern, len(self._numbers))

    def optional(self, pattern: str) -> int:
        """-1 for no pattern."""
        return self.number(pattern) if pattern else -1

    def json(self) -> Json:
        needs = [{word[:_LONGEST_WORD] for word in needs_of(one)[0]} for one in self._numbers]
        words = sorted({word for need in needs for word in need})
        place = {word: number for number, word in enumerate(words)}
        return {
            "patterns": list(self._numbers),
            "words": words,
            "needs": [sorted(place[word] for word in need) for need in needs],
        }


def _failure(one: KnownFailure, table: _Patterns, facts: set[str], *, shown: bool) -> Json:
    """What is matched of a cause, and by what it is ranked; what is usual is left out."""
    found: Json = {
        "code": one.code,
        "title": "" if shown else one.title,
        "defaults": {} if shown or "{" not in one.title else dict(one.defaults),
        "often": one.often,
        "severity": one.severity,
        "outcome": one.outcome,
        "generic": one.generic,
        "hardware": one.layer == "hardware",
        "symptoms": [_symptom(symptom, table) for symptom in one.symptoms],
        "unless": [*map(table.number, one.unless)],
        "beats": list(one.beats),
        "clues": [
            [_condition(clue.condition, said=shown), clue.supports, clue.decisive]
            for clue in one.clues
            if clue.condition.fact in facts
        ],
    }
    if one.host and all(condition.fact in facts for condition in one.host):
        found["host"] = [_condition(condition, said=shown) for condition in one.host]
    return {key: value for key, value in found.items() if value not in _USUAL}


def _symptom(one: Symptom, table: _Patterns) -> list[Any]:
    parts = [*map(table.number, one.parts)]
    row = [parts, STRENGTHS[one.strength], within(one), table.optional(one.without)]
    row += [one.survived, one.shared]
    while row[-1] in (False, -1):
        row.pop()
    return row


def _condition(one: Condition, *, said: bool) -> list[Any]:
    value = one.value
    return [one.fact, one.operator, value, *([one.says] if said else [])]


def _stated(one: Stated, table: _Patterns) -> list[Any]:
    return [table.number(one.pattern), one.value, one.differs, table.optional(one.unless)]


def _outline() -> Mapping[str, str]:
    """By which lines a run ends, and how."""
    return {
        "ends": _any_of(outline.ENDS),
        "done": _any_of(outline.DONE),
        "raised": _any_of([outline.RAISED]),
        "ended": _any_of(outline.ENDED),
        "rows": _any_of(outline.ROWS),
        "isCounted": outline.IS_COUNTED.pattern,
        "gaveUp": outline.GAVE_UP.pattern.decode(),
        "readEnough": outline.READ_ENOUGH.pattern,
        "warning": outline.WARNING.pattern,
        "code": outline.CODE,
        "chain": outline.CHAIN.pattern.decode(),
        "ordinary": context.ORDINARY.pattern,
        "reports": context.REPORTS.pattern,
        "wrapper": reasons.WRAPPER.pattern,
        "telling": reasons.TELLING.pattern,
        "prefix": reasons.PREFIX.pattern,
        "mild": reasons.MILD.pattern,
        "frame": reasons.FRAME.pattern,
        "says": reasons.SAYS.pattern,
        "gpuLine": reasons.GPU_LINE.pattern,
    }


def _any_of(patterns: Sequence[str]) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def _texts(one: KnownFailure, facts: set[str]) -> Json:
    return {
        "layer": one.layer,
        "title": one.title,
        "cause": one.cause,
        "confirm": one.confirm,
        "defaults": dict(one.defaults),
        "sources": list(one.sources),
        "fixes": [_fix(fix) for fix in one.fixes if not _is_for_known_machines(fix, facts)],
    }


def _is_for_known_machines(fix: Fix, facts: set[str]) -> bool:
    """Whether it is offered only where a fact is known that no text states."""
    if any(condition.fact in facts for condition in (*fix.when, *fix.unless)):
        raise ValueError("a fix depends on a fact that texts state; the page's script cannot tell")
    return bool(fix.when)


def _fix(fix: Fix) -> Json:
    return {"on": list(fix.on), "note": fix.note, "run": fix.run}
