"""`provision gate`: may a job with this image start on this node?"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from images.errors import Failure
from provision.cli.hosts import this_host
from provision.cli.paths import record_home
from provision.cli.settings import image_argument, read_image, read_places
from provision.cli.suite import (
    level_option,
    read_key_files,
    read_seconds,
    run_suite,
    timeout_option,
    trust_option,
)
from provision.errors import BadInputError
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_either

EXAMPLES = ("provision gate registry.example/team/app:1 --max-age 12h",)
DEFAULT_MAX_AGE = "24h"
_AGE = re.compile(r"([0-9]{1,5})(min|h|d)")
_UNITS = {
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_WORDS = {True: "open", False: "closed", None: "undecided"}


def options(verb: argparse.ArgumentParser) -> None:
    """Which records count, and whether the suite runs."""
    image_argument(verb, "image that the job runs")
    level_option(verb, "quick")
    verb.add_argument(
        "--max-age",
        metavar="AGE",
        default=DEFAULT_MAX_AGE,
        help=f"how old a test may be: 30min, 12h or 7d (default: {DEFAULT_MAX_AGE})",
    )
    how = verb.add_mutually_exclusive_group()
    how.add_argument("--no-test", action="store_true", help="do not run the suite")
    how.add_argument("--again", action="store_true", help="run the suite, whatever was recorded")
    timeout_option(verb, "time limit of the suite", "300")
    trust_option(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print one line: open, closed or undecided, and why."""
    from provision.verification.gate import (
        GateRule,
        answer_of_failure,
        answer_to_json,
        ask_gate,
    )
    from provision.verification.record_check import find_case

    rule = GateRule(
        level=args.level,
        max_age=read_age(args.max_age),
        timeout_s=read_seconds(args.timeout),
        test=not args.no_test,
        again=args.again,
    )
    image, trust = read_image(args.image), read_key_files(args)

    def run() -> Mapping[str, Any]:
        return _run(args, rule.level, rule.timeout_s, console)

    detail = ""
    try:
        case = find_case(image, places=read_places(args, console), facts=this_host())
        answer = ask_gate(case, rule, home=record_home(), trust=trust, run=run)
    except Failure as failure:  # the answer has the same shape
        answer, detail = answer_of_failure(failure), failure.detail
    print_either(
        args.json, answer_to_json(answer), lambda: f"{_WORDS[answer.opens]}: {answer.message}"
    )
    if detail:
        console.quote(detail)
    if answer.fix:
        console.note(f"fix: {answer.fix}")
    return answer.exit_code


def _run(
    args: argparse.Namespace, level: str, timeout_s: float, console: Console
) -> Mapping[str, Any]:
    """Run the suite; its record is the gate's."""
    from provision.attestation.record.store import GATE_RECORDS
    from provision.verification.command import Order, Recording
    from provision.verification.suite import SuiteRequest

    order = Order(
        image=args.image,
        suite=SuiteRequest(level=level, timeout_s=timeout_s),
        recording=Recording(home=record_home(), folder=GATE_RECORDS),
    )
    return run_suite(args, order, console).report


def read_age(text: str) -> timedelta:
    """The value of --max-age. BadInputError: it is none."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise BadInputError(
            f"--max-age {quoted(text)} is not an age.",
            fix="Give minutes, hours or days: 30min, 12h or 7d.",
        )
    return int(found[1]) * _UNITS[found[2]]
