"""Runs rows of the mutation table: `python -m tests.mutations.runner FRAMEWORK [WORD ...]`.

Prints a JSON line for each row: {"check", "fault", "sound": outcome, "seeded": outcome}. A WORD
keeps the rows whose check or fault holds it. Needs the standard library and the framework only.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, Optional

from tests.mutations import Row, tables
from verify.checks import CHECKS
from verify.children import Child
from verify.core import Check, Context, Outcome
from verify.expectations import parse
from verify.frameworks import FRAMEWORKS
from verify.runner import judge_ending, outcome_of

LIMIT_S = 300.0


def main(framework: str, words: "list[str]") -> int:
    """Run the rows of one framework."""
    FRAMEWORKS[framework].load()
    checks = {check.id: check for check in CHECKS[framework]}
    sounds: Dict[Any, Dict[str, Any]] = {}
    for row in tables().get(framework, ()):
        if words and not any(word in row.check or word in row.fault for word in words):
            continue
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


def _run(check: Check, context: Context, row: Row, seed: Optional[Callable[[], None]]) -> Outcome:
    def work() -> Dict[str, Any]:
        row.sound()
        if seed is not None:
            seed()
        return outcome_of(check, context)

    return judge_ending(Child(work).wait(min(check.limit_s, LIMIT_S)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
