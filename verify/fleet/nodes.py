"""The values of a fleet: what each node's report says, in the space that 10,000 nodes allow."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from verify.fleet.across import FleetTogether
from verify.fleet.twins import LEAST_TWINS, compare_twins, with_fewer
from verify.model.check import IMAGE, NODE, UNKNOWN, gpus
from verify.model.report import Environment, MetricRow, Report
from verify.reports.compare import Key, keyed, noise
from verify.reports.formatting import state
from verify.running.faults import CheckFault, decisive

STANDINGS = ("unfit", "slow", "not-tested", "no-verdict", "fit")
"""Worst first. "slow": fit, or without a verdict, but slower than its twins."""
NO_REPORT = frozenset({"node-no-report", "bad-report", "report-contradiction"})
"""The node was reached, and its image left no report that counts."""
LEAST_SHARING = 3  # nodes on which a check ran, for one of its faults to be the image's

_INVENTORY = "devices.nvml"
_LONGEST_NUMBER = 15  # digits at the end of a name that are folded

_RESEAT = (
    "compare lspci -d 10de: with what the machine should have; a GPU that it does not list has no "
    "power, or is not seated well"
)
BoardKey = Tuple[str, ...]
"""A model of machine: its maker's name, architecture, processors and kinds of GPU."""
ClassKey = Tuple[Optional[str], str, Tuple[str, ...]]


class Trouble(NamedTuple):
    """A check that failed or broke. `shared`: on how many nodes it failed so, if that makes it the
    image's fault.
    """

    check: str
    status: str
    message: str
    fix: Optional[str]
    fault: CheckFault
    shared: Optional[int] = None


class Missing(NamedTuple):
    """Why a node has no report."""

    code: str
    message: str
    fix: str


class Slower(NamedTuple):
    """A number of a node that is worse than that of its twins."""

    key: Key
    unit: str
    better: str
    value: float
    median: float
    spread: float
    twins: int


class FleetNode(NamedTuple):
    """One node. `states`: a state for each id of `checks` ("pass-on-cpu" is one, too)."""

    name: str
    standing: str
    group: Optional[ClassKey] = None
    checks: Tuple[str, ...] = ()
    states: Tuple[str, ...] = ()
    troubles: Tuple[Trouble, ...] = ()
    missing: Optional[Missing] = None
    slower: Tuple[Slower, ...] = ()

    @property
    def fault(self) -> Optional[CheckFault]:
        """What is at fault on it; None: nothing failed."""
        return decisive(one.fault for one in self.troubles)


class TwinPlot(NamedTuple):
    """A number of a class, in which a node is slow: for a plot. `slow` are positions in `names`."""

    group: ClassKey
    key: Key
    unit: str
    better: str
    names: Tuple[str, ...]
    values: Sequence[float]
    median: float
    bound: float
    slow: Tuple[int, ...]


class FleetResult(NamedTuple):
    """All nodes, the worst first, the classes with at least one report, what the nodes did
    together, if that was tested, when the first and the last test began (UTC, as in a report), and
    the image by the name under which the nodes have it.
    """

    image: Optional[str]
    level: Optional[str]
    nodes: Tuple[FleetNode, ...]
    classes: Dict[ClassKey, Tuple[str, ...]]
    plots: Tuple[TwinPlot, ...]
    comparisons: int
    together: Optional[FleetTogether] = None
    tested: Optional[Tuple[str, str]] = None
    name: Optional[str] = None

    def count(self, standing: str) -> int:
        """How many nodes have this standing."""
        return sum(node.standing == standing for node in self.nodes)


class _Column:
    """One number of all nodes of a class."""

    def __init__(self, metric: MetricRow) -> None:
        self.unit, self.better = metric["unit"], metric["better"]
        self.nodes = array("L")
        self.values = array("d")
        self.noises = array("d")

    def add(self, node: int, metric: MetricRow) -> None:
        # another unit under the same name is a different number
        if (metric["unit"], metric["better"]) == (self.unit, self.better):
            self.nodes.append(node)
            self.values.append(float(metric["value"]))
            self.noises.append(noise(metric))


