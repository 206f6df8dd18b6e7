"""GPU memory, word by word: what was written must be what is read, at every address at once.

The word at index i is i times an odd constant: no two words are equal, so an address line that is
stuck or crossed shows as well as a bit. The complement follows, so that each bit has been both.
Everything is written before anything is read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, List, Optional, Sequence, Tuple

from verify import limits
from verify.checks.place import Place, find, find_gpus
from verify.core import Context, Outcome, Status

WORD = 8  # bytes
CHUNK = 1 << 30  # bytes taken at a time, so that fragments are tested too
BLOCK = 1 << 23  # words compared at a time: 64 MB more are needed for what they should be
ON_CPU = 256 << 20
GB = 1e9
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 by the golden ratio, as a signed word
FIX = (
    "look at health.memory and at nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU, and take it out"
    " of use if it fails again"
)


@dataclass(frozen=True)
class Kept:
    """One device's memory: how much was tested, and the first word that was wrong."""

    device: int
    name: str
    bytes: int
    wrong_words: int = 0
    offset: Optional[int] = None  # bytes into what was tested
    expected: Optional[str] = None  # hexadecimal, as the bits are what tells
    found: Optional[str] = None


def check_pattern(context: Context) -> Outcome:
    """On each GPU, or in a little of the CPU's memory where nothing hints at a GPU."""
    broken, place = find(context)
    if broken is not None:
        return broken
    places: Sequence[Place] = find_gpus(context)[1] if place.is_gpu else (place,)
    share = context.pick(0.1, 0.5, 0.9)
    return judge_patterns([write_and_read(one, room(one, share)) for one in places], place.kind)


def room(place: Place, share: float) -> int:
    """How many bytes to test."""
    import torch

    if place.is_gpu:
        return int(torch.cuda.mem_get_info(place.index)[0] * share)
    available = limits.memory_available(limits.read())
    return ON_CPU if available is None else min(ON_CPU, available // 4)


def write_and_read(place: Place, size: int) -> Kept:
    """Write and read a pattern and its complement."""
    import torch

    name = str(torch.cuda.get_device_name(place.index)) if place.is_gpu else "CPU"
    chunks = take(place, size)
    total = sum(chunk.numel() for chunk in chunks) * WORD
    worst = Kept(place.index, name, total)
    for inverted in (False, True):
        for first, chunk in _numbered(chunks):
            write(chunk, first, inverted=inverted)
        place.synchronize()
        faults = [f for first, chunk in _numbered(chunks) for f in read(chunk, first, inverted)]
        if faults:
            offset, expected, found = faults[0][1:]
            wrong = sum(fault[0] for fault in faults)
            worst = Kept(place.index, name, total, wrong, offset, expected, found)
            break
    del chunks
    place.release()
    return worst


def take(place: Place, size: int) -> List[Any]:
    """So many bytes in chunks of words; fewer where the device has no more to give."""
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
            chunks.pop()  # room for what the words should be
            place.release()
            break
        left -= count
    return chunks


def _numbered(chunks: Sequence[Any]) -> List[Tuple[int, Any]]:
    """Each chunk with the number of its first word."""
    firsts = [0]
    for chunk in chunks:
        firsts.append(firsts[-1] + chunk.numel())
    return list(zip(firsts, chunks))


def write(chunk: Any, first: int, *, inverted: bool) -> None:
    """Fill a chunk, block by block."""
    for start in range(0, chunk.numel(), BLOCK):
        _make(chunk[start : start + BLOCK], first + start, inverted=inverted)


def read(chunk: Any, first: int, inverted: bool) -> List[Tuple[int, int, str, str]]:  # noqa: FBT001
    """Where blocks are wrong: (number of words, bytes of offset, expected, found)."""
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
    block.mul_(_ODD)
    return block.bitwise_not_() if inverted else block


def _hex(word: int) -> str:
    return "{:#018x}".format(word & ((1 << 64) - 1))


def judge_patterns(tested: Sequence[Kept], kind: str) -> Outcome:
    """Whether every word came back."""
    measured = {"device": kind, "tested": [asdict(one) for one in tested]}
    expected = {"wrong_words": 0}
    for one in tested:
        if one.wrong_words:
            where = "GPU {} ({})".format(one.device, one.name) if kind == "cuda" else "the CPU"
            message = "{}: memory came back wrong ({} of its words), first {} bytes in: {} is {}"
            cause = "{}: the memory does not keep what is written to it".format(_bits(one))
            said = message.format(where, one.wrong_words, one.offset, one.expected, one.found)
            fix = FIX if kind == "cuda" else "test the machine's memory (memtest86+), or replace it"
            return Outcome(Status.FAIL, said, cause, fix, measured, expected)
    least = min((one.bytes for one in tested), default=0)
    if not least:
        cause = "no memory could be taken"
        fix = "end the GPU's other users (nvidia-smi lists them)"
        message = "no byte of memory was tested"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    message = "{:.2f} GB keep a pattern and its complement, every byte".format(least / GB)
    on_gpus = " on each of {} GPUs".format(len(tested)) if len(tested) > 1 else ", on the GPU"
    where = on_gpus if kind == "cuda" else ", on the CPU: no GPU visible"
    return Outcome(Status.PASS, message + where, measured=measured, expected=expected)


def _bits(one: Kept) -> str:
    """How the two words differ: a single bit points at a cell, many at an address line."""
    if one.expected is None or one.found is None:
        return "unknown bits"
    count = bin(int(one.expected, 16) ^ int(one.found, 16)).count("1")
    return "{} bit{} of 64 differ{}".format(
        count, "" if count == 1 else "s", "s" if count == 1 else ""
    )
