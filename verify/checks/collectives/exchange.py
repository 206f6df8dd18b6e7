"""Collectives between devices of one process: each device's input and expected output, from NumPy.

A framework moves the numbers; expected answers and measurements are the same for all frameworks.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from verify.checks.collectives import bandwidth, messages, operations, ranks, room
from verify.checks.collectives.messages import (
    COPIED,
    REDUCING,
    numbers,
    numbers_below,
    sources,
)
from verify.checks.collectives.operations import (
    BEFORE,
    DTYPES,
    ELEMENTS,
    MISPLACED,
    OTHER,
    ROUNDS,
    UNSUPPORTED,
    judge_operations,
)
from verify.checks.collectives.ranks import ONE_GPU, Rank, Team
from verify.model.check import Context, Outcome, Status
from verify.model.measures import seconds_each

LIMIT_S = {"cuda": 240.0, "cpu": 90.0}
# Bytes, four times those of bandwidth.py: a framework takes a tenth of a millisecond to start a
# collective, which must be negligible compared with the largest message's time on a link.
LARGEST = {
    "cuda": {"quick": 1 << 20, "standard": 1 << 28, "full": 1 << 30},
    "cpu": bandwidth.LARGEST["gloo"],
}
FEW, MANY = 4, 32  # calls that are timed as one; many if a few take too little time
LEAST, MOST = 1 << 20, 1 << 31  # bytes, as each size is compiled; numbers, for indices of 32 bits
SHORT_S = 0.02  # twenty times what it takes to start a program
# Messages of XLA and TensorFlow if they lack an operation or a dtype
_OTHERS = r"|UNIMPLEMENTED|not in list of allowed values|No OpKernel"
LACKS = re.compile(UNSUPPORTED.pattern + _OTHERS)

Part = Callable[[int], Any]  # the input of the device or block with this number
Join = Callable[[List[Any]], Any]  # a framework's arrays, one after the other
Run = Callable[[int], object]  # makes this many calls in one program and waits for them
Timer = Callable[[str, int], Tuple[int, Run]]  # (operation, bytes) to (counted bytes, run)


class Collectives(Protocol):
    """A framework's collectives."""

    @property
    def operations(self) -> Sequence[str]:
        """The operations that it has."""

    def __call__(self, name: str, dtype: str, given: List[Any]) -> List[Any]:
        """Each device's output, from each device's input, as NumPy arrays."""

    def free_bytes(self) -> Optional[int]:
        """What a device has free; None if the framework does not say it."""

    def wrong(self, name: str, dtype: str, elements: int) -> List[Tuple[int, int]]:
        """How many numbers each device got wrong, and the first of them: parts of so many numbers
        are made and compared on the devices.
        """


def given(name: str, part: Part, i: Any, n: int, join: Optional[Join] = None) -> Any:
    """The input of device i of n; one block per device for operations that scatter."""
    scatters = name in ("reduce-scatter", "all-to-all")
    return _joined(part, [[i * n + to] for to in range(n)] if scatters else [[i]], join)


def known(name: str, part: Part, i: Any, n: int, join: Optional[Join] = None) -> Any:
    """The expected output of device i of n."""
    return _joined(part, sources(name, i, n), join)


def _joined(part: Part, blocks: Sequence[Sequence[int]], join: Optional[Join]) -> Any:
    import numpy as np

    return (join or np.concatenate)([sum(map(part, numbers)) for numbers in blocks])


def parts(name: str, places: Any, n: int, turn: int = 0) -> Part:
    """The numbers at these places, in a framework's array: three times a place might overflow."""
    modulus = numbers_below(n) if name in REDUCING else COPIED
    within = places % modulus
    return lambda number: numbers(within, number, turn, modulus)


def check_operations(
    context: Context, found: "Tuple[Optional[Outcome], Team]", start: Callable[[], Collectives]
) -> Outcome:
    """Run every operation of `start`'s exchange on all devices; `found` is `find_team`'s result."""
    broken, team = found
    if broken or _alone(team):
        return broken or _one_gpu()
    sizes = ELEMENTS["nccl" if team.kind == "cuda" else "gloo"]
    elements = sizes[context.level]
    largest = operations.LARGEST["nccl" if team.kind == "cuda" else "gloo"]
    full = context.level == "full"
    wanted = [size for size in room.sizes(largest) if size >= LEAST] if full else []

    def work(rank: Rank) -> List[List[Dict[str, Any]]]:
        return _all(rank, start(), elements, wanted)

    return judge_operations(ranks.run_together(team, work, LIMIT_S[team.kind]))


def _alone(team: Team) -> bool:
    return team.kind == "cuda" and team.size == 1


def _one_gpu() -> Outcome:
    return Outcome(Status.SKIP, ONE_GPU, measured={"ranks": 1})


