"""`verify render REPORT.json`: what the suite itself writes of a report, made later.

Without a file to write it prints the page for people.
"""

from __future__ import annotations

import argparse
import importlib
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from verify.compare import add_tolerance
from verify.core import UsageError
from verify.report import table
from verify.reports import compare, shape
from verify.usage import Parser, check_writable, show, write_whole

# Each is a module of verify.reports with a `render(report) -> str`.
FORMATS = {
    "junit": "JUnit XML, for CI",
    "html": "one page for people",
    "markdown": "Markdown, for a job's summary",
    "prometheus": "Prometheus text, for node_exporter's textfile collector",
}


def main(argv: Sequence[str]) -> int:
    """Write the files that were asked for."""
    options = _parser().parse_args(list(argv))
    files = targets(options)
    check_targets(files)
    report = with_comparison(shape.read(options.report), baseline(options), options.tolerance)
    if not files:
        show(table(report))
    problems = write_all(files, report)
    if problems:
        raise UsageError("; ".join(problems))
    return 0


def add_options(parser: Parser) -> None:
    """The options that the suite has too."""
    for name, told in FORMATS.items():
        parser.add_argument("--" + name, metavar="FILE", help="write " + told)
    parser.add_argument("--baseline", metavar="FILE", help="an earlier report to compare with")
    add_tolerance(parser)


def targets(options: argparse.Namespace) -> Dict[str, str]:
    """The files to write, by format."""
    asked = {name: getattr(options, name) for name in FORMATS}
    return {name: path for name, path in asked.items() if path is not None}


def check_targets(files: Mapping[str, str]) -> None:
    """Find out before the work is done that one cannot be written, or would be written twice."""
    seen: Dict[str, str] = {}
    for name, path in files.items():
        other = seen.setdefault(os.path.realpath(path), name)
        if other != name:
            raise UsageError("--{} and --{} name the same file, {}".format(other, name, path))
        check_writable("--" + name, path)


def baseline(options: argparse.Namespace) -> Optional[Dict[str, Any]]:
    """The report to compare with, if one is named."""
    return shape.read(options.baseline) if options.baseline is not None else None


def with_comparison(
    report: Dict[str, Any], earlier: Optional[Dict[str, Any]], tolerance: float
) -> Dict[str, Any]:
    """The report, and what became of it since the earlier one."""
    if earlier is None:
        return report
    return {**report, "comparison": compare.compare(earlier, report, tolerance)}


def write_all(files: Mapping[str, str], report: Mapping[str, Any]) -> List[str]:
    """Write each file. One that cannot be written does not keep the others from it."""
    problems = []
    for name, path in files.items():
        text = importlib.import_module("verify.reports." + name).render(report)
        try:
            write_whole(path, text)
        except OSError as error:
            problems.append("--{} {}: {}".format(name, path, error.strerror or error))
    return problems


def _parser() -> Parser:
    parser = Parser(prog="verify render", description="Make other files from a report.")
    parser.add_argument("report", metavar="REPORT", help="a report, as JSON")
    add_options(parser)
    return parser
