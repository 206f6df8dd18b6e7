"""Nodes, reduced to what a plan depends on: nodes of one class have the same plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.cli.hostfiles import FleetHost
from provision.model.plan import ComputeCapability, HostFacts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeClass:
    """Nodes with the same driver, kinds of GPU and CPU architecture.

    `facts` are those of its first node, with a label for all of them ("n1 and 41 more"); `path` is
    that node's host file. `nodes` are the names of all, `gpus` the kinds, for display.
    """

    facts: HostFacts
    path: str
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]

    @property
    def words(self) -> str:
        """Its driver and GPUs in one line."""
        gpus = ", ".join(self.gpus) or "GPUs unknown"
        arch = f", {self.facts.arch}" if self.facts.arch not in {None, "x86_64"} else ""
        return f"{gpus}, driver {self.facts.driver or 'unknown'}{arch}"


def classes_of(hosts: Iterable[FleetHost]) -> tuple[NodeClass, ...]:
    """The classes, those with most nodes first."""
    found: dict[tuple[object, ...], list[FleetHost]] = {}
    for host in hosts:
        found.setdefault(_key(host.facts), []).append(host)
    classes = [
        NodeClass(
            facts=group[0].facts._replace(label=several([one.facts.label for one in group])),
            path=group[0].path,
            nodes=tuple(one.facts.label for one in group),
            gpus=_gpus(group[0].facts),
        )
        for group in found.values()
    ]
    return tuple(sorted(classes, key=lambda one: -len(one.nodes)))


def _key(facts: HostFacts) -> tuple[object, ...]:
    """What the resolver's answer depends on."""
    kinds = None if facts.gpus is None else frozenset(_kind(facts))
    return facts.driver, facts.driver_cuda, facts.arch, kinds, facts.driver_reports_gpus


def _kind(facts: HostFacts) -> list[tuple[str | None, ComputeCapability | None]]:
    return [(gpu.name, gpu.compute_capability) for gpu in facts.gpus or ()]


def _gpus(facts: HostFacts) -> tuple[str, ...]:
    return tuple(
        name or (f"compute capability {cc[0]}.{cc[1]}" if cc else "a GPU without a name")
        for name, cc in Counter(_kind(facts))
    )


def several(names: Sequence[str], most: int = 1) -> str:
    """ "n1", "n1 and 41 more"; with `most` more of them by name."""
    shown, more = ", ".join(names[:most]), len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
