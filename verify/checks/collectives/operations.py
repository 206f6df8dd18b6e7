"""Every collective that training uses, with answers that are known in advance.

A rank's input depends on the rank, the position in the message and the round, so that another
rank's answer, a wrong order, or data from the previous round is detected.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from verify.checks.collectives import ranks
from verify.checks.collectives.ranks import ONE_GPU, P2P_FIX, Rank, Team, World
from verify.model.check import NODE, Context, Outcome, Status
from verify.model.measures import Table, pack

LIMIT_S = {"gloo": 60.0, "nccl": 150.0}
DTYPES = ("float32", "float16", "bfloat16", "int64")
ELEMENTS = {  # of a rank's part
    "nccl": {"quick": 1 << 10, "standard": 1 << 18, "full": 1 << 22},
    "gloo": {"quick": 1 << 8, "standard": 1 << 14, "full": 1 << 17},
}
ROUNDS = 2
REDUCING = ("all-reduce", "reduce-scatter")
# Up to this, and for bfloat16 up to 2**8, every integer and all partial sums are exact.
EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8, "int64": 1 << 62}
POISON = -1  # in every buffer before its first round; no answer is negative
# What a buffer contains instead of the right numbers
NOT_WRITTEN = "was not written"
BEFORE = "has the result of the previous call"
MISPLACED = "has the right numbers in wrong places"
OTHER = "has other numbers"
STEP_S = 0.05  # delay between the ranks' arrivals at the barrier
COPIED = 127  # numbers that are only moved: up to this all are exact in bfloat16
UNSUPPORTED = re.compile(  # messages of torch's backends without an operation or a dtype
    r"no support|not (currently |yet )?(supported|implemented)|does ?n[o']t support|[Uu]nsupported|"
    r"Invalid scalar type|no backend type"
)

Part = Callable[[int], Any]  # the input of the rank or block with this number
Into = Callable[[int], Any]  # the receive buffer with this many parts
Operation = Callable[[Rank, Part, Into], Tuple[Any, Any]]  # received, expected


def check_operations(context: Context) -> Outcome:
    """Run every collective on every GPU, or with two processes if there is no GPU."""
    broken, team = ranks.find_team(context)
    if broken:
        return broken
    if team.backend == "nccl" and team.size == 1:
        return Outcome(Status.SKIP, ONE_GPU, measured={"ranks": 1})
    elements = ELEMENTS[team.backend][context.level]
    return judge_operations(ranks.run(team, lambda r: _all(r, elements), LIMIT_S[team.backend]))


# What each rank does


def _all(rank: Rank, elements: int) -> List[Dict[str, Any]]:
    # Before what gloo may refuse: its barrier waits for earlier operations, too, and in PyTorch 2.0
    # it can raise the error of one that has just failed.
    barrier = _barrier(rank)
    return [*known_answers(rank, elements), barrier]


def known_answers(rank: Rank, elements: int) -> List[Dict[str, Any]]:
    """A row for each operation and dtype, but without sums that the dtype cannot hold exactly."""
    size = rank.team.size
    return [
        attempt(rank, name, dtype, lambda n=name, d=dtype: _rounds(rank, n, d, elements))  # type: ignore[misc]
        for name in _OPERATIONS
        for dtype in DTYPES
        if name not in REDUCING or size * numbers_below(size) <= EXACT[dtype]
    ]


def attempt(
    rank: Rank, name: str, dtype: str, work: Callable[[], Mapping[str, Any]]
) -> Dict[str, Any]:
    """The row of one operation: what `work` found, or that the backend does not have it."""
    row = {"operation": name, "dtype": dtype, "wrong": 0, "total": 0, "kind": None}
    rank.at("{} of {}".format(name, dtype))
    try:
        return {**row, **work()}
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if not UNSUPPORTED.search(str(error)):
            raise
        return {**row, "unsupported": str(error).partition("\n")[0][:200]}


def _rounds(rank: Rank, name: str, dtype: str, elements: int) -> Dict[str, Any]:
    import torch

    device, kind = rank.place.device, getattr(torch, dtype)
    modulus = numbers_below(rank.team.size) if name in REDUCING else COPIED
    return repeat(rank, name, dtype, elements, lambda t: _parts(elements, modulus, t, kind, device))


def repeat(
    rank: Rank,
    name: str,
    dtype: str,
    elements: int,
    parts: Callable[[int], Part],
    *,
    blocks: bool = False,
) -> Dict[str, Any]:
    """Repeat the operation with the same buffers, and with the numbers of `parts` in each round.
    `blocks`: each rank's numbers are in a block of their own.
    """
    import torch

    device, kind = rank.place.device, getattr(torch, dtype)
    buffers: Dict[int, Any] = {}

    def into(parts: int) -> Any:
        if parts not in buffers:
            buffers[parts] = torch.full((parts * elements,), POISON, dtype=kind, device=device)
        return buffers[parts]

    total, before = 0, None
    first: Dict[str, Any] = {}
    for turn in range(ROUNDS):  # also after a wrong one: other ranks may have got the right numbers
        got, known = _OPERATIONS[name](rank, parts(turn), into)
        at = got != known
        wrong = int(at.sum().item())
        if wrong and not first:
            whose = wrong_blocks(rank.team.size, at) if blocks else senders(name, rank, at)
            first = {"wrong": wrong, "total": known.numel(), "kind": _kind(got, known, before)}
            first["senders"] = whose
        total, before = total + known.numel(), known.clone()
    return first or {"total": total}


def senders(name: str, rank: Rank, at: Any) -> List[int]:
    """The ranks whose numbers are wrong; none if the operation adds up those of all ranks. `at` is
    true where the received numbers are wrong.
    """
    size = rank.team.size
    if name == "broadcast":
        return [size - 1]
    if name == "send and receive":
        return [(rank.index - 1) % size]
    if name in REDUCING:
        return []
    return wrong_blocks(size, at)


def wrong_blocks(size: int, at: Any) -> List[int]:
    """Which of so many equal blocks are not all right."""
    return [i for i, wrong in enumerate(at.view(size, -1).any(1).tolist()) if wrong]


def numbers_below(size: int) -> int:
    """How many different numbers ranks add up: all sums stay below 257, so exact in bfloat16."""
    return max(2, min(13, 256 // size))


def numbers(places: Any, number: int, turn: int, modulus: int) -> Any:
    """A part's values from position, part number and round; `places` is a torch or NumPy array."""
    return (places * 3 + number * 5 + turn) % modulus + 1


