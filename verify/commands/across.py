"""`verify across`: collectives over all GPUs of several nodes; one call on each node.

Exit codes: 0 correct, 1 a failure, 2 wrong usage, 7 nothing failed but NCCL was not tested, as
there are no GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import textwrap
from typing import Any, Dict, List, Tuple

from verify.across.node import AcrossOptions, run
from verify.commands.usage import Parser, show, write_whole
from verify.model.check import UsageError

_SIZE = re.compile(r"([0-9]{1,12})([KMG]?)", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_BYTES = 1 << 34
_EPILOG = """Start it on each node, with --rank 0 on the one that --master names:

  verify across --rank 0 --world 2 --master node-a:29500
  verify across --rank 1 --world 2 --master node-a:29500

NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose the network interface.
"""


def main(argv: List[str]) -> int:
    """Take part, print the report, and return the exit code. Raises UsageError."""
    options = parse(argv)
    report = run(
        AcrossOptions(
            rank=options.rank,
            world=options.world,
            host=options.master[0],
            port=options.master[1],
            run=options.run,
            sizes=options.sizes,
            join_s=options.join,
            limit_s=options.timeout,
        )
    )
    text = json.dumps(report, allow_nan=False, indent=2)
    problem = ""
    if options.report:
        try:
            write_whole(options.report, text + "\n")
        except OSError as error:
            problem = "--report {}: {}".format(options.report, error.strerror or error)
    show(text + "\n" if options.json else page(report), colour=not options.json)
    if problem:
        raise UsageError(problem)
    return exit_code(report)


def exit_code(report: Dict[str, Any]) -> int:
    """By status; a pass of gloo says nothing of NCCL."""
    if report["status"] in ("fail", "error"):
        return 1
    return 0 if report["status"] == "pass" and report["backend"] == "nccl" else 7


def page(report: Dict[str, Any]) -> str:
    """The report as text."""
    lines = _wrap("{:<5} ".format(report["status"].upper()), report["message"])
    for name in ("code", "cause", "fix"):
        if report[name]:
            lines += _wrap("      {:<7}".format(name + ":"), str(report[name]))
    for table in report["measured"].get("tables", []):
        lines += ["", table["title"], *_grid([table["columns"], *table["rows"]])]
    return "\n".join(lines) + "\n"


def _wrap(head: str, text: str) -> List[str]:
    return textwrap.wrap(
        text, 80, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )


def _grid(rows: List[List[Any]]) -> List[str]:
    cells = [["{:.3g}".format(c) if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in cells]


def parse(argv: List[str]) -> argparse.Namespace:
    """The options. Raises UsageError."""
    parser = Parser(
        prog="verify across",
        description="Test and time collectives over all GPUs of several nodes (PyTorch).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rank", type=int, required=True, metavar="R", help="number of this node, from 0")
    add("--world", type=int, required=True, metavar="N", help="number of nodes")
    add("--master", type=_master, required=True, metavar="HOST:PORT", help="where node 0 listens")
    add("--sizes", type=_sizes, default=(), metavar="LIST", help="message sizes: 64K,16M,1G")
    add("--run", default="", metavar="TEXT", help="name of this run, the same on all its nodes")
    add(
        "--join",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="how long to wait for the other nodes (default: 120 s)",
    )
    add(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="S",
        help="time limit once all are there (default: 300 s)",
    )
    add("--json", action="store_true", help="print the report as JSON")
    add("--report", metavar="FILE", help="write the report as JSON")
    options = parser.parse_args(argv)
    if options.world < 2 or not 0 <= options.rank < options.world:
        raise UsageError("--world is 2 or more, and --rank a number from 0 below it")
    return options


def _master(text: str) -> Tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host or not 0 < number < 65536 or any(c.isspace() for c in host):
        raise argparse.ArgumentTypeError("{!r} is not HOST:PORT".format(text))
    return host, number


def _sizes(text: str) -> Tuple[int, ...]:
    found = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip().upper())
        size = int(match[1]) * _UNITS[match[2]] if match else 0
        if not 4 <= size <= _MOST_BYTES:
            raise argparse.ArgumentTypeError("{!r} is not a list such as 64K,16M,1G".format(text))
        found.append(size)
    return tuple(sorted(set(found)))


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        number = float(text)
        if 1 <= number <= 86400:
            return number
    raise argparse.ArgumentTypeError("{!r} is not a number of seconds from 1".format(text))
