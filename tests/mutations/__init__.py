"""The mutation table: for each check of the suite, faults that it must catch.

A row first runs its check in a sound world, where it must pass, and then once more with one fault
seeded, where it must fail and say so. Both run in a child of one process that has imported the real
framework (`runner.py`, by that framework's own Python), so a row's functions import it themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Tuple

from verify.checks import CHECKS


def as_it_is() -> None:
    """This machine serves as the sound world."""


@dataclass(frozen=True)
class Row:
    """One fault for one check.

    `sound` makes a world in which the check passes, where this machine is none (no GPU, say): it
    replaces the smallest part that touches the hardware. `seed` then breaks that world.
    """

    check: str
    fault: str  # a sentence: what is broken
    seed: Callable[[], None]
    word: str  # a telling part of the message, the cause or the fix
    sound: Callable[[], None] = as_it_is
    level: str = "standard"
    expect: Mapping[str, Any] = field(default_factory=dict)  # as the expectations file has it
    status: str = "fail"
    on_cpu: bool = False  # the sound world is this very machine: real code, real numbers


def rows(check: str, *faults: Tuple[Any, ...], **same: Any) -> Tuple[Row, ...]:
    """The faults of one check, each as (what is broken, its seed, a telling word) and, where it
    matters, what the image expects. Without a `sound`, this machine is the sound world.
    """
    same = {"on_cpu": "sound" not in same, **same}
    return tuple(
        Row(check, fault, seed, word, **({**same, "expect": expect[0]} if expect else same))
        for fault, seed, word, *expect in faults
    )


def tables() -> Dict[str, Tuple[Row, ...]]:
    """Every row, by framework: `ROWS` of each module here is such a dictionary.

    A check that is the same for every framework has its rows with PyTorch. They are the others',
    too: a suite may leave such a check out, or ask the framework for what it judges.
    """
    found: Dict[str, Tuple[Row, ...]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "runner"):
        rows = importlib.import_module(__name__ + "." + module).ROWS
        for framework, some in rows.items():
            found[framework] = (*found.get(framework, ()), *some)
    for framework in set(found) - {"pytorch"}:
        shared = {check.id for check in CHECKS[framework] if not check.framework}
        found[framework] += tuple(row for row in found["pytorch"] if row.check in shared)
    return found
