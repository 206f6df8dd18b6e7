"""Whether a machine's facts meet a condition, and what they say in words."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from provision.doctor.model import Condition, Fact, Facts, Fix, Value


def tags(facts: Facts) -> frozenset[str]:
    """What a fix's `on` may name of this machine: its distribution and family, its engines."""
    found = {str(facts[name].value) for name in ("os.id", "os.family") if name in facts}
    for fact, tag in (
        ("docker.installed", "docker"),
        ("docker.snap", "snap-docker"),
        ("docker.rootless", "rootless"),
        ("docker.desktop", "docker-desktop"),
        ("podman.installed", "podman"),
        ("wsl", "wsl"),
        ("systemd", "systemd"),
    ):
        if fact in facts and facts[fact].value is True:
            found.add(tag)
    return frozenset(found)


def holds(condition: Condition, facts: Facts) -> bool:
    """Whether the fact is known and compares so."""
    fact = facts.get(condition.fact)
    if fact is None:
        return False
    have, wanted = fact.value, condition.value
    if condition.operator in {"is", "not"}:
        same = (
            have in wanted
            if isinstance(wanted, tuple) and not isinstance(have, tuple)
            else (have == wanted)
        )
        return same == (condition.operator == "is")
    if condition.operator in {"under", "atleast"}:
        less = _less(have, wanted)
        return less is not None and less == (condition.operator == "under")
    if condition.operator == "has":
        return str(wanted) in (have if isinstance(have, tuple) else str(have))
    return _matches(str(wanted), have)


def suits(fix: Fix, facts: Facts) -> bool:
    """Whether the machine's facts let a fix be offered."""
    wanted = all(holds(condition, facts) for condition in fix.when)
    return wanted and not any(holds(condition, facts) for condition in fix.unless)


def in_words(fact: Fact) -> str:
    if isinstance(fact.value, tuple):
        return ", ".join(fact.value) or "nothing"
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    return str(fact.value)


def _less(have: Value, wanted: Value) -> bool | None:
    if isinstance(have, int) and isinstance(wanted, int):
        return have < wanted
    try:
        return Version(str(have)) < Version(str(wanted))
    except InvalidVersion:
        return None


def _matches(pattern: str, have: Value) -> bool:
    from provision.doctor.matching import searched

    words = have if isinstance(have, tuple) else (str(have),)
    return any(searched(pattern, word) for word in words)
