"""`verify fleet LIST`: judge the reports of many machines, and compare twins.

LIST has one JSON object a line: `node` (its name), and either `report` (the path of its report)
with `expect` (its expectations, or null) and `code` (the suite's exit code, or null if it is not
known), or `failure` (`code`, `message`, `fix`: why there is no report). `provision fleet verify`
writes it. `--across` names its result for the nodes together. Exit codes: those of
`verify.fleet.summary.exit_code`.
"""

from __future__ import annotations

import json
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple

from verify.commands import main as cli
from verify.commands.judge import JudgeRequest, recompute
from verify.commands.render import check_targets
from verify.commands.usage import Parser, show, write_whole
from verify.fleet import across, junit, page, prometheus
from verify.fleet.nodes import FleetResult, Missing, Reader
from verify.fleet.summary import exit_code, to_json
from verify.model import expectations
from verify.model.check import LEVELS, Check, UsageError
from verify.reports import shape
from verify.reports.report import exit_code as code_of

_LONGEST_LINE = 1 << 20  # a node of 16 GPUs with their specifications has ten kilobytes
_LONGEST_REASON = 1000

FORMATS = {"junit": junit.render, "html": page.render, "prometheus": prometheus.render}


def main(argv: Sequence[str]) -> int:
    """Judge all, write the requested files, print the result as JSON."""
    options = _parser().parse_args(list(argv))
    files = {name: getattr(options, name) for name in FORMATS if getattr(options, name)}
    check_targets(files)
    fleet = read(options.list, options.level, options.require)._replace(name=options.image)
    if options.across:
        fleet = fleet._replace(together=across.read(options.across))
    written = [_write(name, path, fleet) for name, path in files.items()]
    problems = [problem for problem in written if problem]
    show(json.dumps(to_json(fleet)) + "\n")
    if problems:
        raise UsageError("; ".join(problems))
    return exit_code(fleet)


def _write(name: str, path: str, fleet: FleetResult) -> str:
    """Write one file; returns why it could not be written, or ""."""
    try:
        write_whole(path, FORMATS[name](fleet))
    except OSError as error:
        return "--{} {}: {}".format(name, path, error.strerror or error)
    return ""


def read(path: str, level: str, require: Optional[str] = None) -> FleetResult:
    """The fleet that a list describes, one report in memory at a time."""
    reader, lists = Reader(), cli.all_checks()
    for row in _rows(path):
        name, failure = row["node"], row["failure"]
        if failure is not None:
            reader.missing(name, Missing(*(failure[key] for key in Missing._fields)))
        else:
            _judge(reader, name, row, level, require, lists)
    return reader.finish()


_TEXT = {"type": "string", "maxLength": 10_000}
_ROW = {
    "type": "object",
    "required": ["node", "failure"],
    "properties": {
        "node": {"type": "string", "minLength": 1, "maxLength": 1000},
        "failure": {
            "type": ["object", "null"],
            "required": list(Missing._fields),
            "properties": dict.fromkeys(Missing._fields, _TEXT),
        },
        "report": {"type": ["string", "null"], "maxLength": 10_000, "pattern": r"^[^\0]+$"},
        "expect": {"type": ["object", "null"]},
        "code": {"type": ["integer", "null"]},
    },
    "if": {"properties": {"failure": {"type": "null"}}},
    "then": {
        "required": ["report", "expect", "code"],
        "properties": {"report": {"type": "string"}},
    },
}


def _rows(path: str) -> Iterator[Mapping[str, Any]]:
    """The lines of a list. UsageError: one is malformed."""
    try:
        with open(path, "rb") as file:
            lines = iter(lambda: file.readline(_LONGEST_LINE + 1), b"")
            for number, line in enumerate(lines, 1):
                row, problem = _row(line)
                if problem:
                    raise UsageError("{}, line {}: {}".format(path, number, problem))
                yield row
    except OSError as error:
        raise UsageError("{}: {}".format(path, error.strerror or error)) from error


def _row(line: bytes) -> Tuple[Any, Optional[str]]:
    """The row in a line, and its problem."""
    if len(line) > _LONGEST_LINE:
        return None, "longer than {} MiB".format(_LONGEST_LINE >> 20)
    try:
        row = json.loads(line.decode("utf-8"))
    except ValueError as error:
        return None, str(error)
    except RecursionError:
        return None, "nested too deeply"
    return row, next(shape.problems(row, _ROW), None)


def _judge(
    reader: Reader,
    name: str,
    row: Mapping[str, Any],
    level: str,
    require: Optional[str],
    lists: Mapping[str, Sequence[Check]],
) -> None:
    try:
        report = shape.read(row["report"])
        asked = JudgeRequest(level, require=require, expect=_expect(row["expect"]))
        verdict, why, faults = recompute(report, lists, asked)
    except UsageError as error:
        said = str(error).replace("{}: ".format(row["report"]), "")
        if isinstance(error.__cause__, OSError):  # that says nothing of the node
            reader.missing(
                name,
                Missing(
                    code="report-unreadable",
                    message="{}: its report cannot be read here: {}".format(name, said),
                    fix="Test the node again.",
                ),
            )
        else:
            reader.missing(name, _refused("bad-report", name, said))
        return
    claimed = report["verdict"]
    if claimed != verdict:
        said = "it says {}, but its checks add up to {} ({})".format(claimed, verdict, why)
        reader.missing(name, _refused("report-contradiction", name, said))
    elif row["code"] is not None and row["code"] != code_of(report):
        said = "it says {}, but the suite ended with exit code {}".format(claimed, row["code"])
        reader.missing(name, _refused("report-contradiction", name, said))
    else:
        reader.report(name, report, verdict, faults)


def _refused(code: str, name: str, said: str) -> Missing:
    return Missing(
        code,
        "{}: the report is refused: {}".format(name, said[:_LONGEST_REASON]),
        "If the image was built by another version, build it again: provision build. Otherwise "
        "do not rely on it.",
    )


def _expect(found: Any) -> expectations.Expectations:
    """The expectations that a row has."""
    if found is None:
        return expectations.Expectations()
    try:
        return expectations.parse(json.dumps(found))
    except expectations.ExpectationsError as error:
        raise UsageError("its expectations: {}".format(error)) from error


def _parser() -> Parser:
    parser = Parser(
        prog="verify fleet",
        description="Judge the reports of many machines, and compare machines of one kind.",
    )
    add = parser.add_argument
    add("list", metavar="LIST", help="a line of JSON for each node")
    add("--level", choices=LEVELS, required=True, help="the requested level")
    add("--require", metavar="NAMES", help="fail where these checks were skipped")
    add("--image", metavar="NAME", help="the image, by the name under which the nodes have it")
    add("--across", metavar="FILE", help="what the nodes did together, as JSON")
    add("--junit", metavar="FILE", help="write JUnit XML, for CI")
    add("--html", metavar="FILE", help="write an HTML page")
    add("--prometheus", metavar="FILE", help="write metrics for node_exporter's collector")
    return parser
