"""The libraries in use and the locked ones: each question is asked once, and each framework answers
it in its own way, since one links its libraries and another opens them by name.
"""

from __future__ import annotations

from types import ModuleType
from typing import Callable, Dict

from verify.checks.libraries import files, jax, pytorch, tensorflow
from verify.model.check import Check, Context, Outcome

Reader = Callable[[Context], Outcome]
_MODULES: Dict[str, ModuleType] = {"pytorch": pytorch, "tensorflow": tensorflow, "jax": jax}


def _by(name: str) -> Reader:
    """What the framework's own module reads and judges."""

    def run(context: Context) -> Outcome:
        found: Outcome = getattr(_MODULES[context.framework], name)(context)
        return found

    return run


def check_files(context: Context) -> Outcome:
    """Have the framework load its libraries, then read this process's memory map."""
    if context.framework == "pytorch":
        return files.mapped_files(context)
    return _by("mapped_files")(context)


CHECKS = (
    Check("libraries.framework", "The framework is the requested one", _by("framework")),
    Check("libraries.cuda", "The CUDA runtime is the requested one", _by("cuda")),
    Check("libraries.cudnn", "cuDNN loads and is the requested one", _by("cudnn")),
)
NUMPY = Check("libraries.numpy", "NumPy and the framework share arrays", _by("numpy"))
FILES = Check("libraries.files", "Each CUDA library is loaded once, from the image", check_files)
