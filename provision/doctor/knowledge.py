"""The doctor's knowledge: `data/<layer>.toml`, read and checked.

One table a failure:

    [[failure]]
    code = '...'                       # stable, kebab-case
    layer = "container-runtime"
    title = "..."                      # what is wrong, one line
    states = "symptom"                 # the title says what a proof says, which is sure; else
                                       # it names a reason, sure only if facts of the machine agree
    cause = "..."                      # why, one or two sentences
    severity = "blocks"                # blocks | degrades | warns
    often = 5                          # 0 to 9: among causes that one text can have
    outcome = true                     # it says only that something failed; else left out
    generic = true                     # any program has it: only where a text ends with it
    symptoms = [                       # RE2; a plain string is a proof
      'text of one cause only',
      { text = 'usual text', is = "typical" },
      { all = ['one line', 'another line'], is = "hint", within = 3 },  # lines apart; see scope.py
      { text = 'failed to build', is = "typical", without = 'of another product' },  # beside it
      { text = 'will try again', is = "typical", survived = true },   # the program goes on
      { text = 'mostly of this cause', is = "proof", shared = true }, # ranks as a proof, never sure
    ]
    unless = ['a line that rules it out']
    clues = [
      { fact = "cdi.stale", is = true, says = "the specification names {value}" },
      { fact = "gpu.count", is = 0, decisive = true },
      { fact = "toolkit.installed", is = false, against = true },
    ]
    host = [{ fact = "cdi.stale", is = true }]    # proves it without any text
    beats = ["code of a consequence"]  # only where the ranks of judge.py say it wrongly
    confirm = "docker run ..."         # a command that checks the fix: 0 where all is well
    check = "test ..."                 # ... instead, where confirm only shows it ("": nothing does)
    defaults = { library = "libcuda.so.1" }       # of a pattern's named groups, used as {library}
    sources = ["https://..."]

    [[failure.fix]]
    on = ["debian"]                    # none: everybody
    when = [{ fact = "gpu.needs_open_modules", is = true }]   # offered only where all are known so
    unless = [{ fact = "wsl", is = true }]                    # not offered where one is known so
    note = "..."                       # what it does, or what to do by hand
    run = '''...'''                    # shell
    seen = "torch 2.13.0, Python 3.11"            # produced with these, and gone after the fix
    recipe = "install-container-toolkit"          # the fixes of a [[recipe]], after the note; with
                                       # `on` only those that name one of its places

A `[[recipe]]` has a name and `[[recipe.fix]]` tables like those above; it may hold the fixes of one
that stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, cast, get_args

from provision.doctor.literals import is_faint
from provision.doctor.matching import Patterns, problem
from provision.doctor.model import (
    Clue,
    Condition,
    FactPattern,
    Fix,
    KnownFailure,
    Layer,
    Operator,
    Severity,
    States,
    Strength,
    Symptom,
    Value,
)
from provision.doctor.tables import names, table
from provision.errors import CatalogError

_FAILURE_KEYS = frozenset(
    {
        "code",
        "layer",
        "title",
        "states",
        "cause",
        "severity",
        "often",
        "outcome",
        "generic",
        "symptoms",
        "unless",
    }
    | {"clues", "host", "beats", "confirm", "check", "defaults", "sources", "fix"}
)
_FIX_KEYS = frozenset(
    ["on", "when", "unless", "note", "run", "recipe", "automatic", "backup", "reboot", "seen"]
)
_OPERATORS = get_args(Operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactKind:
    """A fact that probes may find: its type ("bool", "int", "str", "list"), what it means, and the
    lines by which a text states it.
    """

    kind: str
    means: str
    reported_by: tuple[FactPattern, ...] = ()


@dataclass(frozen=True)
class Knowledge:
    """All failures, all facts that they may ask for, and their patterns, compiled when needed."""

    failures: tuple[KnownFailure, ...]
    facts: Mapping[str, FactKind] = field(default_factory=dict)

    @cached_property
    def patterns(self) -> Patterns:
        return Patterns(
            [
                *(pattern for one in self.failures for pattern in patterns_of(one)),
                *(
                    pattern
                    for kind in self.facts.values()
                    for one in kind.reported_by
                    for pattern in filter(None, (one.pattern, one.unless))
                ),
            ],
            after=_after(self.failures),
        )

    @cached_property
    def by_code(self) -> Mapping[str, KnownFailure]:
        return {one.code: one for one in self.failures}

    @cached_property
    def _by_part(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the failures that have a symptom which begins with a pattern."""
        found: dict[str, list[int]] = {}
        for number, one in enumerate(self.failures):
            for symptom in one.symptoms:
                found.setdefault(symptom.parts[0], []).append(number)
        return found

    @cached_property
    def _of_the_host(self) -> frozenset[int]:
        return frozenset(number for number, one in enumerate(self.failures) if one.host)

    def candidates(self, hits: Iterable[str], *, host: bool = False) -> list[KnownFailure]:
        """The failures, in their order, that may have a symptom among the patterns that were found:
        all others have none. `host`: and those that a machine alone can show.
        """
        numbers = set(self._of_the_host if host else ())
        for pattern in hits:
            numbers.update(self._by_part.get(pattern, ()))
        return [self.failures[number] for number in sorted(numbers)]


