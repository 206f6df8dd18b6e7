"""The least bus bandwidth of large messages: a share of what machines of the class reach, from
floors.json with its sources, or of what the link can do.
"""

from __future__ import annotations

import json
import pkgutil
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, Optional

from verify.checks.health.links import Link
from verify.device.telemetry import State

LARGE = 1 << 26  # bytes; smaller messages take the time to start a collective, and are not judged


@dataclass(frozen=True)
class Floor:
    """A bandwidth in GB/s below which is a finding, and what it is a part of."""

    gbs: float
    of_gbs: float
    words: str


@lru_cache(maxsize=1)
def published() -> Dict[str, Any]:
    """The data file."""
    data = pkgutil.get_data("verify.checks.collectives", "floors.json")
    found: Dict[str, Any] = json.loads(data or b"")
    return found


def floor(
    seen: State, link: Optional[Link], operation: str, size: int, *, by_class: bool = True
) -> Optional[Floor]:
    """The floor for a message of `size` bytes over this link; None if nothing is known of it, as in
    MIG mode, or of encrypted memory. `by_class`: the published figures were measured in this way.
    """
    if link is None or size < LARGE or seen.confidential:
        return None
    row = _row(seen, size) if by_class and link.nvlink and operation == "all-reduce" else None
    shares = [Floor(link.gbs * link.share, link.gbs, link.words + " can do")] if link.share else []
    if row:
        least = row["gbs"] * published()["least_share"]
        shares.append(Floor(least, row["gbs"], row["class"] + " reach"))
    return max(shares, key=lambda one: one.gbs, default=None)


def _row(seen: State, size: int) -> Optional[Dict[str, Any]]:
    """The row of the largest message that is no larger; a part of a machine's GPUs has none."""
    names = [gpu.name or "" for gpu in seen.gpus]
    rows = [
        row
        for row in published()["rows"]
        if row["gpus"] == len(names)
        and row["bytes"] <= size
        and all(re.search(row["cards"], name) for name in names)
    ]
    return max(rows, key=lambda row: int(row["bytes"]), default=None)
