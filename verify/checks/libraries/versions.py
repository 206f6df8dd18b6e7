"""Versions: the CUDA libraries in use must belong to one CUDA and match their packages."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.checks.libraries import compiler, vision
from verify.checks.libraries.files import convolve
from verify.checks.libraries.pytorch import REBUILD, cuda_text, cudnn_text, nccl_text
from verify.device.maps import mapped, read_maps
from verify.model.check import Check, Context, Outcome, Status
from verify.model.measures import Table, pack

# These have the version of their CUDA; the rest (cuFFT, cuRAND, ...) have their own numbering.
_AS_CUDA = ("libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink")
_OF_ONE_CAST = (("libcublas", "libcublasLt"), ("libcudnn", "libcudnn_"))


@dataclass(frozen=True)
class Library:
    """One mapped library: its own version, and its package's metadata."""

    stem: str
    path: str
    version: Optional[str] = None  # by its own function; None where it has none
    made_for: Optional[str] = None  # the CUDA that it was compiled with, by its own function
    package: Optional[str] = None
    package_version: Optional[str] = None


def check_versions(context: Context) -> Outcome:
    """Load cuDNN, then query each mapped library's version."""
    import torch

    with contextlib.suppress(Exception):  # a cuDNN that does not load is another check's finding
        torch.backends.cudnn.version()
    convolve()
    owners = package_files()
    found = [_read(stem, path, owners) for stem, path in mapped(read_maps()) if stem != "libcuda"]
    return judge_versions(found, context.expect.cuda or torch.version.cuda)


def package_files() -> Dict[str, Tuple[str, str]]:
    """The real path of each file of NVIDIA's packages, with the package's name and version."""
    from importlib import metadata

    found = {}
    for package in metadata.distributions():
        name = str(package.metadata["Name"] or "").lower().replace("_", "-")
        for file in (package.files or ()) if name.startswith("nvidia-") else ():
            if ".so" in file.name:
                path = os.path.realpath(str(package.locate_file(file)))
                found[path] = (name, str(package.version))
    return found


def _read(stem: str, path: str, owners: Mapping[str, Tuple[str, str]]) -> Library:
    package, package_version = owners.get(os.path.realpath(path), (None, None))
    version = made_for = None
    with contextlib.suppress(OSError):  # it is mapped, so that this opens what is already there
        library = ctypes.CDLL(path)
        version, made_for = own_version(stem, library), _cuda_of(stem, library)
    return Library(stem, path, version, made_for, package, package_version)


def own_version(stem: str, library: Any) -> Optional[str]:
    """The version that the library reports. None of these functions needs a GPU or a driver."""
    ask = _ASK.get("libcudnn" if stem.startswith("libcudnn") else stem)
    if ask is None:
        return None
    try:
        return ask(library)
    except AttributeError:  # this release has no such function
        return None


def _property(name: str) -> Callable[[Any], Optional[str]]:
    """By `fooGetProperty(libraryPropertyType, int *)`: 0, 1 and 2 are major, minor and patch."""

    def ask(library: Any) -> Optional[str]:
        function, parts = getattr(library, name), []
        for kind in range(3):
            value = ctypes.c_int()
            if function(ctypes.c_int(kind), ctypes.byref(value)):
                return None
            parts.append(str(value.value))
        return ".".join(parts)

    return ask


def _number(name: str, text: Callable[[int], str]) -> Callable[[Any], Optional[str]]:
    """By a function that writes one int; where it fails (no driver), it has said nothing."""

    def ask(library: Any) -> Optional[str]:
        value = ctypes.c_int()
        failed = getattr(library, name)(ctypes.byref(value))
        return None if failed else text(value.value)

    return ask


def _pair(name: str) -> Callable[[Any], Optional[str]]:
    """By a function that writes major and minor."""

    def ask(library: Any) -> Optional[str]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        failed = getattr(library, name)(ctypes.byref(major), ctypes.byref(minor))
        return None if failed else "{}.{}".format(major.value, minor.value)

    return ask


def _returned(name: str, text: Callable[[int], str]) -> Callable[[Any], Optional[str]]:
    """By a function that returns a size_t."""

    def ask(library: Any) -> Optional[str]:
        function = getattr(library, name)
        function.restype = ctypes.c_size_t
        return text(int(function()))

    return ask


_ASK: Dict[str, Callable[[Any], Optional[str]]] = {
    "libcudart": _number("cudaRuntimeGetVersion", cuda_text),
    "libcublas": _property("cublasGetProperty"),
    "libcublasLt": _property("cublasLtGetProperty"),
    "libcudnn": _returned("cudnnGetVersion", cudnn_text),
    "libcufft": _property("cufftGetProperty"),
    "libcurand": _property("curandGetProperty"),
    "libcusolver": _property("cusolverGetProperty"),
    "libcusparse": _property("cusparseGetProperty"),
    "libnccl": _number("ncclGetVersion", nccl_text),
    "libnvJitLink": _pair("nvJitLinkVersion"),
    "libnvrtc": _pair("nvrtcVersion"),
}