def _parts(elements: int, modulus: int, turn: int, kind: Any, device: Any) -> Part:
    import torch

    places = torch.arange(elements, device=device)

    def part(number: int) -> Any:
        return numbers(places, number, turn, modulus).to(kind)

    return part


def _kind(got: Any, known: Any, before: Any) -> str:
    """What the buffer contains instead of the right numbers."""
    at = got != known
    if bool((got[at] == POISON).all()):
        return NOT_WRITTEN
    if before is not None and bool((got[at] == before[at]).all()):
        return BEFORE
    if bool((got.float().sort()[0] == known.float().sort()[0]).all()):
        return MISPLACED
    return OTHER


def _all_reduce(rank: Rank, part: Part, _: Into) -> Tuple[Any, Any]:
    import torch.distributed as dist

    got = part(rank.index)
    dist.all_reduce(got)
    return got, sum(part(i) for i in range(rank.team.size))


def _all_gather(rank: Rank, part: Part, into: Into) -> Tuple[Any, Any]:
    import torch
    import torch.distributed as dist

    size = rank.team.size
    got = into(size)
    dist.all_gather(list(got.chunk(size)), part(rank.index))
    return got, torch.cat([part(i) for i in range(size)])


def _reduce_scatter(rank: Rank, part: Part, into: Into) -> Tuple[Any, Any]:
    import torch.distributed as dist

    size = rank.team.size
    got = into(1)
    dist.reduce_scatter(got, [part(rank.index * size + to) for to in range(size)])
    return got, sum(part(source * size + rank.index) for source in range(size))


def _broadcast(rank: Rank, part: Part, into: Into) -> Tuple[Any, Any]:
    """From the last rank, since a library with a bug might use the first."""
    import torch.distributed as dist

    root = rank.team.size - 1
    got = part(root) if rank.index == root else into(1)
    dist.broadcast(got, root)
    return got, part(root)


def _send(rank: Rank, part: Part, into: Into) -> Tuple[Any, Any]:
    """Each rank sends to the next, in a ring."""
    import torch.distributed as dist

    size = rank.team.size
    got, source = into(1), (rank.index - 1) % size
    ways = [
        dist.P2POp(dist.isend, part(rank.index), (rank.index + 1) % size),
        dist.P2POp(dist.irecv, got, source),
    ]
    for request in dist.batch_isend_irecv(ways):
        request.wait()
    return got, part(source)


def _all_to_all(rank: Rank, part: Part, into: Into) -> Tuple[Any, Any]:
    import torch
    import torch.distributed as dist

    size = rank.team.size
    got = into(size)
    dist.all_to_all_single(got, torch.cat([part(rank.index * size + to) for to in range(size)]))
    return got, torch.cat([part(source * size + rank.index) for source in range(size)])


