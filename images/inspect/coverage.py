"""Whether the device code of a library runs on a GPU. Pure.

Binary code runs on the same major and an equal or higher minor capability; "a" code only on exactly
that capability; "f" code on its family. The driver compiles PTX for its capability and all later.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#application-compatibility
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from images.inspect.model import Capability, LibraryCode
from images.inspect.texts import capability
from images.inspect.verdict import NEARLY_ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of a library runs on one GPU.

    `runs` is "sm_86", "sm_80 binary", "PTX" or "none"; `share` is the fraction of its fatbins that
    certainly contain usable code. A library may support a GPU with kernels in only some fatbins: if
    `share` is small but not zero, counting cannot decide.
    """

    library: str
    gpu: Capability
    runs: str
    share: float

    @property
    def whole(self) -> bool:
        """Whether it was built for this GPU: nearly all of its code runs there."""
        return self.runs != "none" and self.share >= NEARLY_ALL

    @property
    def nothing(self) -> bool:
        """Whether no kernel in it runs there."""
        return self.runs == "none"


def cover(code: LibraryCode, gpu: Capability) -> Coverage:
    """Find what code of a library runs on a GPU: the best that is in nearly all fatbins, if any,
    else the most frequent.
    """
    usable = [
        (words, count)
        for held in (code.sass, code.ptx)
        for word, count in held.items()
        if (words := _runs(word, gpu)) is not None
    ]
    if not usable or not code.fatbins:
        return Coverage(library=code.name, gpu=gpu, runs="none", share=0.0)
    enough = [row for row in usable if row[1] >= NEARLY_ALL * code.fatbins]
    # exact binary code before older, and PTX last, because it makes the first start slower
    rank, runs = min(row[0] for row in enough) if enough else max(usable, key=lambda r: r[1])[0]
    del rank
    share = max(count for _, count in usable) / code.fatbins
    return Coverage(library=code.name, gpu=gpu, runs=runs, share=min(1.0, share))


def cover_flags(flags: Sequence[str], gpu: Capability) -> str:
    """What runs on a GPU, according to a build's own flags ("sm_86", "compute_90")."""
    usable = [words for word in flags if (words := _runs(word, gpu)) is not None]
    return min(usable)[1] if usable else "none"


def _runs(word: str, gpu: Capability) -> tuple[tuple[int, int], str] | None:
    """(rank, how a GPU runs a target); lower ranks are better. None: it does not run."""
    found = capability(word)
    if found is None:
        return None
    major, minor = found
    same_family = major == gpu[0] and minor <= gpu[1]
    distance = gpu[1] - minor
    if word.endswith("a"):
        exact = found == gpu
        if not exact:
            return None
        return ((0, 0), f"sm_{major}{minor}") if word.startswith("sm_") else ((2, 0), "PTX")
    if word.startswith("sm_"):
        if not same_family:
            return None
        name = f"sm_{major}{minor}"
        return ((0, 0), name) if distance == 0 else ((1, distance), f"{name} binary")
    if word.endswith("f"):
        return ((2, 0), "PTX") if same_family else None
    return ((2, 0), "PTX") if found <= gpu else None