def _cuda_of(stem: str, library: Any) -> Optional[str]:
    names = {"libcublas": "cublas", "libcublasLt": "cublasLt", "libcudnn": "cudnn"}
    name = names.get("libcudnn" if stem.startswith("libcudnn") else stem)
    if name is None:
        return None
    try:
        said = _returned(name + "GetCudartVersion", cuda_text)(library)
    except AttributeError:
        return None
    return None if said == "0.0" else said


# The judgement


def judge_versions(found: Sequence[Library], cuda: Optional[str]) -> Outcome:
    """Whether each matches its package, and all belong to the plan's CUDA."""
    measured = pack(tables=[_table(found)]) if found else {}
    expected = {"cuda": cuda}
    if not found:
        message = "no CUDA library is loaded as a file: there is nothing to compare"
        return Outcome(Status.SKIP, message, fix=REBUILD, measured=measured, expected=expected)
    faults = [*_replaced(found), *_of_another_cuda(found, cuda), *_of_two_casts(found)]
    if faults:
        measured["faults"] = [fault[0] for fault in faults]
        return Outcome(Status.FAIL, *faults[0], measured, expected)
    packaged = sum(row.package is not None and row.version is not None for row in found)
    told = "{} of {} libraries report their version, all of CUDA {}; {} match their packages"
    said = sum(row.version is not None for row in found)
    message = told.format(said, len(found), (cuda or "unknown").split(".")[0], packaged)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _table(found: Sequence[Library]) -> Table:
    return Table(
        "CUDA libraries in use",
        ("library", "says", "made for CUDA", "package", "its version"),
        tuple((r.stem, r.version, r.made_for, r.package, r.package_version) for r in found),
    )


def _replaced(found: Sequence[Library]) -> "List[tuple[str, str, str]]":
    """Libraries whose version is not their package's, to the precision of both: cuDNN 8.5.0 matches
    8.5.0.96, nvrtc 11.7 matches 11.7.99.
    """
    faults = []
    for row in found:
        if row.version and row.package_version and not _same(row.version, row.package_version):
            message = "{} reports {}, its package {} is {}".format(
                row.stem, row.version, row.package, row.package_version
            )
            cause = "{} was replaced after its package had been installed".format(row.path)
            faults.append((message, cause, REBUILD))
    return faults


def _same(first: str, second: str) -> bool:
    one, other = _numbers(first), _numbers(second)
    shared = min(len(one), len(other), 3)
    return one[:shared] == other[:shared]


def _of_another_cuda(found: Sequence[Library], cuda: Optional[str]) -> "List[tuple[str, str, str]]":
    """One major version throughout; nvJitLink also no older than the CUDA that calls it."""
    if cuda is None:
        return []
    faults, wanted = [], _numbers(cuda)[:2]
    for row in found:
        says = row.made_for or (row.version if row.stem in _AS_CUDA else None)
        if says and _numbers(says)[0] != wanted[0]:
            message = "{} is from CUDA {}, the rest from {}".format(row.stem, says, cuda)
            cause = "{} comes from a package for another CUDA".format(row.path)
            faults.append((message, cause, "remove that package; " + REBUILD))
        elif row.stem == "libnvJitLink" and row.version and _numbers(row.version) < wanted:
            message = "libnvJitLink {} is older than CUDA {}".format(row.version, cuda)
            cause = "cuSPARSE needs the nvJitLink of its own CUDA minor version"
            faults.append((message, cause, "install the nvidia-nvjitlink of CUDA " + cuda))
    return faults


def _of_two_casts(found: Sequence[Library]) -> "List[tuple[str, str, str]]":
    """Files of one library must have the same version."""
    faults = []
    for whole, part in _OF_ONE_CAST:
        head = next((row for row in found if row.stem == whole and row.version), None)
        for row in found if head else ():
            kin = row.stem == part or (part.endswith("_") and row.stem.startswith(part))
            if head and kin and row.version and row.version != head.version:
                message = "{} {} stands beside {} {}".format(
                    row.stem, row.version, whole, head.version
                )
                cause = "{} and {} are parts of one library".format(row.path, head.path)
                faults.append((message, cause, REBUILD))
    return faults


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


CHECKS = (
    Check(
        "libraries.versions", "All libraries come from one CUDA version", check_versions, "standard"
    ),
    *vision.CHECKS,
    *compiler.CHECKS,
)
