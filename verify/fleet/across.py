"""What nodes did together, as `provision fleet verify --across` found it: read, and in words.

docs/json.md has the format ("across"). Names and messages are those of the nodes, and tables and
plots come from one of them, so everything is checked.
"""

from __future__ import annotations

import json
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from verify.model.check import UsageError
from verify.model.report import MetricRow, PlotRow, TableRow
from verify.reports import shape

_LIMIT_BYTES = 64 * 1024 * 1024
_MOST = 8  # names in a sentence


class Fault(NamedTuple):
    """What is wrong: `kind` is a word of docs/fleet.md, `nodes` are those that it names."""

    kind: str
    nodes: Tuple[str, ...]
    message: str


class PairReading(NamedTuple):
    """A node's best bus bandwidth in a pair, and its share of the median of all nodes."""

    node: str
    gbs: float
    share: float


class FleetTogether(NamedTuple):
    """The nodes together. `ranks`: each node of the largest group that worked, and its ranks."""

    status: str
    backend: Optional[str]
    message: str
    faults: Tuple[Fault, ...]
    complete: bool
    rounds: int
    ranks: Tuple[Tuple[str, int], ...]
    readings: Tuple[PairReading, ...]
    metrics: Tuple[MetricRow, ...]
    tables: Tuple[TableRow, ...]
    plots: Tuple[PlotRow, ...]
    exit_code: int

    @property
    def standing(self) -> str:
        """What that is for a node: the words of `STANDINGS`."""
        if self.exit_code == 5:
            return "not-tested"
        return {0: "fit", 7: "no-verdict"}.get(self.exit_code, "unfit")


_NAMES = {"type": "array", "items": {"type": "string"}}
_READING = {"node": {"type": "string"}, "gbs": {"type": "number"}, "share": {"type": "number"}}
_NAMED = {"node": {"type": "string"}, "message": {"type": "string"}}
_MEASURED = {
    kind: {"type": "array", "items": {"$ref": "#/$defs/{}".format(kind[:-1])}}
    for kind in ("metrics", "tables", "plots")
}


def _rows(properties: Any) -> Any:
    row = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "array", "items": row}


_RULE = {
    "type": "object",
    "required": [
        *("status", "backend", "named", "sick", "links", "parts", "suspects", "together"),
        *("complete", "rounds", "readings", "report", "exit_code"),
    ],
    "properties": {
        "status": {"enum": ["pass", "fail"]},
        "backend": {"type": ["string", "null"]},
        "named": _rows(_NAMED),
        "sick": _NAMES,
        "links": {"type": "array", "items": {**_NAMES, "minItems": 2, "maxItems": 2}},
        "parts": {"type": "array", "items": _NAMES},
        "suspects": _NAMES,
        "together": {"type": "boolean"},
        "complete": {"type": "boolean"},
        "rounds": _rows({"groups": _rows({"nodes": _NAMES, "ok": {"type": "boolean"}})}),
        "readings": _rows(_READING),
        "exit_code": {"enum": [0, 1, 5, 7]},
        "report": {
            "type": ["object", "null"],
            "required": ["message", "nodes", "measured"],
            "properties": {
                "message": {"type": "string"},
                "nodes": _rows({"name": {"type": "string"}, "ranks": {"type": "integer"}}),
                "measured": {"type": "object", "properties": _MEASURED},
            },
        },
    },
}


def read(path: str) -> FleetTogether:
    """The result in a file. UsageError: it cannot be read, or is not one."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_LIMIT_BYTES).decode("utf-8"))
        problem = next(shape.problems(found, _RULE), None)
    except OSError as error:
        raise UsageError("{}: {}".format(path, error.strerror or error)) from error
    except (ValueError, RecursionError) as error:
        raise UsageError("{}: not JSON: {}".format(path, error)) from error
    if problem:
        raise UsageError("{}: not a result of --across: {}".format(path, problem))
    report = found["report"] or {"message": "no node answered", "nodes": [], "measured": {}}
    measured = report["measured"]
    return FleetTogether(
        found["status"],
        found["backend"],
        report["message"],
        tuple(_faults(found)),
        found["complete"],
        len(found["rounds"]),
        tuple(zip(_largest(found), (node["ranks"] for node in report["nodes"]))),
        tuple(PairReading(*(row[key] for key in _READING)) for row in found["readings"]),
        tuple(measured.get("metrics", ())),
        tuple(measured.get("tables", ())),
        tuple(measured.get("plots", ())),
        found["exit_code"],
    )


def _largest(found: Any) -> Sequence[str]:
    """The names of the nodes whose report this is: of the largest group that worked, or the first.
    In the report nodes have the names that they have for themselves.
    """
    groups = [group for one in found["rounds"] for group in one["groups"]]
    worked = [group["nodes"] for group in groups if group["ok"]]
    largest: Sequence[str] = max(worked, key=len) if worked else ()
    return largest or next((group["nodes"] for group in groups), ())


def _faults(found: Any) -> Iterator[Fault]:
    for one in found["named"]:
        yield Fault("at fault", (one["node"],), one["message"])
    for node in found["sick"]:
        yield Fault("sick", (node,), "{}: fails with nodes that work with others".format(node))
    for link in found["links"]:
        said = "{} - {}: fail together, and both work with other nodes".format(*link)
        yield Fault("bad link", tuple(link), said)
    for part in found["parts"]:
        said = "{} nodes that work only with each other: {}".format(len(part), _listed(part))
        yield Fault("apart", tuple(part), said)
    if found["suspects"]:
        said = "some of {} are at fault, and the runs do not tell which"
        yield Fault("unclear", tuple(found["suspects"]), said.format(_listed(found["suspects"])))
    if found["together"]:
        said = "all pairs that were tried work, and all nodes together do not"
        yield Fault("unclear", (), said)


def _listed(names: Sequence[str]) -> str:
    more = " and {} more".format(len(names) - _MOST) if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def headline(found: FleetTogether) -> str:
    """The result in a few words: "together: 1 sick, 1 bad link"."""
    if found.standing == "not-tested":
        return "not tested together"
    if found.status == "pass":
        return "all work together"
    kinds: List[str] = [one.kind for one in found.faults]
    counts = ["{} {}".format(kinds.count(kind), kind) for kind in dict.fromkeys(kinds)]
    return "together: " + (", ".join(counts) or "failed")