class Reader:
    """Takes nodes one by one, so that only one report is in memory; `finish` compares twins."""

    def __init__(self) -> None:
        self._nodes: List[FleetNode] = []
        self._columns: Dict[Tuple[ClassKey, Key], _Column] = {}
        self._images: "Counter[Optional[str]]" = Counter()
        self._levels: "Counter[str]" = Counter()
        self._tested: Tuple[str, ...] = ()
        self._boards: Dict[BoardKey, List[Tuple[int, int]]] = {}
        self._same: Dict[Tuple[str, ...], Tuple[str, ...]] = {}

    def missing(self, name: str, why: Missing) -> None:
        """A node without a report."""
        self._nodes.append(FleetNode(name, "not-tested", missing=why))

    def report(self, name: str, report: Report, verdict: str, faults: Sequence[CheckFault]) -> None:
        """A node's report, the verdict that its checks amount to, and their faults."""
        fault_of = {fault.check: fault for fault in faults}
        environment = report["environment"]
        self._images[environment["image"]] += 1
        self._levels[report["level"]] += 1
        moments = (*self._tested, environment["started"])
        self._tested = (min(moments), max(moments))
        group = class_of(environment)
        number = len(self._nodes)
        self._nodes.append(
            FleetNode(
                name,
                verdict,
                group,
                self._shared(check["id"] for check in report["checks"]),
                self._shared(state(check) for check in report["checks"]),
                tuple(
                    Trouble(
                        *(check["id"], check["status"], check["message"], check["fix"]),
                        fault_of[check["id"]],
                    )
                    for check in report["checks"]
                    if check["id"] in fault_of
                ),
            )
        )
        on_pci = _on_pci(report)
        if on_pci:
            board, count = on_pci
            self._boards.setdefault(board, []).append((number, count))
        if not group[2]:
            return  # machines without a GPU are not twins: nothing says that they are alike
        for key, metric in keyed(report).items():
            place = (group, key)
            if place not in self._columns:
                self._columns[place] = _Column(metric)
            self._columns[place].add(number, metric)

    def _shared(self, words: Iterable[str]) -> Tuple[str, ...]:
        found = tuple(sys.intern(word) for word in words)
        return self._same.setdefault(found, found)

    def _name_fewer(self, board: BoardKey, rows: Sequence[Tuple[int, int]]) -> None:
        """Name the nodes whose PCI bus has fewer GPUs than that of nearly all of their model."""
        found = with_fewer([count for _, count in rows])
        for place in found[1] if found else ():
            number, count = rows[place]
            message = "{} on the PCI bus; nearly all of the {} nodes of this model ({}) have {}"
            said = message.format(gpus(count), len(rows), board[0], found[0] if found else "")
            fault = CheckFault(_INVENTORY, UNKNOWN, "fail")
            node, trouble = self._nodes[number], Trouble(_INVENTORY, "fail", said, _RESEAT, fault)
            self._nodes[number] = node._replace(
                standing="unfit", troubles=(trouble, *node.troubles)
            )

    def finish(self) -> FleetResult:
        """The fleet, after its last node."""
        usable = {
            place: column
            for place, column in self._columns.items()
            if len(column.values) >= LEAST_TWINS
        }
        comparisons = sum(len(column.values) for column in usable.values())
        slower: Dict[int, List[Slower]] = {}
        plots: List[TwinPlot] = []
        for (group, key), column in usable.items():
            found = compare_twins(column.values, column.noises, column.better, comparisons)
            if found is None or not found.slow:
                continue
            for place in found.slow:
                slower.setdefault(column.nodes[place], []).append(
                    Slower(
                        key,
                        column.unit,
                        column.better,
                        column.values[place],
                        found.median,
                        found.spread,
                        len(column.values),
                    )
                )
            names = tuple(self._nodes[node].name for node in column.nodes)
            plots.append(
                TwinPlot(
                    *(group, key, column.unit, column.better, names, column.values),
                    *(found.median, found.bound, tuple(found.slow)),
                )
            )
        for board, rows in self._boards.items():
            self._name_fewer(board, rows)
        nodes = [
            _with_slower(node, tuple(slower.get(number, ())))
            for number, node in enumerate(with_shared(self._nodes))
        ]
        nodes.sort(key=lambda node: (STANDINGS.index(node.standing), -len(node.troubles)))
        classes: Dict[ClassKey, List[str]] = {}
        for node in self._nodes:
            if node.group is not None:
                classes.setdefault(node.group, []).append(node.name)
        ordered = sorted(classes.items(), key=lambda pair: -len(pair[1]))
        return FleetResult(
            next((image for image, _ in self._images.most_common(1)), None),
            next((level for level, _ in self._levels.most_common(1)), None),
            tuple(nodes),
            {group: tuple(names) for group, names in ordered},
            tuple(plots),
            comparisons,
            tested=(self._tested[0], self._tested[-1]) if self._tested else None,
        )