@cache
def load() -> Knowledge:
    """What is shipped. That it breaks no rule (`check`) is held by a test."""
    return parse({name: table(name) for name in names()})


def parse(tables: Mapping[str, Mapping[str, Any]]) -> Knowledge:
    """Failures from tables by file name; what is of another shape is named with its place."""
    recipes: dict[str, tuple[Fix, ...]] = {}
    facts: dict[str, FactKind] = {}
    for name, rows in tables.items():
        for row in rows.get("recipe", ()):
            where = f"{name}: {row['name']}"
            recipes[row["name"]] = tuple(_fixes(row.get("fix", ()), recipes, where))
        for fact, row in rows.get("fact", {}).items():
            facts[fact] = FactKind(
                kind=row["kind"],
                means=row["means"],
                reported_by=tuple(_fact_pattern(one) for one in row.get("reported_by", ())),
            )
    failures = tuple(
        _failure(row, recipes, f"{name}: {row.get('code', '?')}")
        for name, rows in tables.items()
        for row in rows.get("failure", ())
    )
    return Knowledge(failures=failures, facts=facts)


def _fact_pattern(row: Mapping[str, Any]) -> FactPattern:
    value = row.get("is")
    return FactPattern(
        pattern=row["text"],
        value=tuple(value) if isinstance(value, list) else value,
        differs=bool(row.get("differs", False)),
        unless=row.get("unless", ""),
    )


def patterns_of(failure: KnownFailure) -> Iterator[str]:
    for symptom in failure.symptoms:
        yield from symptom.parts
        yield from filter(None, [symptom.without])
    yield from failure.unless


def _after(failures: Iterable[KnownFailure]) -> Mapping[str, Sequence[str]]:
    """The faint parts of symptoms, each with the other parts; what is asked for alone is none."""
    earlier: dict[str, list[str]] = {}
    alone: set[str] = set()
    for failure in failures:
        others_lines = [*failure.unless, *(one.without for one in failure.symptoms if one.without)]
        alone |= {pattern for pattern in others_lines if is_faint(pattern)}
        for symptom in failure.symptoms:
            others = [part for part in symptom.parts if not is_faint(part)]
            for part in symptom.parts:
                if part not in others:
                    earlier.setdefault(part, []).extend(others)
            alone |= set() if others else set(symptom.parts)
    return {pattern: others for pattern, others in earlier.items() if pattern not in alone}


def check(knowledge: Knowledge) -> list[str]:
    """What is wrong with it, all of it: codes that come twice, patterns that RE2 refuses, facts
    that no probe finds, failures that cannot be seen or not be mended.
    """
    found: list[str] = []
    seen: set[str] = set()
    after = _after(knowledge.failures)
    codes = {one.code for one in knowledge.failures}
    for fact, kind in knowledge.facts.items():
        for row in kind.reported_by:
            why = problem(row.pattern)
            found += [f"{fact}: {row.pattern!r}: {why}"] * (why is not None)
    for one in knowledge.failures:
        found += [f"{one.code} comes twice"] * (one.code in seen)
        seen.add(one.code)
        for pattern in patterns_of(one):
            why = problem(pattern)
            if why is None and is_faint(pattern) and pattern not in after:
                why = "every match holds a mark, one letter or a short number, and nothing else"
            found += [f"{one.code}: {pattern!r}: {why}"] * (why is not None)
        conditions = [*one.host, *(clue.condition for clue in one.clues)]
        conditions += [condition for fix in one.fixes for condition in (*fix.when, *fix.unless)]
        found += [
            f"{one.code}: there is no fact {condition.fact!r}"
            for condition in conditions
            if condition.fact not in knowledge.facts
        ]
        found += [
            f"{one.code}: it beats {other!r}, which is not there"
            for other in one.beats
            if other not in codes
        ]
        found += [f"{one.code}: nothing shows it"] * (not one.symptoms and not one.host)
        proven = any(each.strength == "proof" and not each.shared for each in one.symptoms)
        found += [f"{one.code}: a symptom that nothing proves"] * (
            one.states == "symptom" and not proven
        )
        found += [f"{one.code}: no fix"] * (not one.fixes)
        found += [f"{one.code}: no source"] * (not one.sources)
        found += [f"{one.code}: unknown layer {one.layer!r}"] * (one.layer not in get_args(Layer))
    return found


