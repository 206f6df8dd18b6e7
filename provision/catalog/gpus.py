"""Finds a GPU by name, as NVML prints it or as people write it.

Steps; the first that finds rows decides: the whole name without the maker and brand words that
drivers and people leave out; then the given words as one sequence inside a name ("V100"); then all
of them anywhere in it ("A100 40GB"); then as the start of a word of the name ("K40"). If nothing is
found, whatever a name says besides the model is dropped, and the steps are repeated: a slice of the
card, a virtual one, its board number, rack or memory, a laptop's suffix. Rows found together must
agree on the compute capability: what could be two different things is ambiguous, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from provision.catalog.rows.gpus import GpuModel
from provision.model.plan import ComputeCapability

_WORD = re.compile(r"[a-z0-9]+")
# "Quadro" stays: a Quadro RTX 4000 is Turing, an RTX 4000 Ada is not.
_BRANDS = frozenset({"nvidia", "geforce", "tesla", "jetson"})
# A word that distinguishes models; memory sizes and sockets are shared by many.
_MODEL = re.compile(r"(?!(?:\d+gb?|sxm\d*|hbm\d\w*)$)(?:titan\w*|\w*\d\w*)$")
_LONGEST_NAME = 100

# Compiled only when a name is not found as given, which is rare.
# "A100-SXM4-40GB MIG 1g.5gb", "A100-PG509-200", "GB200 NVL72", "RTX 3080 12GB"
_BESIDES = r" \(nvgpu\)$| mig \S+$|-pg\d+-\d+$| nvl\d+$|[ -]\d+ ?g(?:i?b)?$"
# "GRID T4-16Q", "NVIDIA A100-3-20C": https://docs.nvidia.com/vgpu/ names the types so; the letters
# behind a board's number ("V100D") are its memory or form.
_VIRTUAL = r"(?:grid|nvidia) (\S.*?)-(?:\d-)?\d+[abcq]\d?(?:me|s)?"
_BOARD_LETTERS = r"(?<=\d)[a-z]{1,2}$"
# A laptop's chip has its desktop card's capability for every model of the GeForce RTX 20 to 50
# series that exists as both, not before (https://developer.nvidia.com/cuda-gpus).
_LAPTOP = r"(.*\brtx ?[2-5]0[5-9]0\b.*?) (?:laptop gpu|laptop|with max-q design|max-q)"


class GpuMatch(NamedTuple):
    """The result of a look-up. `compute_capability` is None unless `status` is "one".

    "one": every row of `rows` has that capability. "ambiguous": `rows` are the candidates.
    "unknown": no row; `suggestions` are the nearest names. `shortened`: the rows are for a part of
    the name.
    """

    status: Literal["one", "ambiguous", "unknown"]
    compute_capability: ComputeCapability | None
    rows: tuple[GpuModel, ...]
    suggestions: tuple[str, ...] = ()
    shortened: bool = False

    @property
    def host_arch(self) -> str | None:
        """The CPU architecture of every machine that has it, if all rows agree on one."""
        return host_arch_of(self.rows)


def host_arch_of(rows: tuple[GpuModel, ...]) -> str | None:
    """The CPU architecture of the machines with these GPUs; None: there are several, or any."""
    found = {row.host_arch for row in rows}
    return found.pop() if len(found) == 1 else None


class GpuNames:
    """Looks GPUs up by name, with a cache, since a plan needs the same few many times."""

    def __init__(self, rows: tuple[GpuModel, ...]) -> None:
        self._rows = rows
        self._words: list[tuple[GpuModel, list[str]]] = []
        self._known: dict[str, GpuMatch] = {}

    def find(self, name: str) -> GpuMatch:
        """The rows that a name means."""
        if name not in self._known:
            if len(self._known) >= 1000:
                self._known.clear()
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> GpuMatch:
        if not self._words:
            spelled = [
                (row, spelling) for row in self._rows for spelling in (row.name, *row.aliases)
            ]
            self._words = [(row, _words(spelling)) for row, spelling in spelled]
        spoken = " ".join(name[:_LONGEST_NAME].casefold().split())
        whole = self._rows_for(_words(spoken))
        rows = whole or self._rows_said_shorter(spoken)
        if not rows:
            return GpuMatch(
                status="unknown",
                compute_capability=None,
                rows=(),
                suggestions=self._near(_words(spoken)),
            )
        capabilities = {row.compute_capability for row in rows}
        if len(capabilities) > 1:
            return GpuMatch(status="ambiguous", compute_capability=None, rows=rows)
        return GpuMatch(
            status="one",
            compute_capability=capabilities.pop(),
            rows=rows,
            shortened=not whole,
        )

    def _rows_said_shorter(self, spoken: str) -> tuple[GpuModel, ...]:
        for shorter in _said_shorter(spoken):
            if rows := self._rows_for(_words(shorter)):
                return rows
        laptop = re.fullmatch(_LAPTOP, spoken)
        together = "".join(_words(laptop[1])) if laptop else ""
        return self._rows_where(lambda words: bool(together) and "".join(words) == together)

    def _rows_for(self, asked: list[str]) -> tuple[GpuModel, ...]:
        together = "".join(asked)
        if not together:
            return ()
        if exact := self._rows_where(lambda words: "".join(words) == together):
            return exact
        if not any(_MODEL.match(word) for word in asked):
            return ()
        last = asked[-1]
        return (
            self._rows_where(lambda words: _holds(words, together))
            or self._rows_where(lambda words: set(asked) <= set(words))
            or self._rows_where(lambda words: len(asked) == 1 and _begins(words, last))
        )

    def _rows_where(self, fits: Callable[[list[str]], bool]) -> tuple[GpuModel, ...]:
        return tuple(dict.fromkeys(row for row, words in self._words if fits(words)))

    def _near(self, asked: list[str]) -> tuple[str, ...]:
        """The names of the same family that are nearest by their letters."""
        from difflib import get_close_matches

        family = _family(asked)
        names = {"".join(words): row.name for row, words in self._words if _family(words) == family}
        near = get_close_matches("".join(asked), names, n=3, cutoff=0.6)
        return tuple(dict.fromkeys(names[key] for key in near))


def _said_shorter(spoken: str) -> Iterator[str]:
    """The name with more and more parts dropped that do not change the model."""
    if virtual := re.fullmatch(_VIRTUAL, spoken):
        yield virtual[1]
        yield re.sub(_BOARD_LETTERS, "", virtual[1])
    while (shorter := re.sub(_BESIDES, "", spoken)) != spoken:
        yield shorter
        spoken = shorter


def _words(name: str) -> list[str]:
    return [word for word in _WORD.findall(name.casefold()) if word not in _BRANDS]


def _family(words: list[str]) -> str:
    """The letters before the number of the model: "rtxa" of RTX A4000, "h" of H100; "rtx" also of a
    GTX 1080.
    """
    text = "".join(words).replace("gtx", "rtx")
    return text[: next((at for at, one in enumerate(text) if one.isdigit()), len(text))]


def _holds(words: list[str], together: str) -> bool:
    """Whether adjacent words of the name, joined, equal the given text."""
    for start in range(len(words)):
        joined = ""
        for word in words[start:]:
            joined += word
            if joined == together:
                return True
            if len(joined) >= len(together):
                break
    return False


def _begins(words: list[str], asked: str) -> bool:
    """ "k40" begins "k40m"; it does not begin "k4000": only letters may follow."""
    return any(word.startswith(asked) and word[len(asked) :].isalpha() for word in words)
