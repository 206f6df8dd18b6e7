"""One sentence for what is wrong with a node; every output uses the same."""

from __future__ import annotations

from typing import List

from verify.fleet.nodes import FleetNode, Slower, Trouble
from verify.model.check import UNKNOWN
from verify.reports.compare import Key, change
from verify.reports.formatting import labels, one_line, percent, quantity


def key_words(key: Key) -> str:
    """A number's name: "speed.gemm: gemm (dtype bf16)"."""
    check, name, pairs, turn = key
    said = labels(dict(pairs))
    again = " #{}".format(turn + 1) if turn else ""
    return "{}: {}{}{}".format(check, name, " ({})".format(said) if said else "", again)


def slower_words(one: Slower) -> str:
    """A slow number, with its distance to the twins."""
    return "{}: {} against {} of {} twins ({} worse)".format(
        key_words(one.key),
        quantity(one.value, one.unit),
        quantity(one.median, one.unit),
        one.twins,
        percent(abs(change(one.median, one.value))),
    )


def whose(one: Trouble) -> str:
    """What is at fault: "node", "image, as on 9 nodes", "fault unknown"."""
    name = "fault unknown" if one.fault.at_fault == UNKNOWN else one.fault.at_fault
    return name if one.shared is None else "{}, as on {} nodes".format(name, one.shared)


def reasons(node: FleetNode) -> List[str]:
    """What is wrong with a node, the worst first; [] if nothing is."""
    said = [
        "{} ({}): {}".format(one.check, whose(one), one_line(one.message) or one.status)
        for one in node.troubles
    ]
    if node.missing is not None:
        said.append("{}: {}".format(node.missing.code, one_line(node.missing.message)))
    ordered = sorted(node.slower, key=lambda one: -abs(change(one.median, one.value)))
    return said + [slower_words(one) for one in ordered]
