"""The compiled parts of the packages that were not asked for: whether each extension module loads,
and whether there are the CUDA libraries that their libraries open by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import mmap
import os
import pkgutil
import re
import time
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, Collection, Dict, List, Optional, Sequence, Tuple

from verify.running.children import Child

EACH_S = 120.0
ALL_S = 300.0
_NOT_LOADED = re.compile(
    r"(?P<library>lib[^\s:/]+\.so[.\d]*): cannot open shared object file"
    r"|undefined symbol: (?P<symbol>\w+)|version `[^']+' not found"
)
# What is for one CUDA or one release of the framework: `provision lock` warns of it.
_FOR_GPUS = re.compile(r"lib(cu|nv|nccl|torch|c10|tensorflow)")
_FRAMEWORKS_SYMBOL = re.compile(r"_Z\w*?(?:3c10|2at|5torch|10tensorflow)\w|cuda|cublas|cudnn|nccl")
_OPENED = re.compile(rb"\0(lib(cudart|cublas|cublasLt|nvrtc)\.so\.\d+(?:\.\d+)?)(?=\0)")
_DEVICE_CODE = b"\x50\xed\x55\xba"  # the magic of a fatbin: constants come before it
_NO_MODULE = "does not define module export function"
_OWN = re.compile(r"torch|triton|tensorflow([-_].*)?|jax|jaxlib|jax[-_]cuda.*")
_NVIDIAS = re.compile(r"(nvidia|cuda)[-_].*")
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class CompiledPackage:
    """A package with extension modules: how many were loaded, those that were not with the error,
    and the CUDA libraries that it opens by name and that are nowhere.
    """

    name: str
    version: str
    loaded: int = 0
    failed: Tuple[Tuple[str, str], ...] = ()
    absent: Tuple[str, ...] = ()


def table() -> Dict[str, Any]:
    """The functions to call, and the libraries that packages do without."""
    data = pkgutil.get_data("verify.checks.libraries", "package_calls.json")
    found: Dict[str, Any] = json.loads(data or b"")
    return found


def read_compiled(asked: Collection[str]) -> List[CompiledPackage]:
    """Load the extension modules of all packages but those of the framework, and those that were
    asked for: these are imported themselves. Of these, too, what they open by name is looked for.
    """
    imported = {plain_name(name) for name in asked}
    seen, found = set(), []
    until = time.monotonic() + ALL_S
    files = _files()
    names = {os.path.basename(path) for paths in files.values() for path, _ in paths}
    for (name, version), paths in files.items():
        plain, left = plain_name(name), until - time.monotonic()
        skipped = plain in imported or _NVIDIAS.fullmatch(plain)
        modules = () if skipped else extension_modules([path for path, _ in paths])
        wanted = (modules or plain in imported) and not _OWN.fullmatch(plain)
        if plain in seen or left <= 0 or not wanted:
            continue
        seen.add(plain)
        places = [place for path, place in paths if ".so" in path]
        ending = Child(partial(_load, modules, places, names)).wait(min(EACH_S, left))
        if ending.returned:  # a crash of a module that nobody imports says nothing
            failed = tuple((module, error) for module, error in ending.value["failed"])
            row = len(modules) - len(failed), failed, tuple(ending.value["absent"])
            found.append(CompiledPackage(name, version, *row))
    return found


def _files() -> Dict[Tuple[str, str], List[Tuple[str, str]]]:
    """The files of each package with libraries, by its name and version: as its RECORD lists them,
    and where they are.
    """
    found: Dict[Tuple[str, str], List[Tuple[str, str]]] = {}
    for installed in metadata.distributions():
        name = installed.metadata["Name"] or ""
        listed = [str(file) for file in installed.files or () if ".so" in str(file)]
        if name and listed:
            rows = [(path, str(installed.locate_file(path))) for path in listed]
            found.setdefault((name, str(installed.version)), rows)
    return found


def extension_modules(files: Sequence[str]) -> Tuple[str, ...]:
    """The modules among the files of a package that this Python loads as libraries; not those of
    its tests.
    """
    found = []
    for file in files:
        path = file.split("/")
        suffix = next((one for one in EXTENSION_SUFFIXES if file.endswith(one)), None)
        if suffix is None or "tests" in path or path[-1].startswith("lib"):
            continue
        parts = [*path[:-1], path[-1][: -len(suffix)]]
        if all(part.isidentifier() for part in parts):
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return tuple(found)


def _load(
    modules: Sequence[str], places: Sequence[str], names: Collection[str]
) -> Dict[str, List[Any]]:
    failed = [(module, error) for module in modules for error in _error_of(module)]
    return {"failed": failed, "absent": absent_libraries(places, names)}


def _error_of(module: str) -> List[str]:
    """What importing a module raises, as a list of one; []: it loads."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # a module may even exit
        if _NO_MODULE in str(error):  # it was loaded, and has operators for the framework
            return []
        return ["{}: {}".format(type(error).__name__, error)[:400]]
    return []


def absent_libraries(places: Sequence[str], names: Collection[str]) -> List[str]:
    """The CUDA libraries that those at these paths open by name, if none of a kind can be opened,
    or is among the `names` of files in the image: one library may try several versions, a package
    may have a library for each CUDA, and another may find it where the loader does not look.
    """
    named: Dict[str, Dict[str, None]] = {}
    for path in places:
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < _LEAST_BYTES:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"\0dlopen\0") < 0:
                    continue
                end = content.find(_DEVICE_CODE)
                for match in _OPENED.finditer(content, 0, len(content) if end < 0 else end):
                    named.setdefault(match[2].decode(), {})[match[1].decode()] = None
    return [
        " or ".join(tried)
        for tried in named.values()
        if not any(name in names or _opens(name) for name in tried)
    ]


def _opens(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def what_is_wrong(one: CompiledPackage) -> Optional[Tuple[str, str, str]]:
    """Message, cause and fix; None: all loads, or what does not is optional, or only for GPUs or
    another release of the framework, of which `provision lock` warns.
    """
    named = "{} {}".format(one.name, one.version)
    if one.absent:
        message = "{} opens {}, which cannot be loaded".format(named, one.absent[0])
        cause = "the package is for another CUDA than the framework"
        return message, cause, "lock the image again: provision lock takes the CUDA of packages"
    optional = tuple(table()["optional"]["libraries"])
    for module, error in one.failed:
        match = _NOT_LOADED.search(error)
        if match is None:
            continue
        library, symbol = match.group("library") or "", match.group("symbol") or ""
        if library.startswith(optional) or _FOR_GPUS.match(library):
            continue
        if symbol and _FRAMEWORKS_SYMBOL.search(symbol):
            continue
        message = "{} of {} cannot be loaded: {}".format(module, named, error.partition("\n")[0])
        cause = "the image lacks {}".format(library or symbol or "a version of a library")
        return message, cause, "add the Debian package that has it: --apt PACKAGE, or --base IMAGE"
    return None


def plain_name(name: str) -> str:
    """The name of a package as tables have it: "Faiss_CPU" -> "faiss-cpu"."""
    return re.sub(r"[-_.]+", "-", name).lower()
