"""What each rank does: it joins through torch's TCPStore, and checks and times the collectives."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Dict, List, Sequence

from verify.checks.collectives import bandwidth, messages, operations, ranks
from verify.checks.collectives.ranks import Rank

MOST_ELEMENTS = 1 << 24  # of a buffer that holds a part for each rank
_ONE_HOT = 128  # numbers of each rank where only one contributes
_LEFT = "gpu-provision/left"
_POLL_S = 0.05
BY_RANK = {"all-reduce by rank": "all-reduce", "reduce-scatter by rank": "reduce-scatter"}


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of all nodes meet: torch's store on the first rank's machine. `port` 0: this
    rank has the store, at a port that it finds and writes into its folder.
    """

    host: str
    port: int
    limit_s: float


def port_path(folder: str) -> str:
    """Where the first rank writes the store's port."""
    return os.path.join(folder, "port")


def join(meeting: Meeting, keep: List[Any]) -> Callable[[Rank], None]:
    """How a rank joins; `keep` gets the store."""

    def come(rank: Rank) -> None:
        import torch.distributed as dist

        ranks.take_device(rank)
        rank.at("the connection to the store of the first rank")
        limit, size = timedelta(seconds=meeting.limit_s), rank.team.size
        first = rank.index == 0
        store = dist.TCPStore(
            meeting.host, meeting.port, size, first, timeout=limit, wait_for_workers=False
        )
        keep.append(store)
        if first:
            path = port_path(rank.folder)
            with open(path + ".new", "w", encoding="ascii") as file:
                file.write(str(store.port))
            os.replace(path + ".new", path)
        rank.at("the start of the process group")
        dist.init_process_group(
            rank.team.backend, store=store, rank=rank.index, world_size=size, timeout=limit
        )

    return come


def leave(keep: List[Any]) -> Callable[[Rank], None]:
    """How a rank leaves: when no other needs it any more. The first, which has the store, waits for
    all; to the others a store that is gone says the same.
    """

    def go(rank: Rank) -> None:
        import torch.distributed as dist

        if rank.place.is_gpu:
            dist.destroy_process_group()
        with contextlib.suppress(Exception):
            count = keep[0].add(_LEFT, 1)
            while count < rank.team.size:
                time.sleep(_POLL_S)
                count = keep[0].add(_LEFT, 0)

    return go


def exercise(rank: Rank, wanted: Sequence[int]) -> Dict[str, Any]:
    """Every collective with known answers, then their times by size in bytes."""
    size = rank.team.size
    most = operations.ELEMENTS[rank.team.backend]["standard"]
    rows = operations.known_answers(rank, max(16, min(most, MOST_ELEMENTS // size)))
    return {
        "operations": [*_by_rank(rank), *rows],
        "bandwidth": bandwidth.measure(rank, wanted) if size > 1 else [],
    }


def contribution(rank: int, turn: int, places: Any) -> Any:
    """A rank's numbers where each of a sum's blocks has the numbers of one rank alone."""
    return messages.numbers(places, rank, turn, messages.COPIED)


def _by_rank(rank: Rank) -> List[Dict[str, Any]]:
    """Sums to which each rank contributes in a block of its own, and zeros elsewhere: they are
    exact in every dtype for any number of ranks, and a wrong block names the rank.
    """
    rows = []
    for name, operation in BY_RANK.items():
        for dtype in operations.DTYPES:
            rank.at("the input of {} of {}".format(name, dtype))
            parts = _one_hot(rank, operation, dtype)
            rows.append(operations.attempt(rank, name, dtype, _run(rank, operation, dtype, parts)))
    return rows


def _run(
    rank: Rank, operation: str, dtype: str, parts: Callable[[int], messages.Part]
) -> Callable[[], Dict[str, Any]]:
    elements = rank.team.size * _block(rank.team.size)
    return lambda: operations.repeat(rank, operation, dtype, elements, parts, blocks=True)


def _block(size: int) -> int:
    return max(1, min(_ONE_HOT, MOST_ELEMENTS // size**2))


def _one_hot(rank: Rank, operation: str, dtype: str) -> Callable[[int], messages.Part]:
    """Parts for each round. What this rank gives is computed once, as an input would be; what is
    expected of the others is known.
    """
    import torch

    size, device, kind = rank.team.size, rank.place.device, getattr(torch, dtype)
    block = _block(size)
    places = torch.arange(block, device=device)
    scatters = operation == "reduce-scatter"
    own = [contribution(rank.index, turn, places) for turn in range(operations.ROUNDS)]

    def parts(turn: int) -> messages.Part:
        def part(number: int) -> Any:
            source = number // size if scatters else number
            whole = torch.zeros(size * block, dtype=kind, device=device)
            others = source != rank.index
            numbers = contribution(source, turn, places) if others else own[turn]
            whole[source * block : (source + 1) * block] = numbers.to(kind)
            return whole

        return part

    return parts
