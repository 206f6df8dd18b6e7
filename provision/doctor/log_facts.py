"""What the texts say of the machine that they were written on, and whether it is this one. Pure.

A log may be of any machine: a colleague's, a node's of a cluster, a CI runner's. The facts of the
machine that reads it count only where two facts that tell machines apart agree, and none differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from provision.doctor.conditions import in_words
from provision.doctor.model import Evidence, Fact, Facts, Hit, LogOrigin, Value

if TYPE_CHECKING:
    from provision.doctor.knowledge import Knowledge

# By fact, each value that the texts give it, with the first line that does.
ReportedFacts: TypeAlias = Mapping[str, tuple[Fact, ...]]

# One of them may be the same by accident: a kernel of a distribution, a host called node1.
_TELLING = {
    "machine.name": "host name",
    "kernel.release": "kernel",
    "driver.version": "driver",
    "gpu.names": "GPU",
}
_COMPARED = {**_TELLING, "kernel.arch": "architecture", "wsl": "WSL"}
_ENOUGH = 2
_NONE: Mapping[str, tuple[str, Value]] = {  # where a machine is known to have none
    "driver.version": ("driver.installed", False),
    "gpu.names": ("gpu.count", 0),
}


def read_log_facts(
    knowledge: Knowledge,
    hits: Mapping[str, Hit],
    every_hit: Callable[[Collection[str]], Mapping[str, list[Hit]]],
) -> ReportedFacts:
    """The facts that a text's lines state, each value once, in the order of the lines. `every_hit`
    finds all lines of some patterns.
    """
    rows = [
        (fact, kind.kind, one)
        for fact, kind in knowledge.facts.items()
        for one in kind.reported_by
        if one.pattern in hits and one.unless not in hits
    ]
    every = every_hit({one.pattern for _, _, one in rows}) if rows else {}
    seen: list[tuple[int, str, Fact]] = []
    for fact, kind, one in rows:
        lines = every[one.pattern] or [hits[one.pattern]]  # a wrapped line is only there
        if one.differs:
            lines = list(_differing(lines))[:1]
        for hit in lines:
            value: Value | None = one.value
            if value is None:
                value = True if one.differs else _value(kind, hit.groups.get("value", ""))
            if value is not None:
                seen.append((hit.number, fact, Fact(value=value, where=hit.where)))
    found: dict[str, dict[Value, Fact]] = {}
    for _, fact, stated in sorted(seen, key=lambda each: each[0]):
        found.setdefault(fact, {}).setdefault(stated.value, stated)
    return {fact: tuple(values.values()) for fact, values in found.items()}


def merged(one: ReportedFacts, other: ReportedFacts) -> ReportedFacts:
    """What two texts say, the first before the second."""
    return {fact: (*one.get(fact, ()), *other.get(fact, ())) for fact in {**one, **other}}


def first_of(reported: ReportedFacts) -> Facts:
    return {name: values[0] for name, values in reported.items()}


def origin_of(reported: ReportedFacts, here: Facts) -> LogOrigin:
    """Whether the machine that the texts are from is the one that has the facts."""
    in_container = any(fact.value is True for fact in reported.get("machine.container", ()))
    agree: list[tuple[str, Evidence]] = []
    differ: list[Evidence] = []
    for name, words in _COMPARED.items():
        if name == "machine.name" and in_container:  # a container has a name of its own
            continue
        have = _have(name, here)
        if have is None:
            continue
        for fact in reported.get(name, ()):
            says = f"{words} {in_words(fact)}"
            if _is_among(name, fact, have):
                agree.append((name, Evidence(says=says, where=fact.where)))
            else:  # the answer may be shown to others: it does not name the machine
                other = "another" if name == "machine.name" else in_words(have)
                says = f"{says} ({other} here)"
                differ.append(Evidence(says=says, where=fact.where))
    if differ:
        return LogOrigin(agreement="differs", says=tuple(differ))
    telling = {name: evidence for name, evidence in agree if name in _TELLING}
    if len(telling) >= _ENOUGH:
        return LogOrigin(agreement="agrees", says=tuple(telling.values()))
    return LogOrigin(agreement="silent")


def _have(name: str, here: Facts) -> Fact | None:
    """What a machine has; "none" where it is known to have none."""
    other, value = _NONE.get(name, ("", ""))
    if name not in here and other in here and here[other].value == value:
        return Fact(value="none", where=here[other].where)
    return here.get(name)


def _is_among(name: str, reported: Fact, have: Fact) -> bool:
    mine = have.value if isinstance(have.value, tuple) else (have.value,)
    theirs = reported.value if isinstance(reported.value, tuple) else (reported.value,)
    return all(any(_is_same(name, one, other) for other in mine) for one in theirs)


def _is_same(name: str, reported: Value, have: Value) -> bool:
    if name == "machine.name":  # with a domain, or without
        return str(reported).split(".")[0].lower() == str(have).split(".")[0].lower()
    if name == "gpu.names":  # a table of nvidia-smi cuts long ones; old drivers leave out NVIDIA
        short, long = (str(one).removeprefix("NVIDIA ").strip() for one in (reported, have))
        return (
            long.startswith(short.removesuffix("...")) if short.endswith("...") else short == long
        )
    return reported == have


def _value(kind: str, text: str) -> Value | None:
    if kind == "int":
        return int(text) if text.isdecimal() else None
    return (text.strip(),) if kind == "list" else text


def _differing(hits: Iterable[Hit]) -> Iterable[Hit]:
    """The lines that say something else than one before them about the same."""
    first: dict[str | None, str | None] = {}
    for hit in hits:
        value = hit.groups.get("value")
        if first.setdefault(hit.groups.get("of"), value) != value:
            yield hit
