"""Libraries that a package brings for several CUDA versions; it loads the one that fits."""

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
    """Mark as not required the CUDA libraries that a package has other files without.

    A package with a library for each of several CUDA versions loads the one that fits
    (torch-memory-saver). If one of them finds its CUDA, the others need not.
    """
    cuda = [need for need in needs if _CUDA_LIBRARY.fullmatch(need.name)]
    found = ((need, owner_of(need.file)) for need in cuda)
    owners = {need.file: owner.name for need, owner in found if owner is not None}
    fits = {
        owners[need.file]
        for need in cuda
        if need.file in owners and need.status in ("found", "loaded-before")
    }
    others = {
        (need.file, need.name)
        for need in cuda
        if need.status in ("missing", "elsewhere") and owners.get(need.file) in fits
    }
    return tuple(
        replace(need, required=False) if (need.file, need.name) in others else need
        for need in needs
    )
