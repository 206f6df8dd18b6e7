"""How large messages are, and what memory and time leave room for: all ranks decide it together, so
that none waits alone.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from verify.checks.collectives.ranks import Rank

SMALLEST, STEP = 16, 4  # bytes; the factor from one size to the next
LARGE_S = 8.0  # for the largest sizes of an operation and dtype
ALWAYS = 1 << 28  # bytes of a message for which every GPU has memory and time


def sizes(largest: int) -> List[int]:
    """Message sizes in bytes, the largest last."""
    found = [largest]
    while found[-1] // STEP >= SMALLEST:
        found.append(found[-1] // STEP)
    return found[::-1]


def fits(size: int, copies: int, free: Optional[int], *, left_s: float, needed_s: float) -> bool:
    """Whether so many copies of a message fit into the free memory, and there is the time."""
    return needed_s < left_s and (free is None or size * copies < free)


def has(rank: Rank, *, size: int, copies: int, left_s: float, needed_s: float) -> bool:
    """The same, on every rank."""
    if size <= ALWAYS:
        return True
    rank.place.release()
    free = rank.place.free_bytes()
    return _on_all(rank, fits(size, copies, free, left_s=left_s, needed_s=needed_s))


def at_sizes(
    wanted: Sequence[int],
    enough: Callable[[int, float, float], bool],
    once: Callable[[int], List[Dict[str, Any]]],
) -> List[Dict[str, Any]]:
    """The rows of the last size for which there is `enough`, or of the first wrong one. `once` is
    called after a wrong one, too, since other ranks may have got the right numbers.
    """
    end, last_s = time.monotonic() + LARGE_S, 0.0
    found: List[Dict[str, Any]] = []
    for size in wanted:
        began = time.monotonic()
        if found and not enough(size, end - began, last_s * STEP):
            break
        rows = once(size)
        found = [old if old["wrong"] else row for old, row in zip(found or rows, rows)]
        last_s = time.monotonic() - began
    return found


def _on_all(rank: Rank, here: bool) -> bool:  # noqa: FBT001
    import torch
    import torch.distributed as dist

    votes = torch.tensor([int(here)], device=rank.place.device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())
