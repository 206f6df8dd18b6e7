"""Names of nodes as people write them on a command line: "n[0-3,7],login1", as Slurm does."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.errors import BadInputError
from provision.fleet.nodes.calls import NodeCall
from provision.model.request import quoted

_MOST = 100_000
_ITEM = re.compile(
    r"(?P<head>[A-Za-z0-9._-]+)(?:\[(?P<ranges>[0-9,-]+)\](?P<tail>[A-Za-z0-9._-]*))?"
)
_RANGE = re.compile(r"(?P<low>[0-9]{1,15})(?:-(?P<high>[0-9]{1,15}))?")
_COMMA = re.compile(r",(?![^\[]*\])")  # not one within brackets


def expand_names(text: str) -> tuple[str, ...]:
    """The names of a list, in its order, each once: "n[08-10]" is n08, n09, n10. BadInputError: it
    is none, or has more than 100,000 names.
    """
    found: dict[str, None] = {}
    for item in _COMMA.split(text):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise _unreadable(text)
        head, ranges, tail = match["head"], match["ranges"], match["tail"] or ""
        if ranges is None:
            found[head] = None
            continue
        for part in ranges.split(","):
            bounds = _RANGE.fullmatch(part)
            if bounds is None:
                raise _unreadable(text)
            low, width = int(bounds["low"]), len(bounds["low"])
            high = int(bounds["high"] or low)
            if high < low:
                raise _unreadable(text)
            if high - low + len(found) >= _MOST:
                raise BadInputError(
                    f"--nodes {quoted(text)} has more than {_MOST:,} names.",
                    fix="Name fewer nodes.",
                )
            found |= {f"{head}{number:0{width}}{tail}": None for number in range(low, high + 1)}
    return tuple(found)


def _unreadable(text: str) -> BadInputError:
    return BadInputError(
        f"--nodes {quoted(text)} is not a list of nodes.",
        fix="Separate names by commas, and fold numbers as Slurm does: --nodes 'n[0-3,7],login1'",
    )


def choose_calls(calls: Sequence[NodeCall], names: Sequence[str]) -> tuple[NodeCall, ...]:
    """The calls to these nodes. BadInputError: there is no such node."""
    wanted = set(names)
    absent = sorted(wanted - {call.name for call in calls})
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise BadInputError(
            f"--nodes: there is no node {', '.join(absent[:3])}{more}.",
            fix="Use the names that fleet detect gives the nodes.",
        )
    return tuple(call for call in calls if call.name in wanted)
