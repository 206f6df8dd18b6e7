"""`verify render REPORT.json`: convert a report to the formats that the suite writes.

Without an output option it prints the report as text.
"""

from __future__ import annotations

import argparse
import importlib
import os
from typing import Dict, List, Mapping, Optional, Sequence

from verify.commands.compare import add_tolerance
from verify.commands.usage import Parser, check_writable, columns, show, write_whole
from verify.model.check import UsageError
from verify.model.report import Report
from verify.reports import compare, shape
from verify.reports.report import table

# Each is a module of verify.reports with a `render(report) -> str`.
FORMATS = {
    "junit": "JUnit XML, for CI",
    "html": "an HTML page",
    "markdown": "Markdown, for a CI job summary",
    "prometheus": "metrics for node_exporter's textfile collector",
    "verdict": "the verdict in the form of NVIDIA Health Validation (JSON)",
}


def main(argv: Sequence[str]) -> int:
    """Write the requested files."""
    options = _parser().parse_args(list(argv))
    files = targets(options)
    check_targets(files)
    report = with_comparison(shape.read(options.report), baseline(options), options.tolerance)
    if not files:
        show(table(report, options.columns or columns()))
    problems = write_all(files, report)
    if problems:
        raise UsageError("; ".join(problems))
    return 0


def add_options(parser: Parser) -> None:
    """Add the options that the suite also has."""
    for name, told in FORMATS.items():
        parser.add_argument("--" + name, metavar="FILE", help="write " + told)
    parser.add_argument("--baseline", metavar="FILE", help="earlier report (JSON) to compare with")
    add_tolerance(parser)


def targets(options: argparse.Namespace) -> Dict[str, str]:
    """The files to write, by format."""
    asked = {name: getattr(options, name) for name in FORMATS}
    return {name: path for name, path in asked.items() if path is not None}


def check_targets(files: Mapping[str, str]) -> None:
    """Fail before the work is done if a file cannot be written or would be written twice."""
    seen: Dict[str, str] = {}
    for name, path in files.items():
        other = seen.setdefault(os.path.realpath(path), name)
        if other != name:
            raise UsageError("--{} and --{} name the same file, {}".format(other, name, path))
        check_writable("--" + name, path)


def baseline(options: argparse.Namespace) -> Optional[Report]:
    """The report to compare with, if one is named."""
    return shape.read(options.baseline) if options.baseline is not None else None


def with_comparison(report: Report, earlier: Optional[Report], tolerance: float) -> Report:
    """The report, with a comparison to the earlier one. A run that was interrupted is not worse for
    what it did not run.
    """
    if earlier is None or "interrupted" in report["environment"]:
        return report
    return {**report, "comparison": compare.compare(earlier, report, tolerance)}


def write_all(files: Mapping[str, str], report: Report) -> List[str]:
    """Write each file. If one cannot be written, the others still are."""
    problems = []
    for name, path in files.items():
        text = importlib.import_module("verify.reports." + name).render(report)
        try:
            write_whole(path, text)
        except OSError as error:
            problems.append("--{} {}: {}".format(name, path, error.strerror or error))
    return problems


def _parser() -> Parser:
    parser = Parser(
        prog="verify render",
        description="Convert a report to other formats; without options, print it as text.",
    )
    parser.add_argument("report", metavar="REPORT", help="the report (JSON)")
    parser.add_argument(
        "--columns",
        type=int,
        metavar="N",
        help="columns of the text (default: those of the terminal)",
    )
    add_options(parser)
    return parser