def _all(
    rank: Rank, exchange: Collectives, elements: int, wanted: Sequence[int]
) -> List[List[Dict[str, Any]]]:
    """Each device's rows, one per operation of the framework and dtype."""
    tried = [
        _try(rank, exchange, name, dtype, elements)
        for name in exchange.operations
        for dtype in DTYPES
    ]
    large = [
        _sized(rank, exchange, rows[0], wanted)
        for rows in tried
        if wanted and rows[0]["dtype"] in operations.LARGE_DTYPES and "unsupported" not in rows[0]
    ]
    return [[row[i] for row in [*tried, *large]] for i in range(rank.team.size)]


def _sized(
    rank: Rank, exchange: Collectives, like: Dict[str, Any], wanted: Sequence[int]
) -> List[Dict[str, Any]]:
    """Each device's row for messages of these sizes, as far as there is memory and time."""
    name, dtype = like["operation"], like["dtype"]
    width = operations.LARGE_DTYPES[dtype]

    def enough(size: int, left_s: float, needed_s: float) -> bool:
        free = exchange.free_bytes()
        most = room.ALWAYS if free is None else MOST * width
        if size > most:
            return False
        return room.fits(size, operations.COPIES, free, left_s=left_s, needed_s=needed_s)

    def once(size: int) -> List[Dict[str, Any]]:
        rank.at("{} of {}, {}".format(name, dtype, operations.in_words(size)))
        count = messages.elements(name, size // width, rank.team.size)
        row = {**like, "kind": OTHER, "total": size // width, "bytes": size}
        found = exchange.wrong(name, dtype, count)
        return [{**row, "wrong": wrong, "place": place} for wrong, place in found]

    return room.at_sizes(wanted, enough, once)


def _try(
    rank: Rank, exchange: Collectives, name: str, dtype: str, elements: int
) -> List[Dict[str, Any]]:
    empty = {"operation": name, "dtype": dtype, "wrong": 0, "total": 0, "kind": None}
    rank.at("{} of {}".format(name, dtype))
    try:
        rows = _rounds(rank.team.size, exchange, name, dtype, elements)
    except Exception as error:
        if not LACKS.search(str(error)):
            raise
        lacking = {**empty, "unsupported": str(error).strip().partition("\n")[0][:200]}
        return [lacking] * rank.team.size
    return [{**empty, **row} for row in rows]


def _rounds(
    size: int, exchange: Collectives, name: str, dtype: str, elements: int
) -> List[Dict[str, Any]]:
    """Repeat the operation with other numbers."""
    rows: List[Dict[str, Any]] = [{"total": 0} for _ in range(size)]
    before: List[Any] = [None] * size
    for turn in range(ROUNDS):
        part = _part(name, elements, turn, size)
        got = exchange(name, dtype, [given(name, part, i, size) for i in range(size)])
        for i in range(size):
            right = known(name, part, i, size)
            if "wrong" not in rows[i]:
                rows[i] = _row(got[i], right, before[i], rows[i]["total"])
            before[i] = right
    return rows


def _part(name: str, elements: int, turn: int, n: int) -> Part:
    import numpy as np

    return parts(name, np.arange(elements), n, turn)


def _row(got: Any, right: Any, before: Any, total: int) -> Dict[str, Any]:
    import numpy as np

    if got.shape != right.shape:
        return {"wrong": int(right.size), "total": int(right.size), "kind": OTHER}
    at = got != right
    wrong = int(at.sum())
    if not wrong:
        return {"total": total + int(right.size)}
    kind = OTHER
    if before is not None and (got[at] == before[at]).all():
        kind = BEFORE
    elif (np.sort(got) == np.sort(right)).all():
        kind = MISPLACED
    return {"wrong": wrong, "total": int(right.size), "kind": kind}


# Bandwidth


def check_bandwidth(
    context: Context, found: "Tuple[Optional[Outcome], Team]", start: Callable[[], Timer]
) -> Outcome:
    """Time all-reduce and all-gather by message size; `found` is `find_team`'s result."""
    broken, team = found
    if broken or _alone(team):
        return broken or _one_gpu()
    wanted = room.sizes(LARGEST[team.kind][context.level])

    def work(rank: Rank) -> List[Any]:
        """Every device takes part in each call, so all have the same times."""
        return [_measure(rank, start(), wanted)] * team.size

    limit_s = LIMIT_S[team.kind]
    return bandwidth.watched(context, team, lambda: ranks.run_together(team, work, limit_s))


def _measure(rank: Rank, timer: Timer, wanted: Sequence[int]) -> List[Dict[str, Any]]:
    rows = []
    for name in ("all-reduce", "all-gather"):
        for size in wanted:
            moved, run = timer(name, size)
            rank.at("{} bytes".format(moved))
            seconds = _seconds(run, rank.team.kind)
            rows.append({"operation": name, "bytes": moved, "seconds": seconds})
    return rows


def _seconds(run: Run, kind: str) -> List[float]:
    """Seconds of one call."""
    first = min(seconds_each(lambda: run(FEW), repeats=2, warm_up=1))
    calls = MANY if kind == "cuda" and first < SHORT_S else FEW
    found = seconds_each(lambda: run(calls), repeats=bandwidth.REPEATS, warm_up=1)
    return [seconds / calls for seconds in found]
