"""One round: `verify across` on disjoint groups of nodes at the same time, in their image."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from images.text.printable import printable
from provision.errors import BadInputError
from provision.fleet.across.search import Group, GroupEnd
from provision.fleet.nodes.calls import NodeCall
from provision.fleet.nodes.in_image import (
    MARGIN_S,
    ImageWork,
    NodeRun,
    run_in_image,
    suite_command,
)
from provision.fleet.nodes.work import NodeLimits
from provision.fleet.on_node.image import WAYS

OTHER_WAYS = tuple(way for way in WAYS if way != "provision")
"""A checkout on the nodes runs only the suite."""
_END_S = 60.0
_PORTS = range(20000, 32000)  # below those that Linux gives to outgoing connections
_TRIES = 3
_GONE = frozenset({"across-node-missing", "across-node-lost"})
"""Codes whose blame is not enough: a node that still answers was cut off."""


class AcrossError(BadInputError):
    """Fewer than two nodes answer, or their frameworks differ."""

    code = "across-not-possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossOrder:
    """What the nodes run. `master` is the first node's address, "{node}" stands for its name;
    `join_s` is how long nodes wait for each other, `timeout_s` how long a run may then take.
    """

    image: str
    ways: tuple[str, ...] = OTHER_WAYS
    master: str = "{node}"
    interface: str | None = None
    sizes: str | None = None
    join_s: float = 300.0
    timeout_s: float = 300.0
    wait_s: float = 0.0  # for a job to start

    def work(self, number: int, group: Group, port: int, run: str) -> ImageWork:
        """What one node of a group runs."""
        address = self.master.replace("{node}", group[0])
        words = [
            *("across", "--rank", str(number), "--world", str(len(group)), "--run", run, "--json"),
            *("--master", f"[{address}]:{port}" if ":" in address else f"{address}:{port}"),
            *("--join", f"{self.join_s:g}", "--timeout", f"{self.timeout_s:g}"),
            *(("--sizes", self.sizes) if self.sizes else ()),
        ]
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        return ImageWork(
            image=self.image,
            command=suite_command(*words),
            timeout_s=self.limit_s,
            ways=self.ways,
            network="host",
            environment=dict.fromkeys(names, self.interface) if self.interface else {},
        )

    @property
    def limit_s(self) -> float:
        """How long the command may take."""
        return self.join_s + self.timeout_s + _END_S


class GroupRun(NamedTuple):
    """What became of one group: `report` is the suite's, of the first node that has one; `named`
    are nodes at fault by themselves, and why.
    """

    nodes: Group
    ok: bool
    code: str | None
    message: str
    named: Mapping[str, str]
    report: Mapping[str, Any] | None

    @property
    def gbs(self) -> float | None:
        """Bus bandwidth of the largest all-reduce, in GB/s: the median of the samples."""
        rows = _dict(_dict(self.report).get("measured")).get("largest")
        for row in rows if isinstance(rows, list) else []:
            found = _dict(row).get("gbs")
            if _dict(row).get("operation") == "all-reduce" and isinstance(found, list) and found:
                return statistics.median(float(one) for one in found)
        return None


class RoundRun(NamedTuple):
    """The groups of one round, and its wall time in seconds."""

    groups: tuple[GroupRun, ...]
    seconds: float


@dataclass
class Rounds:
    """Runs rounds on nodes, and keeps what became of them. `tell` gets each when it has ended."""

    calls: Mapping[str, NodeCall]
    order: AcrossOrder
    tell: Callable[[RoundRun], None]
    done: list[RoundRun] = field(default_factory=list)

    def run(self, groups: Sequence[Group]) -> list[GroupEnd]:
        """One round. AcrossError: the nodes cannot be tested together; ToolMissing: ssh or srun is
        not installed.
        """
        began = time.monotonic()
        found = self._attempt(groups)
        for _ in range(_TRIES - 1):
            again = [run.nodes for run in found if run.code == "across-port-taken"]
            if not again:
                break
            news = {run.nodes: run for run in self._attempt(again)}
            found = [news.get(run.nodes, run) for run in found]
        made = RoundRun(tuple(found), time.monotonic() - began)
        self.done.append(made)
        self.tell(made)
        return [GroupEnd(run.ok, run.named) for run in found]

    def _attempt(self, groups: Sequence[Group]) -> list[GroupRun]:
        ports = secrets.SystemRandom().sample(_PORTS, len(groups))
        run = secrets.token_hex(6)
        work = {
            node: self.order.work(number, group, port, run)
            for group, port in zip(groups, ports, strict=True)
            for number, node in enumerate(group)
        }
        calls = [self.calls[node] for group in groups for node in group]
        limits = NodeLimits(len(calls), self.order.limit_s + 2 * MARGIN_S + self.order.wait_s)
        runs = run_in_image(calls, lambda call: work[call.name], limits, lambda _: None)
        by_name = {one.name: one for one in runs}
        return [end_of(group, [by_name[node] for node in group]) for group in groups]


def end_of(group: Group, runs: Sequence[NodeRun]) -> GroupRun:
    """What became of a group, from what its nodes answered, in its order. AcrossError: they cannot
    be tested together.
    """
    reports = {one.name: one.json for one in runs if _is_report(one.json)}
    named = {one.name: _why(one) for one in runs if one.name not in reports}
    first = next((reports[node] for node in group if node in reports), None)
    if first is None:
        return GroupRun(group, ok=False, code=None, message="", named=named, report=None)
    told = next((r for r in reports.values() if r["status"] != "pass"), first)
    if first["code"] is not None:  # what the first node says counts: it hears of all
        told = first
    message = printable(str(told.get("message")), limit=600)
    code = None if told["code"] is None else printable(str(told["code"]), limit=60)
    if code in ("across-framework", "across-mismatch"):
        raise AcrossError(
            f"The nodes cannot be tested together: {message}.",
            fix=printable(str(told.get("fix")), limit=600) + ".",
        )
    if code not in _GONE:
        for number in told.get("blamed") or ():
            if isinstance(number, int) and 0 <= number < len(group) and code != "across-port-taken":
                named.setdefault(group[number], message)
    ok = not named and all(report["status"] == "pass" for report in reports.values())
    return GroupRun(group, ok, code, message, named, told)


def _is_report(found: Any) -> bool:  # noqa: ANN401  JSON
    return isinstance(found, dict) and found.get("across") == 1 and {"status", "code"} <= set(found)


def _why(run: NodeRun) -> str:
    if run.failure is not None:
        return run.failure.message
    return f"{run.name}: the command ended there without a report of this version."


def _dict(found: Any) -> Mapping[str, Any]:  # noqa: ANN401  JSON
    return found if isinstance(found, dict) else {}