def _barrier(rank: Rank) -> Dict[str, Any]:
    """The ranks arrive one after the other; after the barrier all must have arrived."""
    import torch.distributed as dist

    rank.at("barrier")
    dist.barrier()  # the library may initialise at its first barrier
    time.sleep(rank.index * STEP_S)
    with open(_mark(rank, rank.index), "w", encoding="utf-8"):
        pass
    dist.barrier()
    rank.place.synchronize()
    missing = sum(not os.path.exists(_mark(rank, i)) for i in range(rank.team.size))
    kind = "let ranks through before all had arrived" if missing else None
    row = {"operation": "barrier", "dtype": "-", "wrong": missing}
    return {**row, "total": rank.team.size, "kind": kind}


def _mark(rank: Rank, index: int) -> str:
    return os.path.join(rank.folder, "came-{}".format(index))


_OPERATIONS: Dict[str, Operation] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "send and receive": _send,
    "all-to-all": _all_to_all,
}


# The judge


def judge_operations(world: World) -> Outcome:
    """Whether every rank got the known answer of every operation that the backend has."""
    team = world.team
    measured: Dict[str, Any] = {"device": team.kind, "ranks": team.size, "seconds": world.seconds}
    expected = {"wrong": 0}
    if world.lost:
        return ranks.judge_lost(world, team.backend, measured, expected)
    measured.update(pack(tables=[_table(world.values)]))
    for rank, rows in enumerate(world.values):
        for row in rows:
            if row["wrong"]:
                message = _wrong(team, rank, row)
                return wrong_answer(message, team.backend, measured, expected)
    rows = world.values[0]
    basic = {r["operation"] for r in rows if r["total"]}
    if "all-reduce" not in basic:
        why = next(r["unsupported"] for r in rows if "unsupported" in r)
        fix = "build the image again: parallel training needs all-reduce"
        message = "{} has no all-reduce: {}".format(team.backend, why)
        return Outcome(Status.FAIL, message, why, fix, measured, expected)
    message = "{} operations with correct results, {}{}".format(len(basic), team.words, team.note)
    if any("unsupported" in row for row in rows):
        message += "; not supported here: " + _lacking(rows)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _lacking(rows: Sequence[Mapping[str, Any]]) -> str:
    """The operations without any dtype, then the others with the dtypes they lack."""
    by_operation: Dict[str, List[str]] = {}
    for row in rows:
        if "unsupported" in row:
            by_operation.setdefault(row["operation"], []).append(row["dtype"])
    by_dtypes: Dict[str, List[str]] = {}
    for operation, dtypes in by_operation.items():
        whole = len(dtypes) == len(DTYPES)
        by_dtypes.setdefault("" if whole else " of " + ", ".join(dtypes), []).append(operation)
    return "; ".join(", ".join(names) + of for of, names in sorted(by_dtypes.items()))


def _wrong(team: Team, rank: int, row: Mapping[str, Any]) -> str:
    of = "" if row["dtype"] == "-" else " of " + row["dtype"]
    return "{} {}{}: rank {} {}, {} of {} wrong".format(
        team.backend, row["operation"], of, rank, row["kind"], row["wrong"], row["total"]
    )


def wrong_answer(
    message: str, backend: str, measured: Mapping[str, Any], expected: Mapping[str, Any]
) -> Outcome:
    """The failure of a backend that gave wrong numbers."""
    if backend == "nccl":
        cause = "data was corrupted or lost between GPUs"
        return Outcome(Status.FAIL, message, cause, P2P_FIX, measured, expected, NODE)
    cause, fix = "{} is broken".format(backend), "build the image again from its lock"
    return Outcome(Status.FAIL, message, cause, fix, measured, expected)


def _table(values: Sequence[Sequence[Mapping[str, Any]]]) -> Table:
    """Each operation by dtype: right, wrong or not supported, over all ranks."""
    names = list(dict.fromkeys(row["operation"] for row in values[0]))
    cells = {
        (name, dtype): _cell(values, name, dtype) for name in names for dtype in (*DTYPES, "-")
    }
    rows = [(name, *(cells[name, dtype] or cells[name, "-"] for dtype in DTYPES)) for name in names]
    return Table("Collectives with known answers", ("operation", *DTYPES), tuple(rows))


def _cell(values: Sequence[Sequence[Mapping[str, Any]]], name: str, dtype: str) -> str:
    found = [r for rows in values for r in rows if (r["operation"], r["dtype"]) == (name, dtype)]
    if any(row["wrong"] for row in found):
        return "wrong"
    if any("unsupported" in row for row in found):
        return "not supported"
    return "right" if found else ""
