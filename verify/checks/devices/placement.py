"""Where work really runs, for frameworks that move it elsewhere without an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional, Tuple

from verify.model.check import Outcome, Status

SIZE = 512  # of the square matrices that are multiplied, in float32


@dataclass(frozen=True)
class PlacedOp:
    """Where matrix products ran. Devices are named like the end of TensorFlow's names: "GPU:0"."""

    asked: str
    eager: str  # of an operation for the device
    graph: Dict[str, str]  # of a compiled function's operations for the device
    unasked: str  # of an operation that names no device
    default: str  # where that should be
    held_bytes: Optional[int] = None  # growth of the device's memory
    needed_bytes: int = SIZE * SIZE * 4


class Elsewhere(NamedTuple):
    """Why a framework runs work on another device, and the fix."""

    cause: str
    fix: str
    no_graph: str  # why a graph may show no product


def judge_placement(placed: PlacedOp, kind: str, elsewhere: Elsewhere) -> Outcome:
    """Whether eager work, a graph's work and work without a named device ran where they should."""
    measured = {
        "device": kind,
        "eager": placed.eager,
        "graph": dict(placed.graph),
        "unasked": placed.unasked,
        "held_bytes": placed.held_bytes,
    }
    expected = {"asked": placed.asked, "default": placed.default}
    fault = _misplaced(placed, elsewhere)
    if fault:
        return Outcome(Status.FAIL, *fault, measured, expected)
    message = "runs on the requested device, {}: eagerly and in a graph".format(placed.asked)
    if kind != "cuda":
        message += "; two devices of the CPU: no GPU visible"
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _misplaced(placed: PlacedOp, elsewhere: Elsewhere) -> Optional[Tuple[str, str, str]]:
    said = "a matrix product for {} ran on {}"
    if placed.eager != placed.asked:
        message = said.format(placed.asked, placed.eager or "no device")
        return message, elsewhere.cause, elsewhere.fix
    if not placed.graph:
        message = "the graph that ran has no matrix product"
        return message, elsewhere.no_graph, "see numerics.compile; build the image again"
    for name, device in placed.graph.items():
        if device != placed.asked:
            message = "{} in a graph".format(said.format(placed.asked, device or "no device"))
            return message, "{} was placed there: {}".format(name, elsewhere.cause), elsewhere.fix
    if placed.unasked != placed.default:
        message = "work that names no device runs on {}, not on {}".format(
            placed.unasked or "no device", placed.default
        )
        return message, "models that name no device would train there", elsewhere.fix
    if placed.held_bytes is not None and placed.held_bytes < placed.needed_bytes:
        message = "{} uses {} more bytes after a matrix product of {} bytes".format(
            placed.asked, placed.held_bytes, placed.needed_bytes
        )
        return message, "the result is in another device's memory", elsewhere.fix
    return None