# --- rows ---------------------------------------------------------------------------------------


def _failure(
    row: Mapping[str, Any], recipes: Mapping[str, tuple[Fix, ...]], where: str
) -> KnownFailure:
    unknown = set(row) - _FAILURE_KEYS
    if unknown:
        raise CatalogError(f"{where}: unknown keys {sorted(unknown)}.", fix="Mend the table.")
    try:
        return KnownFailure(
            code=row["code"],
            layer=row["layer"],
            title=row["title"],
            states=_one_of(row.get("states", "reason"), get_args(States)),
            cause=row["cause"],
            severity=_one_of(row.get("severity", "blocks"), get_args(Severity)),
            often=int(row.get("often", 5)),
            outcome=bool(row.get("outcome", False)),
            generic=bool(row.get("generic", False)),
            symptoms=tuple(_symptom(one) for one in row.get("symptoms", ())),
            unless=tuple(row.get("unless", ())),
            clues=tuple(
                Clue(
                    condition=_condition(one),
                    supports=not one.get("against", False),
                    decisive=bool(one.get("decisive", False)),
                )
                for one in row.get("clues", ())
            ),
            host=tuple(_condition(one) for one in row.get("host", ())),
            beats=tuple(row.get("beats", ())),
            fixes=tuple(_fixes(row.get("fix", ()), recipes, where)),
            confirm=row.get("confirm", ""),
            check=row.get("check"),
            defaults=dict(row.get("defaults", {})),
            sources=tuple(row.get("sources", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CatalogError(f"{where}: {error!r}.", fix="Mend the table.") from error


def _symptom(row: str | Mapping[str, Any]) -> Symptom:
    if isinstance(row, str):
        return Symptom(parts=(row,))
    strength = cast("Strength", _one_of(row.get("is", "proof"), get_args(Strength)))
    parts = tuple(row["all"]) if "all" in row else (row["text"],)
    unknown = set(row) - {"all", "text", "is", "within", "without", "survived", "shared"}
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)} of a symptom")
    if row.get("shared") and strength != "proof":
        raise ValueError(f"only a proof can be shared: {parts[0]!r}")
    return Symptom(
        parts=parts,
        strength=strength,
        within=int(row.get("within", 0)),
        without=row.get("without", ""),
        survived=bool(row.get("survived", False)),
        shared=bool(row.get("shared", False)),
    )


def _condition(row: Mapping[str, Any]) -> Condition:
    (operator,) = [name for name in row if name in _OPERATORS]
    value: Value = tuple(row[operator]) if isinstance(row[operator], list) else row[operator]
    return Condition(
        fact=row["fact"],
        operator=cast("Operator", operator),
        value=value,
        says=row.get("says", ""),
    )


def _fixes(
    rows: Iterable[Mapping[str, Any]], recipes: Mapping[str, tuple[Fix, ...]], where: str
) -> Iterator[Fix]:
    for row in rows:
        unknown = set(row) - _FIX_KEYS
        if unknown:
            raise CatalogError(f"{where}: unknown keys {sorted(unknown)}.", fix="Mend the fix.")
        note, on = row.get("note", ""), tuple(row.get("on", ()))
        when = tuple(map(_condition, row.get("when", ())))
        unless = tuple(map(_condition, row.get("unless", ())))
        if "recipe" in row:
            if note:
                yield Fix(on=on, when=when, unless=unless, note=note)
            if row["recipe"] not in recipes:
                raise CatalogError(f"{where}: no recipe {row['recipe']!r}.", fix="Write it first.")
            for fix in recipes[row["recipe"]]:
                if not on or set(on) & set(fix.on):
                    yield replace(fix, when=(*when, *fix.when), unless=(*unless, *fix.unless))
            continue
        yield Fix(
            on=on,
            when=when,
            unless=unless,
            note=note,
            run=row.get("run", "").strip(),
            automatic=bool(row.get("automatic", False)),
            backup=tuple(row.get("backup", ())),
            reboot=bool(row.get("reboot", False)),
            seen=row.get("seen", ""),
        )


def _one_of(value: Any, allowed: tuple[str, ...]) -> Any:  # noqa: ANN401
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
    return value
