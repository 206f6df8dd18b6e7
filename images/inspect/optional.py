"""Libraries that a package brings for several machines, of which it loads the one that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from images.inspect.loader import NeededLibrary
from images.inspect.packages import Distribution

_CUDA_LIBRARY = re.compile(
    r"lib(cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink)\.so\.[\d.]+"
)


def for_each_cuda(
    needs: Sequence[NeededLibrary], owner_of: Callable[[str], Distribution | None]
) -> tuple[NeededLibrary, ...]:
    """The needs; those of a CUDA that is not there are not required by a package that has a library
    for the CUDA that is. Such a package loads the one that fits (torch-memory-saver).
    """
    cuda = [need for need in needs if _CUDA_LIBRARY.fullmatch(need.name)]
    owners = {need.file: owner_of(need.file) for need in cuda}
    fits = {id(owners[need.file]) for need in cuda if need.status in ("found", "loaded-before")}
    fits.discard(id(None))
    others = {
        (need.file, need.name)
        for need in cuda
        if need.status in ("missing", "elsewhere") and id(owners[need.file]) in fits
    }
    return tuple(
        replace(need, required=False) if (need.file, need.name) in others else need
        for need in needs
    )