def with_shared(nodes: Sequence[FleetNode]) -> List[FleetNode]:
    """The nodes, in whose faults those that most of them have are the image's: more than half of
    the nodes, at least three, on which the check ran. What no image can cause stays the node's.
    """
    ran: "Counter[str]" = Counter()
    failed: "Counter[CheckFault]" = Counter()
    for node in nodes:
        ran.update(c for c, s in zip(node.checks, node.states) if s in ("pass", "fail", "error"))
        failed.update(one.fault for one in node.troubles)
    shared = {
        fault: count
        for fault, count in failed.items()
        if ran[fault.check] >= LEAST_SHARING
        and 2 * count > ran[fault.check]
        and fault.at_fault in (NODE, UNKNOWN)
        and not fault.certain
    }
    return [
        node._replace(troubles=tuple(_as_shared(one, shared) for one in node.troubles))
        for node in nodes
    ]


def _as_shared(one: Trouble, shared: Dict[CheckFault, int]) -> Trouble:
    if one.fault not in shared:
        return one
    return one._replace(fault=one.fault._replace(at_fault=IMAGE), shared=shared[one.fault])


def _on_pci(report: Report) -> Optional[Tuple[BoardKey, int]]:
    """The model of machine, and how many GPUs its PCI bus has, usable here or not."""
    environment = report["environment"]
    product = environment.get("machine", {}).get("product")
    rows = [check for check in report["checks"] if check["id"] == _INVENTORY]
    count = rows[0]["measured"].get("on_pci") if rows else None
    if not product or not isinstance(count, int) or not count:
        return None
    kinds = sorted({str(gpu["name"]) for gpu in environment["gpus"]})
    return (product, environment["arch"], str(environment["cpus"]), *kinds), count


def class_of(environment: Environment) -> ClassKey:
    """The class: driver, processor, and the GPUs with their number."""
    counts = Counter(
        "{}{}".format(gpu["name"] or "unnamed GPU", ", MIG" if gpu["mig"] else "")
        for gpu in environment["gpus"]
    )
    gpus = tuple("{} x {}".format(counts[name], name) for name in sorted(counts))
    return environment["driver"], environment["arch"], gpus


def class_words(group: ClassKey) -> str:
    """A class in one line."""
    driver, arch, gpus = group
    return "{}, driver {}, {}".format(", ".join(gpus) or "no GPU", driver or "not visible", arch)


def _with_slower(node: FleetNode, slower: Tuple[Slower, ...]) -> FleetNode:
    standing = "slow" if slower and node.standing in ("fit", "no-verdict") else node.standing
    return node._replace(slower=slower, standing=standing)


def fold_names(names: Sequence[str], most: int = 1000) -> str:
    """Names as Slurm writes them, numbers folded: "n[001-128,130], login1"."""
    groups: Dict[Tuple[str, int], List[int]] = {}
    for name in names:
        head = name.rstrip("0123456789")
        width = len(name) - len(head)
        if width > _LONGEST_NUMBER:
            head, width = name, 0
        groups.setdefault((head, width), []).append(int(name[len(head) :] or 0))
    said = ", ".join(_folded(*key, sorted(set(found))) for key, found in groups.items())
    return said if len(said) <= most else said[: most - 4].rpartition(",")[0] + ", ..."


def _folded(head: str, width: int, numbers: List[int]) -> str:
    """Names of one head, and numbers of one width."""
    if not width:
        return head
    runs: List[List[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [
        "-".join("{:0{w}}".format(number, w=width) for number in sorted({low, high}))
        for low, high in runs
    ]
    return "{}[{}]".format(head, ",".join(parts)) if len(numbers) > 1 else head + parts[0]
