"""Judges of libraries that TensorFlow and JAX share, with each framework's own terms."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import site
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from verify.backends.base import Backend
from verify.checks.libraries.pytorch import REBUILD
from verify.device.maps import mapped, read_maps
from verify.model.check import CONFIGURATION, Outcome, Status
from verify.model.expectations import Expectations

_ASKED = {
    "libcudart": ("cudaRuntimeGetVersion", ctypes.c_int),
    "libcudnn": ("cudnnGetVersion", None),
}


def from_home(path: str) -> Optional[str]:
    """The path of a module, if it is in the user's own packages."""
    home = os.path.realpath(site.getusersitepackages())
    return path if os.path.realpath(path).startswith(home + os.sep) else None


@dataclass(frozen=True)
class FoundLibraries:
    """A framework's own version and paths. `cuda` is None for a CPU build."""

    version: str
    cuda: Optional[str]
    stray: Optional[str] = None  # where it is, if not in the image
    python: str = ""

    @classmethod
    def here(cls, version: str, cuda: Optional[str], file: str) -> FoundLibraries:
        """Adds this Python's version and whether the framework comes from the user's home."""
        return cls(version, cuda, from_home(file), platform.python_version())


def judge_framework(found: FoundLibraries, expect: Expectations, backend: Backend) -> Outcome:
    """Whether version and Python are the plan's, and the build has CUDA and is the image's."""
    wanted = {"version": expect.framework, "python": expect.python}
    measured = {"version": found.version, "cuda": found.cuda, "python": found.python}
    if found.stray:
        message = "{} comes from {}, not from the image".format(backend.terms.title, found.stray)
        cause = "a mounted home directory has its own packages, and Python prefers them"
        fix = "set PYTHONNOUSERSITE=1, or do not mount the home directory"
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted, CONFIGURATION)
    if found.cuda is None:
        return backend.without_cuda(measured, wanted)
    rows = (
        (backend.terms.title, found.version, expect.framework),
        ("Python", found.python, ".".join((expect.python or "").split(".")[:2]) or None),
    )
    other = [row for row in rows if not as_asked(row[1], row[2])]
    if other:
        message = ", ".join("{} {} instead of the requested {}".format(*row) for row in other)
        cause = "the image's packages differ from its lock"
        return Outcome(Status.FAIL, message, cause, REBUILD, measured, wanted)
    message = "{} {} for CUDA {}, Python {}".format(
        backend.terms.title, found.version, found.cuda, found.python
    )
    note = "" if expect.framework or expect.python else "; no expectation given"
    return Outcome(Status.PASS, message + note, measured=measured, expected=wanted)


def numbers(version: str) -> Tuple[int, ...]:
    """12.5.1 is (12, 5, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def as_asked(version: str, asked: Optional[str]) -> bool:
    """Whether a version is the requested one, to the precision of both: 8.6.0 matches 8.6.

    A package's version has a fourth number, its build's, which the library does not report.
    """
    parts, have = numbers((asked or "").partition("+")[0]), numbers(version)
    return have[: len(parts)] == parts[: max(len(have), 1)]


def judge_cudnn(
    version: Optional[str],
    error: Optional[str],
    expected: Optional[str],
    compiled: Optional[str],
) -> Outcome:
    """Whether cuDNN loads, is the plan's, and has the major version compiled against."""
    measured, wanted = {"version": version, "compiled": compiled}, {"version": expected}
    if version is None:
        said = (error or "no version").split("\n")[0]
        cause = "the library file is missing from the image, or needs one that is"
        fix = "install nvidia-cudnn-cuNN of the lock, NN being CUDA's major version; " + REBUILD
        return Outcome(Status.FAIL, "cuDNN does not load: " + said, cause, fix, measured, wanted)
    if expected is not None and not as_asked(version, expected):
        message = "cuDNN {} instead of the requested {}".format(version, expected)
        cause = "the loaded cuDNN is not the one in the image's lock"
        fix = "look for another copy in LD_LIBRARY_PATH, or " + REBUILD
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    if compiled is not None and older(version, compiled):
        message = "cuDNN {}, compiled against {}".format(version, compiled)
        cause = (
            "a framework needs the cuDNN it was built with, or a later one of that major version"
        )
        fix = "install cuDNN {} or a later {}.x".format(compiled, numbers(compiled)[0])
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    note = "" if expected else "; no expectation given"
    return Outcome(
        Status.PASS, "cuDNN {}{}".format(version, note), measured=measured, expected=wanted
    )


def older(version: str, compiled: str) -> bool:
    """Whether a library is too old for code that was compiled against `compiled`."""
    have, need = numbers(version)[:2], numbers(compiled)[:2]
    return have[:1] != need[:1] or have < need


def library_number(stem: str) -> Optional[int]:
    """The version number that a mapped library returns: 12090, 90800. None if it is not mapped."""
    path = next((path for name, path in mapped(read_maps()) if name == stem), None)
    if path is None:
        return None
    name, filled = _ASKED[stem]
    function = getattr(ctypes.CDLL(path), name)
    if filled is None:
        function.restype = ctypes.c_size_t
        return int(function())
    number = filled()
    return None if function(ctypes.byref(number)) else int(number.value)


def listed(names: Sequence[str]) -> str:
    """A, B and C."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
