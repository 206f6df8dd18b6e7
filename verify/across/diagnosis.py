"""From what the nodes sent to one report: which node is at fault, where that can be told.

A report is a JSON object: `status`, `code` (null if it passed), `message`, `cause`, `fix`,
`backend`, `nodes` (each node's number, name and ranks), `blamed` (numbers of the nodes at fault),
`suspects` (nodes that may be: a connection of theirs can have the same effect), `seconds` and
`measured` (tables, plots and metrics).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from verify.across import codes
from verify.checks.collectives import bandwidth, nccl_log, operations, ranks
from verify.checks.collectives.ranks import Team, Trace, World
from verify.model.check import Outcome, Status
from verify.model.measures import median, pack
from verify.running.children import Ending

APART_FIX = "run it on fewer nodes to find out which: provision fleet verify does so"
_NET_FIX = (
    "see that the nodes reach each other on every port and that the right interface is used: "
    "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME"
)


@dataclass(frozen=True)
class AcrossNode:
    """A node that takes part: its number, its own name, its ranks and what it runs."""

    number: int
    name: str = ""
    ranks: int = 1
    backend: str = "gloo"
    framework: str = ""
    broken: Optional[Mapping[str, Any]] = None

    def shown(self) -> Dict[str, Any]:
        """For the report."""
        return {"number": self.number, "name": self.name, "ranks": self.ranks}


@dataclass(frozen=True)
class NodeEnd:
    """How a node's ranks ended."""

    endings: Tuple[Ending, ...] = ()
    traces: Tuple[Trace, ...] = ()
    transports: Tuple[str, ...] = ()


@dataclass(frozen=True)
class AcrossEnd:
    """How it ended on all nodes; `lost` says why a node did not send its end."""

    nodes: Tuple[AcrossNode, ...]
    ends: Mapping[int, NodeEnd] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0


def names(nodes: Sequence[AcrossNode]) -> str:
    """Nodes for a message."""
    said = ["{} ({})".format(node.number, node.name or "?") for node in nodes[:8]]
    more = ", and {} more".format(len(nodes) - 8) if len(nodes) > 8 else ""
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(said) + more


def failure(
    code: str,
    message: str,
    cause: str,
    fix: str,
    *,
    blamed: Sequence[int] = (),
    nodes: Sequence[AcrossNode] = (),
    status: Status = Status.FAIL,
) -> Dict[str, Any]:
    """A report of what kept the run from starting or ending."""
    outcome = Outcome(status, " ".join(message.split()), cause, fix)
    return _report(outcome, code, nodes, blamed)


def missing(numbers: Sequence[int], nodes: Sequence[AcrossNode], limit_s: float) -> Dict[str, Any]:
    """The report if not all nodes came."""
    said = ", ".join(map(str, numbers[:16])) + (" ..." if len(numbers) > 16 else "")
    message = "node {} of {} did not join within {:.0f} s".format(
        said, len(numbers) + len(nodes), limit_s
    )
    cause = "the command does not run there, or cannot reach the first node"
    fix = "see whether it runs there, and that the first node's port can be reached from there"
    return failure("across-node-missing", message, cause, fix, blamed=numbers, nodes=nodes)


def mismatch(nodes: Sequence[AcrossNode]) -> Optional[Dict[str, Any]]:
    """The report if the nodes that came cannot work together."""
    broken = [node for node in nodes if node.broken]
    if broken:
        first = broken[0].broken or {}
        return failure(
            "across-gpu-unusable",
            "{}: {}".format(names(broken), first.get("message")),
            str(first.get("cause") or "unknown"),
            str(first.get("fix") or "run the suite on this node alone"),
            blamed=[node.number for node in broken],
            nodes=nodes,
        )
    for what, of in (("backend", _backend), ("framework", _framework)):
        kinds = sorted({of(node) for node in nodes})
        if len(kinds) > 1:
            groups = ["{}: {}".format(k, names([n for n in nodes if of(n) == k])) for k in kinds]
            fix = "give every node its GPUs" if what == "backend" else "run one image on all nodes"
            cause = "the nodes do not have the same {}".format(what)
            return failure("across-mismatch", "; ".join(groups), cause, fix, nodes=nodes)
    return None


def _backend(node: AcrossNode) -> str:
    return node.backend


def _framework(node: AcrossNode) -> str:
    return node.framework


# A run that started


def judge(end: AcrossEnd) -> Dict[str, Any]:
    """The report of a run in which all nodes started their ranks."""
    nodes = end.nodes
    if end.lost:
        gone = [node for node in nodes if node.number in end.lost]
        why = end.lost[gone[0].number]
        message = "{} was lost: {}".format(names(gone), why)
        fix = "see whether the node is up, and whether its job was ended"
        cause = "the node or its job ended, or its connection to the first node"
        report = failure(
            "across-node-lost", message, cause, fix, blamed=sorted(end.lost), nodes=nodes
        )
        return {**report, "seconds": end.seconds}
    world = _world(end)
    team = world.team
    measured: Dict[str, Any] = {"device": team.kind, "ranks": team.size}
    if world.lost:
        return {**_judge_lost(world, nodes, measured), "seconds": end.seconds}
    values: List[Mapping[str, Any]] = world.values
    rows = [value["operations"] for value in values]
    answers = operations.judge_operations(_with_values(world, rows))
    measured.update(answers.measured)
    if answers.status is not Status.PASS:
        return {**_judge_wrong(answers, rows, nodes), "seconds": end.seconds}
    found = bandwidth.series([value["bandwidth"] for value in values], team.size)
    shown = pack(bandwidth.metrics(team, found), [bandwidth.table(found)], [bandwidth.plot(found)])
    for kind, more in shown.items():
        measured[kind] = [*measured.get(kind, []), *more]
    ways = sorted({way for one in end.ends.values() for way in one.transports})
    measured["transports"] = ways
    measured["largest"] = _largest(found)
    message = "{} nodes: {}{}".format(len(nodes), answers.message, _speed(found))
    outcome = Outcome(Status.PASS, message, measured=measured)
    return {**_report(outcome, None, nodes), "seconds": end.seconds}


