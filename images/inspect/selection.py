"""Which entries of a fatbin the driver may load on a GPU, and which it never does. Pure.

NVIDIA documents what a GPU can run: binary code ("cubin") of the same major and an equal or lower
minor compute capability, PTX of an equal or lower capability, "a" code only on exactly its
capability, "f" code on its family. Binary code is used if there is any, else PTX is compiled.
https://docs.nvidia.com/cuda/ampere-compatibility-guide/
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#binary-compatibility
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#family-specific-features

Of several that can run, the newest is used; NVIDIA says "best matching" of this. So an entry is
removed only if another certainly runs and is newer, or if it cannot run. What might run is never a
reason to remove other code: "f" code, whose families are a list, and code for Tegra (Jetson), which
is not compatible with that of other GPUs although it is numbered among it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence

from images.inspect.fatbin import PTX, SASS, FatbinEntry
from images.inspect.model import Capability
from images.inspect.texts import capability
from images.text.data import data_table

Range = tuple[int, int]
"""The offset and the length of bytes in a file."""


def removable(
    entries: Sequence[FatbinEntry], gpus: Collection[Capability], *, by_driver: bool
) -> list[Range]:
    """The payloads of one fatbin that none of the GPUs loads, in the order of the entries.

    `by_driver`: the driver selects from the fatbin by its own rule. Otherwise a linker or the
    library may use any code that runs, so only what does not run on any of the GPUs is removed.
    Only binary code and PTX are: LTO-IR, entries of several targets (kind 256) and what is not
    known are kept.
    """
    choose = selected if by_driver else runnable
    kept = {number for gpu in gpus for number in choose(entries, gpu)}
    return [
        (entry.at, entry.size)
        for number, entry in enumerate(entries)
        if number not in kept and entry.kind in (PTX, SASS) and entry.size
    ]


def runnable(entries: Sequence[FatbinEntry], gpu: Capability) -> set[int]:
    """The numbers of the entries that may run on a GPU, binary code and PTX."""
    return {
        number
        for number, entry in enumerate(entries)
        if (entry.kind == SASS and _runs_binary(entry.target, gpu) is not False)
        or (entry.kind == PTX and _runs_ptx(entry.target, gpu) is not False)
    }


def selected(entries: Sequence[FatbinEntry], gpu: Capability) -> set[int]:
    """The numbers of the entries that a GPU may load: one that it does load is always in it."""
    binary = _best(entries, SASS, lambda word: _runs_binary(word, gpu))
    code = _best(entries, PTX, lambda word: _runs_ptx(word, gpu))
    sure = [n for n in binary if _runs_binary(entries[n].target, gpu)]
    newest = max((_number(entries[n]) for n in sure), default=None)
    # PTX that is newer than all binary code might be preferred to it
    return binary | {n for n in code if newest is None or _number(entries[n]) > newest}


def _best(
    entries: Sequence[FatbinEntry], kind: int, runs: Callable[[str], bool | None]
) -> set[int]:
    """Of the entries of a kind those that may run, without those older than one that surely does.

    `runs` answers for a target; None: it may.
    """
    answers = {
        number: answer
        for number, entry in enumerate(entries)
        if entry.kind == kind and (answer := runs(entry.target)) is not False
    }
    sure = max((_number(entries[n]) for n, answer in answers.items() if answer), default=(0, 0))
    return {number for number in answers if _number(entries[number]) >= sure}


def _runs_binary(word: str, gpu: Capability) -> bool | None:
    """Whether a GPU runs the binary code of a target; None: it may."""
    number = capability(word)
    if number is None:
        return None
    if number == gpu:
        return True
    if number[0] != gpu[0] or number[1] > gpu[1] or word.endswith("a"):
        return False
    return None if word.endswith("f") or {number, gpu} & tegra() else True


def _runs_ptx(word: str, gpu: Capability) -> bool | None:
    """Whether the driver compiles the PTX of a target for a GPU; None: it may."""
    number = capability(word)
    if number is None:
        return None
    if number == gpu:
        return True
    if number > gpu or word.endswith("a"):
        return False
    if word.endswith("f"):
        return None if number[0] == gpu[0] else False
    return True


def _number(entry: FatbinEntry) -> Capability:
    return capability(entry.target) or (0, 0)


def normalized(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges and join those that touch or overlap."""
    found: list[Range] = []
    for one in sorted(ranges):
        if found and one[0] <= sum(found[-1]):
            at, size = found.pop()
            found.append((at, max(at + size, sum(one)) - at))
        else:
            found.append(one)
    return found


@functools.cache
def tegra() -> frozenset[Capability]:
    """The capabilities of Tegra, whose binary code and that of other GPUs are not compatible."""
    pairs = (row.split(".") for row in data_table(__file__, "tegra.json")()["capabilities"])
    return frozenset((int(major), int(minor)) for major, minor in pairs)
