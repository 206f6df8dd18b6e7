"""Every collective that training uses, with answers that are known in advance.

A rank's input depends on the rank, the position in the message and the round, so that another
rank's answer, a wrong order, or data from the previous round is detected.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence

from verify.checks.collectives import messages, ranks, room
from verify.checks.collectives.ranks import ONE_GPU, P2P_FIX, Rank, Team, World
from verify.model.check import NODE, Context, Outcome, Status
from verify.model.measures import Table, pack

LIMIT_S = {"gloo": 60.0, "nccl": 210.0}
DTYPES = ("float32", "float16", "bfloat16", "int64")
ELEMENTS = {  # of a rank's part
    "nccl": {"quick": 1 << 10, "standard": 1 << 18, "full": 1 << 22},
    "gloo": {"quick": 1 << 8, "standard": 1 << 14, "full": 1 << 17},
}
LARGEST = {"nccl": 1 << 33, "gloo": 1 << 24}  # bytes of a message, at the level full
LARGE_DTYPES = {"float32": 4, "bfloat16": 2}  # at every size; bytes of a number
COPIES = 4  # of a message in memory: given, received, and what torch makes of lists
ROUNDS = 2
# Up to this, and for bfloat16 up to 2**8, every integer and all partial sums are exact.
EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8, "int64": 1 << 62}
# What a buffer contains instead of the right numbers
NOT_WRITTEN = "was not written"
BEFORE = "has the result of the previous call"
MISPLACED = "has the right numbers in wrong places"
OTHER = "has other numbers"
STEP_S = 0.05  # delay between the ranks' arrivals at the barrier
UNSUPPORTED = re.compile(  # messages of torch's backends without an operation or a dtype
    r"no support|not (currently |yet )?(supported|implemented)|does ?n[o']t support|[Uu]nsupported|"
    r"Invalid scalar type|no backend type"
)


def check_operations(context: Context) -> Outcome:
    """Run every collective on every GPU, or with two processes if there is no GPU."""
    broken, team = ranks.find_team(context)
    if broken:
        return broken
    if team.backend == "nccl" and team.size == 1:
        return Outcome(Status.SKIP, ONE_GPU, measured={"ranks": 1})
    elements = ELEMENTS[team.backend][context.level]
    wanted = room.sizes(LARGEST[team.backend]) if context.level == "full" else []
    limit_s = LIMIT_S[team.backend]
    return judge_operations(ranks.run(team, lambda r: _all(r, elements, wanted), limit_s))


# What each rank does


def _all(rank: Rank, elements: int, wanted: Sequence[int]) -> List[Dict[str, Any]]:
    # Before what gloo may refuse: its barrier waits for earlier operations, too, and in PyTorch 2.0
    # it can raise the error of one that has just failed.
    barrier = _barrier(rank)
    rows = known_answers(rank, elements)
    large = [
        {**row, **_sized(rank, row["operation"], row["dtype"], wanted)}
        for row in rows
        if wanted and row["dtype"] in LARGE_DTYPES and "unsupported" not in row
    ]
    return [*rows, *large, barrier]


def known_answers(rank: Rank, elements: int) -> List[Dict[str, Any]]:
    """A row for each operation and dtype, but without sums that the dtype cannot hold exactly."""
    size = rank.team.size
    return [
        attempt(rank, name, dtype, lambda n=name, d=dtype: _rounds(rank, n, d, elements))  # type: ignore[misc]
        for name in messages.OPERATIONS
        for dtype in DTYPES
        if name not in messages.REDUCING or size * messages.numbers_below(size) <= EXACT[dtype]
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
    def parts(turn: int) -> messages.Part:
        return messages.part(messages.piece(rank, name, dtype, turn), elements)

    return repeat(rank, name, dtype, elements, parts)


def _sized(rank: Rank, name: str, dtype: str, wanted: Sequence[int]) -> Dict[str, Any]:
    def enough(size: int, left_s: float, needed_s: float) -> bool:
        return room.has(rank, size=size, copies=COPIES, left_s=left_s, needed_s=needed_s)

    return room.at_sizes(wanted, enough, lambda size: [_once(rank, name, dtype, size)])[0]


def _once(rank: Rank, name: str, dtype: str, size: int) -> Dict[str, Any]:
    """A message of this size, whose answers are computed and compared in pieces on the device."""
    import torch

    device, kind, count = rank.place.device, getattr(torch, dtype), rank.team.size
    elements = messages.elements(name, size // LARGE_DTYPES[dtype], count)
    piece = messages.piece(rank, name, dtype, 0)
    rank.at("{} of {}, {}".format(name, dtype, in_words(size)))

    def into(parts: int) -> Any:
        return torch.full((parts * elements,), messages.POISON, dtype=kind, device=device)

    got = messages.OPERATIONS[name](rank, messages.part(piece, elements), into)
    row = {"wrong": 0, "total": got.numel(), "bytes": size}
    for block, numbers in enumerate(messages.sources(name, rank.index, count)):
        for start, end in messages.spans(elements):
            right = sum(piece(number, start, end) for number in numbers)
            here = got[block * elements + start : block * elements + end]
            at = here != right
            wrong = int(at.sum().item())
            if wrong and not row["wrong"]:
                place = block * elements + start + int(at.to(torch.uint8).argmax().item())
                row.update(kind=_kind(here, right, None), place=place)
            row["wrong"] += wrong
    return row


def in_words(size: int) -> str:
    """A message's size: the binary unit that it is a multiple of."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return "{:.3g} {}".format(size / (1 << power), unit)
    return "{} bytes".format(size)


