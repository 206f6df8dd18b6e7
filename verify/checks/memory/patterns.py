"""Tests GPU memory word by word: every word must read back as written.

The word at index i is i times an odd constant: no two words are equal, so a stuck or crossed
address line shows up as well as a bad bit. The complement follows, so each bit has been 0 and 1.
Everything is written before anything is read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

from verify.backends.base import of
from verify.checks.memory.recovery import is_refusal, read_gpus
from verify.device import limits
from verify.model.check import NODE, Context, Outcome, Status, on_device

WORD = 8  # bytes
BLOCK = 1 << 23  # words of an array of their own: what they should be needs 64 MB more
ON_CPU = 256 << 20
NO_COUNT = 8 << 30  # bytes of a GPU to test if the free amount is unknown
SHARES = (0.1, 0.5, 0.9)  # of what is free, by level
GB = 1e9
_MASK = (1 << 64) - 1
FIX = (
    "look at health.memory and at nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU, and take it out"
    " of use if it fails again"
)


@dataclass(frozen=True)
class KeptBlocks:
    """One device's memory: how much was tested, and the first word that was wrong."""

    device: int
    name: str
    bytes: int
    wrong_words: int = 0
    offset: Optional[int] = None  # bytes from the start of the tested memory
    expected: Optional[str] = None  # hexadecimal, to show the bits
    found: Optional[str] = None


def check_pattern(context: Context) -> Outcome:
    """Test each GPU, or a little of the CPU's memory if nothing hints at a GPU."""
    backend = of(context)
    free = {} if backend.says_what_is_free else read_gpus(context, "free")
    broken, places = backend.every(context)
    if broken:
        return broken
    share = context.pick(*SHARES)
    return judge_patterns([test(one, room(one, share, free)) for one in places], places[0].kind)


def room(place: Any, share: float, free: Mapping[int, int]) -> int:
    """How many bytes to test; a fixed amount of a GPU if the free amount is unknown."""
    if not place.is_gpu:
        return cpu_room()
    found = place.free_bytes()
    return int((free.get(place.index, NO_COUNT) if found is None else found) * share)


def test(place: Any, size: int) -> KeptBlocks:
    """Write and read a pattern and its complement."""
    kept = KeptBlocks(place.index, place.card, size)

    def write(first: int, inverted: bool) -> Any:  # noqa: FBT001
        return place.block(first, BLOCK, inverted)

    def read(block: Any, first: int, inverted: bool) -> BlockDifference:  # noqa: FBT001
        return BlockDifference(*place.differ(block, place.block(first, BLOCK, inverted)))

    with place.scope():
        found = keep(kept, write, read)
    place.release()
    return found


class BlockDifference(NamedTuple):
    """How a block differs from its expected content."""

    words: int  # how many are wrong
    at: int  # the first of them
    expected: int
    found: int


def keep(
    kept: KeptBlocks,
    write: Callable[[int, bool], Any],
    read: Callable[[Any, int, bool], BlockDifference],
) -> KeptBlocks:
    """Write and read a pattern and its complement in as many blocks as `kept.bytes` has, or fewer
    if the device runs out of memory.

    `write` returns a block of BLOCK words, given the first index; `read` compares it.
    """
    blocks: List[Any] = [None] * max(1, kept.bytes // (BLOCK * WORD))
    for inverted in (False, True):
        for i in range(len(blocks)):
            blocks[i] = None  # free the previous one first: there may not be room for both
            try:
                blocks[i] = write(i * BLOCK, inverted)
            except Exception as error:
                if not is_refusal(str(error)) or i < 2:
                    raise
                blocks = blocks[: i - 1]  # room for what the words should be
                break
        found = [(i, read(block, i * BLOCK, inverted)) for i, block in enumerate(blocks)]
        bad = [(i, one) for i, one in found if one.words]
        total = len(blocks) * BLOCK * WORD
        if bad:
            i, first = bad[0]
            offset = (i * BLOCK + first.at) * WORD
            wrong, words = sum(one.words for _, one in bad), (first.expected, first.found)
            return KeptBlocks(kept.device, kept.name, total, wrong, offset, *map(_hex, words))
        kept = replace(kept, bytes=total)
    return kept


def cpu_room() -> int:
    """How many bytes of a CPU's memory are tested."""
    available = limits.memory_available(limits.read())
    return ON_CPU if available is None else min(ON_CPU, available // 4)


def _hex(word: int) -> str:
    return "{:#018x}".format(word & _MASK)


def judge_patterns(tested: Sequence[KeptBlocks], kind: str) -> Outcome:
    """Whether every word read back as written."""
    measured = {"device": kind, "tested": [asdict(one) for one in tested]}
    expected = {"wrong_words": 0}
    for one in tested:
        if one.wrong_words:
            where = "GPU {} ({})".format(one.device, one.name) if kind == "cuda" else "the CPU"
            message = "{}: memory has wrong content ({} of its words), first at byte {}: {} is {}"
            cause = "{}: the memory does not store data correctly".format(_bits(one))
            said = message.format(where, one.wrong_words, one.offset, one.expected, one.found)
            fix = (
                FIX
                if kind == "cuda"
                else "test the machine's memory with memtest86+, or replace it"
            )
            return Outcome(Status.FAIL, said, cause, fix, measured, expected, NODE)
    least = min((one.bytes for one in tested), default=0)
    if not least:
        cause = "no memory could be taken"
        fix = "end the GPU's other users (nvidia-smi lists them)"
        message = "no byte of memory was tested"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    message = "every byte of {:.2f} GB holds a pattern and its complement".format(least / GB)
    on_gpus = " on each of {} GPUs".format(len(tested)) if len(tested) > 1 else ", on the GPU"
    where = on_gpus if kind == "cuda" else ", " + on_device(kind)
    return Outcome(Status.PASS, message + where, measured=measured, expected=expected)


def _bits(one: KeptBlocks) -> str:
    """How the two words differ: one bit suggests a memory cell, many an address line."""
    if one.expected is None or one.found is None:
        return "unknown bits"
    count = bin(int(one.expected, 16) ^ int(one.found, 16)).count("1")
    return "{} bit{} of 64 differ{}".format(
        count, "" if count == 1 else "s", "s" if count == 1 else ""
    )
