"""Libraries: whether those in use are the locked ones, and whether they work together."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import site
from typing import Any, Dict, Optional, Sequence, Tuple

from verify.device.maps import mapped, read_maps
from verify.model.check import CONFIGURATION, Check, Context, Outcome, Status
from verify.model.expectations import Expectations
from verify.running.symptoms import explain

REBUILD = "build the image again from its lock, with nothing installed afterwards"


def framework(context: Context) -> Outcome:
    """Read the versions that torch and Python report."""
    import torch

    return judge_framework(
        str(torch.__version__),
        torch.version.cuda,
        platform.python_version(),
        context.expect,
        stray=_from_home(str(torch.__file__)),
    )


def _from_home(path: str) -> Optional[str]:
    """The path, if it is in the user's own packages."""
    home = site.getusersitepackages()
    return path if os.path.realpath(path).startswith(os.path.realpath(home) + os.sep) else None


def judge_framework(
    version: str,
    cuda: Optional[str],
    python: str,
    expect: Expectations,
    *,
    stray: Optional[str] = None,
) -> Outcome:
    """Judge version, CUDA tag and Python. Without a tag, the CUDA of torch's build counts."""
    base, _, local = version.partition("+")
    tag = local or ("cu" + cuda.replace(".", "") if cuda else "cpu")
    minor = ".".join(python.split(".")[:2])
    rows = [
        ("torch", base, expect.framework and expect.framework.partition("+")[0]),
        ("build", tag, expect.wheel_tag),
        ("Python", minor, expect.python and ".".join(expect.python.split(".")[:2])),
    ]
    measured = {"version": version, "build": tag, "cuda": cuda, "python": python}
    if stray:
        message = "torch comes from {}, not from the image".format(stray)
        home = "a mounted home directory has its own packages, and Python prefers them"
        remedy = "set PYTHONNOUSERSITE=1, or do not mount the home directory"
        wanted = _wanted(rows)
        return Outcome(Status.FAIL, message, home, remedy, measured, wanted, CONFIGURATION)
    if cuda is None:
        cause, fix = explain("Torch not compiled with CUDA enabled")
        message = "torch {} is a CPU build".format(version)
        return Outcome(Status.FAIL, message, cause, fix, measured, _wanted(rows))
    return _compare(rows, measured)


def _wanted(rows: "Sequence[tuple[str, str, Optional[str]]]") -> Dict[str, Any]:
    return {name.lower(): wanted for name, _, wanted in rows}


def _compare(rows: "Sequence[tuple[str, str, Optional[str]]]", measured: Dict[str, Any]) -> Outcome:
    wanted = _wanted(rows)
    other = [row for row in rows if row[2] is not None and row[1] != row[2]]
    if other:
        message = ", ".join("{} {} instead of the requested {}".format(*row) for row in other)
        cause = "the image's packages differ from its lock"
        return Outcome(Status.FAIL, message, cause, REBUILD, measured, wanted)
    message = ", ".join("{} {}".format(name, found) for name, found, _ in rows)
    unknown = all(wanted is None for _, _, wanted in rows)
    note = "; no expectation given" if unknown else ""
    return Outcome(Status.PASS, message + note, measured=measured, expected=wanted)


def cuda(context: Context) -> Outcome:
    """Compare the CUDA that torch was compiled with and the version of the mapped libcudart."""
    import torch

    return judge_cuda(torch.version.cuda, _runtime_version(), context.expect.cuda)


def _runtime_version() -> Optional[int]:
    path = next((path for stem, path in mapped(read_maps()) if stem == "libcudart"), None)
    if path is None:
        return None
    number = ctypes.c_int()
    failed = ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(number))
    return None if failed else number.value


