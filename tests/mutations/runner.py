"""Runs rows of the mutation table: `python -m tests.mutations.runner FRAMEWORK [I/N] [WORD ...]`.

Prints a JSON line for each row: {"check", "fault", "sound": outcome, "seeded": outcome}. A WORD
keeps the rows whose check or fault holds it; I/N keeps every N-th check, from the I-th. Needs the
standard library and the framework only.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

from tests.mutations import Row, tables
from verify.checks import CHECKS
from verify.model.check import Check, Context, Outcome
from verify.model.expectations import parse
from verify.model.frameworks import FRAMEWORKS
from verify.running.children import Child, scratch
from verify.running.runner import judge_ending, outcome_of

LIMIT_S = 300.0
# What a framework imports only when it is first trained with: here once, not by each row's child.
LATER = {"pytorch": ("torch._dynamo",)}


def load(framework: str) -> None:
    """Import a framework, with what its first training would import."""
    FRAMEWORKS[framework].load()
    for module in LATER.get(framework, ()):
        importlib.import_module(module)


def main(framework: str, words: "list[str]") -> int:
    """Run the rows of one framework."""
    load(framework)
    checks = {check.id: check for check in CHECKS[framework]}
    sounds: Dict[Any, Dict[str, Any]] = {}
    for row in chosen(tables().get(framework, ()), words):
        expect = json.dumps({"schema": 1, **row.expect})
        context = Context(parse(expect), row.level, framework)
        check = checks[row.check]
        key = (row.check, row.sound, row.level, expect)
        if key not in sounds:
            sounds[key] = _run(check, context, row, None).as_dict()
        seeded = _run(check, context, row, row.seed).as_dict()
        said = {"check": row.check, "fault": row.fault, "sound": sounds[key], "seeded": seeded}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    return 0


def chosen(rows: Sequence[Row], words: Sequence[str]) -> Iterator[Row]:
    """The rows that were asked for. A check's rows stay together: they share its sound world."""
    part = re.fullmatch(r"(\d+)/(\d+)", words[0]) if words else None
    first, every = map(int, part.groups()) if part else (1, 1)
    words = words[1:] if part else words
    places = {check: i for i, check in enumerate(dict.fromkeys(row.check for row in rows))}
    for row in rows:
        asked = not words or any(word in row.check or word in row.fault for word in words)
        if asked and places[row.check] % every == first - 1:
            yield row


def _run(check: Check, context: Context, row: Row, seed: Optional[Callable[[], None]]) -> Outcome:
    def work() -> Dict[str, Any]:
        row.sound()
        if seed is not None:
            seed()
        return outcome_of(check, context)

    return judge_ending(Child(work).wait(min(check.limit_s, LIMIT_S)))


if __name__ == "__main__":
    os.environ["TMPDIR"] = tempfile.tempdir = folder = scratch()
    try:
        code = main(sys.argv[1], sys.argv[2:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)