def _largest(found: Sequence[bandwidth.BandwidthSeries]) -> List[Dict[str, Any]]:
    """Bus bandwidth of each operation's largest messages in GB/s: each sample."""
    names_of = dict.fromkeys(one.operation for one in found)
    best = [max((s for s in found if s.operation == n), key=lambda s: s.bytes) for n in names_of]
    return [{"operation": s.operation, "bytes": s.bytes, "gbs": list(s.gbs)} for s in best]


def _speed(found: Sequence[bandwidth.BandwidthSeries]) -> str:
    best = _largest(found)
    said = ["{operation} {0:.3g} GB/s".format(median(row["gbs"]), **row) for row in best]
    return "; bus bandwidth " + ", ".join(said) if said else ""


def _world(end: AcrossEnd) -> World:
    backend = end.nodes[0].backend
    ends = [end.ends[node.number] for node in end.nodes]
    endings = tuple(ending for one in ends for ending in one.endings)
    traces = tuple(trace for one in ends for trace in one.traces)
    return World(Team(backend, len(endings)), endings, traces)


def _with_values(world: World, rows: Sequence[Any]) -> World:
    endings = [Ending(value=row, returned=True, seconds=0.0) for row in rows]
    return World(world.team, tuple(endings))


def node_of(rank: int, nodes: Sequence[AcrossNode]) -> int:
    """The number of the node that has the rank."""
    for node in nodes:
        if rank < node.ranks:
            return node.number
        rank -= node.ranks
    raise ValueError("no node has this rank")


def _judge_lost(
    world: World, nodes: Sequence[AcrossNode], measured: Mapping[str, Any]
) -> Dict[str, Any]:
    backend = world.team.backend
    rank, certain = ranks.blamed(world)
    outcome = ranks.judge_lost(world, backend, measured, fix_else=_NET_FIX)
    ending = world.endings[rank]
    row = codes.HANG
    if not ending.timed_out:
        log = world.traces[rank].log
        text = "\n".join(filter(None, (ending.raised, nccl_log.telling(log))))
        row = codes.classify(text)
        if row == codes.UNKNOWN and not ending.raised:
            row = codes.DIED
    number = node_of(rank, nodes)
    suspects = [number] if certain and row.own else []
    unsure = ending.timed_out or ending.signal == "SIGABRT" or row == codes.UNKNOWN
    blamed = [] if unsure else suspects
    where = names([node for node in nodes if node.number == number])
    named = Outcome(
        outcome.status,
        outcome.message + (", on " + where if not ending.timed_out or certain else ""),
        outcome.cause,
        outcome.fix,
        outcome.measured,
    )
    return _report(named, row.code, nodes, blamed, [] if blamed else suspects)


def _judge_wrong(
    answers: Outcome, rows: Sequence[Sequence[Mapping[str, Any]]], nodes: Sequence[AcrossNode]
) -> Dict[str, Any]:
    """A wrong answer, and whose numbers were wrong: from which ranks, and received by which."""
    cells = {
        (node_of(receiver, nodes), node_of(sender, nodes))
        for receiver, found in enumerate(rows)
        for row in found
        for sender in row.get("senders", ())
    }
    suspect = culprit(cells)
    cause, fix = answers.cause, APART_FIX
    if not any(row["wrong"] for found in rows for row in found):  # it lacks all-reduce
        return _report(answers, "across-not-supported", nodes)
    if suspect is not None:
        who = names([node for node in nodes if node.number == suspect])
        cause = "{} took part in all that is wrong: it, or its connection".format(who)
        fix = "run the suite on this node alone; " + APART_FIX
    outcome = Outcome(Status.FAIL, answers.message, cause, fix, answers.measured, answers.expected)
    suspects = [] if suspect is None else [suspect]
    return _report(outcome, "across-wrong-result", nodes, (), suspects)


def culprit(cells: Set[Tuple[int, int]]) -> Optional[int]:
    """The one node that is in each (receiver, sender) of wrong numbers; None if none or two are."""
    common = [node for node in {n for cell in cells for n in cell} if all(node in c for c in cells)]
    return common[0] if len(common) == 1 else None


def _report(
    outcome: Outcome,
    code: Optional[str],
    nodes: Sequence[AcrossNode],
    blamed: Sequence[int] = (),
    suspects: Sequence[int] = (),
) -> Dict[str, Any]:
    found = outcome.as_dict()
    found.pop("expected")
    return {
        "across": 1,
        **found,
        "code": code,
        "backend": nodes[0].backend if nodes else None,
        "nodes": [node.shown() for node in nodes],
        "blamed": list(blamed),
        "suspects": list(suspects),
        "seconds": 0.0,
    }
