"""`verify compare BASELINE REPORT`: exit code 0 if nothing got worse, 1 if something did, 2 for
bad input.
"""

from __future__ import annotations

import json
import math
from typing import Sequence

from verify.commands.usage import Parser, columns, show
from verify.model.check import UsageError
from verify.reports import compare, compare_text, shape


def main(argv: Sequence[str]) -> int:
    """Compare two reports and return the exit code."""
    options = _parser().parse_args(list(argv))
    reports = [shape.read(path) for path in (options.baseline, options.report)]
    found = compare.compare(reports[0], reports[1], options.tolerance)
    if found["unlike"] and options.alike:
        raise UsageError("--alike: " + "; ".join(found["unlike"]))
    if options.json:
        show(json.dumps(found, indent=2, allow_nan=False) + "\n")
    else:
        show(compare_text.page(found, columns()))
    return 1 if found["worse"] else 0


def tolerance(text: str) -> float:
    """Parse a share such as 0.05, for argparse."""
    value = float(text)
    if not (math.isfinite(value) and 0 <= value < 1):
        raise ValueError
    return value


def _parser() -> Parser:
    parser = Parser(
        prog="verify compare", description="Compare two reports and show what got worse."
    )
    add = parser.add_argument
    add("baseline", metavar="BASELINE", help="the earlier report (JSON)")
    add("report", metavar="REPORT", help="the later report (JSON)")
    add("--json", action="store_true", help="print the comparison as JSON")
    add_tolerance(parser)
    add("--alike", action="store_true", help="fail if GPUs, level or framework differ")
    return parser


def add_tolerance(parser: Parser) -> None:
    """Add the option that all comparing commands have."""
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        type=tolerance,
        default=compare.TOLERANCE,
        help="relative change of a metric to ignore (default: 0.05)",
    )
