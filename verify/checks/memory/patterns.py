"""Tests GPU memory word by word: every word must read back as written.

The word at index i is i times an odd constant: no two words are equal, so a stuck or crossed
address line shows up as well as a bad bit. The complement follows, so each bit has been 0 and 1.
Everything is written before anything is read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from verify.backends.pytorch import Place, find, find_gpus
from verify.checks.memory.recovery import is_refusal
from verify.device import limits
from verify.model.check import NODE, Context, Outcome, Status

WORD = 8  # bytes
CHUNK = 1 << 30  # bytes taken at a time, so that fragments are tested too
BLOCK = 1 << 23  # words compared at a time: the expected words need 64 MB more
ON_CPU = 256 << 20
NO_COUNT = 8 << 30  # bytes of a GPU to test if the free amount is unknown
SHARES = (0.1, 0.5, 0.9)  # of what is free, by level
GB = 1e9
ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 divided by the golden ratio, as a signed word
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
    broken, place = find(context)
    if broken is not None:
        return broken
    places: Sequence[Place] = find_gpus(context)[1] if place.is_gpu else (place,)
    share = context.pick(*SHARES)
    return judge_patterns([write_and_read(one, room(one, share)) for one in places], place.kind)


def room(place: Place, share: float) -> int:
    """How many bytes to test."""
    import torch

    if place.is_gpu:
        return int(torch.cuda.mem_get_info(place.index)[0] * share)
    return cpu_room()


def write_and_read(place: Place, size: int) -> KeptBlocks:
    """Write and read a pattern and its complement."""
    import torch

    name = str(torch.cuda.get_device_name(place.index)) if place.is_gpu else "CPU"
    chunks = take(place, size)
    total = sum(chunk.numel() for chunk in chunks) * WORD
    worst = KeptBlocks(place.index, name, total)
    for inverted in (False, True):
        for first, chunk in _numbered(chunks):
            write(chunk, first, inverted=inverted)
        place.synchronize()
        faults = [f for first, chunk in _numbered(chunks) for f in read(chunk, first, inverted)]
        if faults:
            offset, expected, found = faults[0][1:]
            wrong = sum(fault[0] for fault in faults)
            worst = KeptBlocks(place.index, name, total, wrong, offset, expected, found)
            break
    del chunks
    place.release()
    return worst


def take(place: Place, size: int) -> List[Any]:
    """Allocate `size` bytes in chunks of words; fewer if the device runs out of memory."""
    import torch

    chunks: List[Any] = []
    left = max(0, size) // WORD
    while left:
        count = min(left, CHUNK // WORD)
        try:
            chunks.append(torch.empty(count, dtype=torch.int64, device=place.device))
        except RuntimeError as error:
            if "out of memory" not in str(error) or not chunks:
                raise
            chunks.pop()  # room for the expected words
            place.release()
            break
        left -= count
    return chunks


def _numbered(chunks: Sequence[Any]) -> List[Tuple[int, Any]]:
    """Each chunk with the index of its first word."""
    firsts = [0]
    for chunk in chunks:
        firsts.append(firsts[-1] + chunk.numel())
    return list(zip(firsts, chunks))


def write(chunk: Any, first: int, *, inverted: bool) -> None:
    """Fill a chunk, block by block."""
    for start in range(0, chunk.numel(), BLOCK):
        _make(chunk[start : start + BLOCK], first + start, inverted=inverted)


def read(chunk: Any, first: int, inverted: bool) -> List[Tuple[int, int, str, str]]:  # noqa: FBT001
    """The wrong blocks: (number of words, offset in bytes, expected, found)."""
    import torch

    faults = []
    for start in range(0, chunk.numel(), BLOCK):
        block = chunk[start : start + BLOCK]
        right = _make(torch.empty_like(block), first + start, inverted=inverted)
        wrong = block != right
        count = int(wrong.sum().item())
        if count:
            at = int(wrong.to(torch.uint8).argmax().item())
            words = int(right[at].item()), int(block[at].item())
            faults.append((count, (first + start + at) * WORD, _hex(words[0]), _hex(words[1])))
    return faults


def _make(block: Any, first: int, *, inverted: bool) -> Any:
    import torch

    torch.arange(first, first + block.numel(), out=block)
    block.mul_(ODD)
    return block.bitwise_not_() if inverted else block


# For frameworks whose arrays are immutable: each block is its own array


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


def pattern(first: int, count: int) -> Any:
    """`count` words from index `first` on, from NumPy."""
    import numpy as np

    words = np.arange(first, first + count, dtype=np.uint64) * np.uint64(ODD & _MASK)
    return words.view(np.int64)


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
    where = on_gpus if kind == "cuda" else ", on the CPU: no GPU visible"
    return Outcome(Status.PASS, message + where, measured=measured, expected=expected)


def _bits(one: KeptBlocks) -> str:
    """How the two words differ: one bit suggests a memory cell, many an address line."""
    if one.expected is None or one.found is None:
        return "unknown bits"
    count = bin(int(one.expected, 16) ^ int(one.found, 16)).count("1")
    return "{} bit{} of 64 differ{}".format(
        count, "" if count == 1 else "s", "s" if count == 1 else ""
    )
