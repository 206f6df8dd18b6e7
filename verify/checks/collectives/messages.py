"""What ranks send each other and what each must receive, for every collective of torch.distributed.

A part's numbers depend on the part, the position and the round, so that another rank's answer, a
wrong order, or data from the previous round is detected.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from verify.checks.collectives.ranks import Rank

REDUCING = ("all-reduce", "reduce-scatter")
BLOCKED = ("all-gather", "reduce-scatter", "all-to-all")  # with a part for each rank
COPIED = 127  # numbers that are only moved: up to this all are exact in bfloat16
POISON = -1  # in every buffer before its first round; no answer is negative
PIECE = 1 << 24  # numbers that are computed and compared at once

Part = Callable[[int], Any]  # the input of the rank or block with this number
Piece = Callable[[int, int, int], Any]  # a part's numbers from one place to another
Into = Callable[[int], Any]  # the receive buffer with this many parts
Operation = Callable[[Rank, Part, Into], Any]  # what is received


def numbers_below(size: int) -> int:
    """How many different numbers ranks add up: all sums stay below 257, so exact in bfloat16."""
    return max(2, min(13, 256 // size))


def numbers(places: Any, number: int, turn: int, modulus: int) -> Any:
    """A part's values from position, part number and round; `places` is a torch or NumPy array."""
    return (places * 3 + number * 5 + turn) % modulus + 1


def elements(name: str, count: int, ranks: int) -> int:
    """The numbers of a part, if a rank gives or receives so many in all."""
    return max(1, count // (ranks if name in BLOCKED else 1))


def sources(name: str, i: int, n: int) -> List[List[int]]:
    """The numbers of the parts whose sum is each block that rank i of n receives: a broadcast comes
    from the last, since a library with a bug might use the first; a message from the previous one.
    """
    if name == "all-reduce":
        return [list(range(n))]
    if name == "all-gather":
        return [[j] for j in range(n)]
    if name == "reduce-scatter":
        return [[j * n + i for j in range(n)]]
    if name == "all-to-all":
        return [[j * n + i] for j in range(n)]
    return [[n - 1 if name == "broadcast" else (i - 1) % n]]


def piece(rank: Rank, name: str, dtype: str, turn: int) -> Piece:
    """The numbers of an operation's parts in this round, on the rank's device."""
    import torch

    device, kind = rank.place.device, getattr(torch, dtype)
    modulus = numbers_below(rank.team.size) if name in REDUCING else COPIED

    def made(number: int, start: int, end: int) -> Any:
        places = torch.arange(start, end, device=device)
        return numbers(places, number, turn, modulus).to(kind)

    return made


def part(of: Piece, elements: int) -> Part:
    """Whole parts, filled in pieces."""
    import torch

    def made(number: int) -> Any:
        first, *rest = spans(elements)
        begun = of(number, *first)
        if not rest:
            return begun
        whole = torch.empty(elements, dtype=begun.dtype, device=begun.device)
        whole[: first[1]] = begun
        for start, end in rest:
            whole[start:end] = of(number, start, end)
        return whole

    return made


def spans(elements: int) -> List[Tuple[int, int]]:
    """Where each piece begins and ends."""
    return [(start, min(start + PIECE, elements)) for start in range(0, elements, PIECE)]


def _all_reduce(rank: Rank, part: Part, _: Into) -> Any:
    import torch.distributed as dist

    got = part(rank.index)
    dist.all_reduce(got)
    return got


def _all_gather(rank: Rank, part: Part, into: Into) -> Any:
    import torch.distributed as dist

    got = into(rank.team.size)
    dist.all_gather(list(got.chunk(rank.team.size)), part(rank.index))
    return got


def _reduce_scatter(rank: Rank, part: Part, into: Into) -> Any:
    import torch.distributed as dist

    got, size = into(1), rank.team.size
    dist.reduce_scatter(got, [part(rank.index * size + to) for to in range(size)])
    return got


def _broadcast(rank: Rank, part: Part, into: Into) -> Any:
    import torch.distributed as dist

    root = rank.team.size - 1
    got = part(root) if rank.index == root else into(1)
    dist.broadcast(got, root)
    return got


def _send(rank: Rank, part: Part, into: Into) -> Any:
    """Each rank sends to the next, in a ring."""
    import torch.distributed as dist

    size = rank.team.size
    got = into(1)
    ways = [
        dist.P2POp(dist.isend, part(rank.index), (rank.index + 1) % size),
        dist.P2POp(dist.irecv, got, (rank.index - 1) % size),
    ]
    for request in dist.batch_isend_irecv(ways):
        request.wait()
    return got


def _all_to_all(rank: Rank, part: Part, into: Into) -> Any:
    import torch
    import torch.distributed as dist

    size = rank.team.size
    got = into(size)
    dist.all_to_all_single(got, torch.cat([part(rank.index * size + to) for to in range(size)]))
    return got


OPERATIONS: Dict[str, Operation] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "send and receive": _send,
    "all-to-all": _all_to_all,
}
