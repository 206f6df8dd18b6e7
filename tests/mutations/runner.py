"""Runs rows of the mutation table: `python -m tests.mutations.runner FRAMEWORK [WORD ...]`.

Prints a JSON line for each row: {"check", "fault", "sound": outcome, "seeded": outcome}. A WORD
keeps the rows whose check or fault holds it. Needs the standard library and the framework only.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from tests.mutations import Row, tables
from verify.checks import CHECKS
from verify.device import baseline
from verify.model.check import Context
from verify.model.expectations import parse
from verify.model.frameworks import FRAMEWORKS
from verify.running.children import Child, Ending, patient, scratch
from verify.running.runner import judge_ending, outcome_of

LIMIT_S = 300.0
# What a framework imports only when it is first trained with: here once, not by each row's child.
LATER = {"pytorch": ("torch._dynamo",)}


def load(framework: str) -> None:
    """Import a framework, with what its first training would import."""
    FRAMEWORKS[framework].load()
    for module in LATER.get(framework, ()):
        importlib.import_module(module)


class Work(NamedTuple):
    """What one child does, and the seconds that it may take."""

    key: Any
    run: Callable[[], object]
    limit_s: float


def in_children(works: Iterable[Work]) -> Iterator[Tuple[Any, Ending]]:
    """Do each work in a child, and yield its key and ending as it ends. One child more runs at a
    time than there are cores, since faults that hang leave theirs idle.
    """
    waiting = iter(works)
    running: List[Tuple[Work, Child, float]] = []
    while True:
        while len(running) <= len(os.sched_getaffinity(0)):
            work = next(waiting, None)
            if work is None:
                break
            running.append((work, Child(work.run), time.monotonic() + patient(work.limit_s)))
        if not running:
            return
        left = []
        for work, child, deadline in running:
            ending = child.poll() or (child.kill() if time.monotonic() > deadline else None)
            if ending is None:
                left.append((work, child, deadline))
            else:
                yield work.key, ending
        if len(left) == len(running):
            time.sleep(0.01)
        running = left


def main(framework: str, words: "list[str]") -> int:
    """Run the rows of one framework, and what rows share as their sound world once."""
    load(framework)
    left = list(chosen(tables().get(framework, ()), words))
    works = {work.key: work for row in left for work in _both(row, framework)}
    outcomes: Dict[Any, Dict[str, Any]] = {}
    for key, ending in in_children(works.values()):
        outcomes[key] = judge_ending(ending).as_dict()
        while left and all(work.key in outcomes for work in _both(left[0], framework)):
            row = left.pop(0)
            sound, seeded = (outcomes[work.key] for work in _both(row, framework))
            said = {"check": row.check, "fault": row.fault, "sound": sound, "seeded": seeded}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
    return 0


def chosen(rows: Sequence[Row], words: Sequence[str]) -> Iterator[Row]:
    """The rows that were asked for."""
    for row in rows:
        if not words or any(word in row.check or word in row.fault for word in words):
            yield row


def _both(row: Row, framework: str) -> Tuple[Work, Work]:
    """The row's check in its sound world, and with the fault seeded."""
    check = next(check for check in CHECKS[framework] if check.id == row.check)
    expect = json.dumps({"schema": 1, **row.expect})
    context = Context(parse(expect), row.level, framework)

    def run(*make: Callable[[], None]) -> Callable[[], Dict[str, Any]]:
        def work() -> Dict[str, Any]:
            before = None
            for one in make:
                one()
                if check.closes:  # the sound world was there before the run
                    before = before or baseline.take(context.machine)
            return outcome_of(check, dataclasses.replace(context, before=before))

        return work

    key, limit_s = (row.check, row.sound, row.level, expect), min(check.limit_s, LIMIT_S)
    return (
        Work(key, run(row.sound), limit_s),
        Work((*key, row.fault), run(row.sound, row.seed), limit_s),
    )


if __name__ == "__main__":
    os.environ["TMPDIR"] = tempfile.tempdir = folder = scratch()
    try:
        code = main(sys.argv[1], sys.argv[2:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)