def repeat(
    rank: Rank,
    name: str,
    dtype: str,
    elements: int,
    parts: Callable[[int], messages.Part],
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
            size = (parts * elements,)
            buffers[parts] = torch.full(size, messages.POISON, dtype=kind, device=device)
        return buffers[parts]

    total, before = 0, None
    first: Dict[str, Any] = {}
    for turn in range(ROUNDS):  # also after a wrong one: other ranks may have got the right numbers
        part = parts(turn)
        got = messages.OPERATIONS[name](rank, part, into)
        whole = messages.sources(name, rank.index, rank.team.size)
        known = torch.cat([sum(part(number) for number in numbers) for numbers in whole])
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
    if name in messages.REDUCING:
        return []
    return wrong_blocks(size, at)


def wrong_blocks(size: int, at: Any) -> List[int]:
    """Which of so many equal blocks are not all right."""
    return [i for i, wrong in enumerate(at.view(size, -1).any(1).tolist()) if wrong]


def _kind(got: Any, known: Any, before: Any) -> str:
    """What the buffer contains instead of the right numbers."""
    at = got != known
    if bool((got[at] == messages.POISON).all()):
        return NOT_WRITTEN
    if before is not None and bool((got[at] == before[at]).all()):
        return BEFORE
    if bool((got.float().sort()[0] == known.float().sort()[0]).all()):
        return MISPLACED
    return OTHER


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
    message = "{} operations with correct results{}, {}{}".format(
        len(basic), _up_to(rows), team.words, team.note
    )
    if any("unsupported" in row for row in rows):
        message += "; not supported here: " + _lacking(rows)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _up_to(rows: Sequence[Mapping[str, Any]]) -> str:
    """The size up to which all operations were tried, at the level full."""
    tried = [row["bytes"] for row in rows if "bytes" in row]
    return " at all sizes up to {}".format(in_words(min(tried))) if tried else ""


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
    said = "{} {}{}: rank {} {}, {} of {} wrong".format(
        team.backend, row["operation"], of, rank, row["kind"], row["wrong"], row["total"]
    )
    if "place" not in row:
        return said
    return said + ", first number {} of a message of {}".format(
        row["place"], in_words(row["bytes"])
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