def judge_cuda(compiled: Optional[str], runtime: Optional[int], expected: Optional[str]) -> Outcome:
    """Whether torch was compiled for the expected CUDA and runs on its major, no older minor."""
    measured = {"compiled": compiled, "runtime": None if runtime is None else cuda_text(runtime)}
    wanted = {"cuda": expected}
    if compiled is None:
        cause, fix = explain("Torch not compiled with CUDA enabled")
        return Outcome(Status.FAIL, "torch was compiled without CUDA", cause, fix, measured, wanted)
    pair = _numbers(compiled)[:2]
    if expected is not None and pair != _numbers(expected)[:2]:
        message = "compiled for CUDA {} instead of the requested {}".format(compiled, expected)
        cause = "the image has another build than its lock"
        return Outcome(Status.FAIL, message, cause, REBUILD, measured, wanted)
    if runtime is not None:
        have = (runtime // 1000, runtime % 1000 // 10)
        if have[0] != pair[0] or have < pair:
            message = "compiled for CUDA {}, running on {}".format(compiled, cuda_text(runtime))
            cause = "the loaded libcudart is not the wheel's own"
            fix = "remove the other CUDA's folder from LD_LIBRARY_PATH"
            return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    said = "unknown, it answers with a driver only" if runtime is None else cuda_text(runtime)
    message = "compiled for CUDA {}, runtime {}".format(compiled, said)
    return Outcome(Status.PASS, message, measured=measured, expected=wanted)


def cuda_text(number: int) -> str:
    """11070 is 11.7."""
    return "{}.{}".format(number // 1000, number % 1000 // 10)


def _cpu_build() -> Optional[str]:
    """Why a CPU build has no cuDNN and NCCL: the build is the cause, not their absence."""
    import torch

    return None if torch.version.cuda else "Torch not compiled with CUDA enabled"


def cudnn(context: Context) -> Outcome:
    """Query cuDNN's version, which loads it."""
    import torch

    number, error = None, _cpu_build()
    try:
        number = torch.backends.cudnn.version()
    except Exception as problem:
        error = error or "{}: {}".format(type(problem).__name__, problem)
    return judge_cudnn(number, error, context.expect.cudnn)


def judge_cudnn(number: Optional[int], error: Optional[str], expected: Optional[str]) -> Outcome:
    """Whether cuDNN loaded and has the expected version."""
    version = None if number is None else cudnn_text(number)
    return _judge_library("cuDNN", version, error, expected)


def cudnn_text(number: int) -> str:
    """8500 is 8.5.0 and 90100 is 9.1.0: NVIDIA changed the encoding with version 9."""
    major, rest = divmod(number, 1000 if number < 10000 else 10000)
    return "{}.{}.{}".format(major, rest // 100, rest % 100)


def check_nccl(context: Context) -> Outcome:
    """Query NCCL's version, which torch links."""
    version, error = None, _cpu_build()
    try:
        from torch.cuda import nccl

        version = nccl_text(nccl.version())
    except Exception as problem:
        error = error or "{}: {}".format(type(problem).__name__, problem)
    return _judge_library("NCCL", version, error, context.expect.nccl)


def nccl_text(version: Any) -> str:
    """The version from torch's forms: (2, 14, 3), 21403 and, before 2.9, 2708."""
    if isinstance(version, int):
        major, rest = divmod(version, 1000 if version < 10000 else 10000)
        version = (major, rest // 100, rest % 100)
    return ".".join(str(part) for part in tuple(version)[:3])


def _judge_library(
    name: str, version: Optional[str], error: Optional[str], expected: Optional[str]
) -> Outcome:
    measured, wanted = {"version": version}, {"version": expected}
    if error is not None or version is None:
        cause, fix = explain(error or "")
        message = "{} does not load: {}".format(name, (error or "no version").split("\n")[0])
        cause = cause or "this torch was built without {}".format(name)
        return Outcome(Status.FAIL, message, cause, fix or REBUILD, measured, wanted)
    if expected is not None and _numbers(version)[:3] != _numbers(expected)[:3]:
        message = "{} {} instead of the requested {}".format(name, version, expected)
        cause = "the loaded {} is not the one in the image's lock".format(name)
        fix = "look for another copy in LD_LIBRARY_PATH, or " + REBUILD
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    note = "" if expected else "; no expectation given"
    message = "{} {}{}".format(name, version, note)
    return Outcome(Status.PASS, message, measured=measured, expected=wanted)


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def numpy(context: Context) -> Outcome:  # noqa: ARG001
    """Convert an array to torch and back."""
    import importlib.util

    if importlib.util.find_spec("numpy") is None:
        return judge_numpy(None, None, None)
    version, error, total = None, None, None
    try:
        import numpy as np  # type: ignore[import-not-found,unused-ignore]
        import torch

        version = str(np.__version__)
        total = float(torch.from_numpy(np.arange(5.0)).numpy().sum())
    except Exception as problem:
        error = "{}: {}".format(type(problem).__name__, problem)
    return judge_numpy(version, error, total)


def judge_numpy(
    version: Optional[str], error: Optional[str], total: Optional[float], title: str = "torch"
) -> Outcome:
    """Whether 0+1+2+3+4 came back as 10. `title` is the framework's name."""
    measured, expected = {"numpy": version, "sum": total}, {"sum": 10.0}
    if version is None and error is None:
        message = "NumPy is not installed"
        return Outcome(Status.SKIP, message, measured=measured, expected=expected)
    if error is not None:
        cause, fix = explain(error)
        numpy = "NumPy {}".format(version or "").strip()
        message = "{} and {} do not work together: {}".format(title, numpy, error)
        cause, fix = cause or "NumPy itself is broken", fix or "install NumPy again, as locked"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    if total != 10.0:
        message = "an array was corrupted: its sum is {}, not 10".format(total)
        fix = "install a NumPy of the major version that {} was built for".format(title)
        return Outcome(Status.FAIL, message, "NumPy's ABI differs", fix, measured, expected)
    message = "arrays convert to {} and back (NumPy {})".format(title, version)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


CHECKS = (Check("libraries.nccl", "NCCL loads and is the requested one", check_nccl),)
