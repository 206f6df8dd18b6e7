"""What memory and time leave room for: decided by all ranks together, so that none waits alone."""

from __future__ import annotations

from verify.checks.collectives.ranks import Rank

ALWAYS = 1 << 28  # bytes of a message for which every GPU has memory and time


def has(rank: Rank, *, size: int, copies: int, left_s: float, needed_s: float) -> bool:
    """Whether so many copies of a message fit, and there is the time, on every rank."""
    if size <= ALWAYS:
        return True
    free = rank.place.free_bytes()
    here = needed_s < left_s and (free is None or size * copies < free)
    return _on_all(rank, here)


def _on_all(rank: Rank, here: bool) -> bool:  # noqa: FBT001
    import torch
    import torch.distributed as dist

    votes = torch.tensor([int(here)], device=rank.place.device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())
