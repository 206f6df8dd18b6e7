"""How large messages are, and what memory and time leave room for: all ranks decide it together, so
that none waits alone.
"""

from __future__ import annotations

from typing import List

from verify.checks.collectives.ranks import Rank

SMALLEST, STEP = 16, 4  # bytes; the factor from one size to the next
ALWAYS = 1 << 28  # bytes of a message for which every GPU has memory and time


def sizes(largest: int) -> List[int]:
    """Message sizes in bytes, the largest last."""
    found = [largest]
    while found[-1] // STEP >= SMALLEST:
        found.append(found[-1] // STEP)
    return found[::-1]


def has(rank: Rank, *, size: int, copies: int, left_s: float, needed_s: float) -> bool:
    """Whether so many copies of a message fit, and there is the time, on every rank."""
    if size <= ALWAYS:
        return True
    rank.place.release()
    free = rank.place.free_bytes()
    here = needed_s < left_s and (free is None or size * copies < free)
    return _on_all(rank, here)


def _on_all(rank: Rank, here: bool) -> bool:  # noqa: FBT001
    import torch
    import torch.distributed as dist

    votes = torch.tensor([int(here)], device=rank.place.device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())
