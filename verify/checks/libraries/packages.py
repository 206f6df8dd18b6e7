"""The packages beside the framework: whether Python can import them.

Each that was asked for is imported in a child of its own, after the framework, as a program that
uses it would, and one function of some is called. Of the others, the compiled parts are loaded.
That a wheel could be installed says little: an extension may lack a symbol of this framework, and a
package may put itself into a mode without it.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence, Tuple

from verify.checks.libraries import native
from verify.checks.libraries.native import CompiledPackage
from verify.checks.libraries.pytorch import REBUILD
from verify.model.check import Check, Context, Outcome, Status
from verify.model.measures import Table, pack
from verify.running.children import Child
from verify.running.symptoms import explain, last_words

LIMIT_S = 900
EACH_S = 300.0
_MOST_LOST = 50
# What a package logs when it goes on without the framework, or without its own extensions.
_WITHOUT = re.compile(
    r"Disabling (?:PyTorch|TensorFlow|JAX|Flax) because[^\n]*"
    r"|None of PyTorch, TensorFlow[^\n]* have been found[^\n]*"
    r"|xFormers can't load C\+\+/CUDA extensions[^\n]*"
    r"|Could not (?:find the bitsandbytes \w+ binary|load bitsandbytes native library)[^\n]*"
    r"|bitsandbytes library load error[^\n]*"
)
_FRAMEWORKS_SYMBOL = re.compile(r"undefined symbol: _Z\w*?(?:3c10|2at|5torch|10tensorflow)\w")
# Errors of packages that look for a GPU when they are imported.
_NO_GPU = re.compile(
    r"libcuda\.so|libnvidia-ml\.so|NVIDIA driver|No CUDA (?:GPUs|runtime|devices?)"
    r"|[Nn]o (?:NVIDIA )?GPUs?\b|CUDA (?:is )?(?:not|un)available|cuInit|CUDA_ERROR_NO_DEVICE"
    r"|[Ff]ailed to infer device type"
)


@dataclass(frozen=True)
class ImportedPackage:
    """One package. `module` is None if it has none that can be imported."""

    name: str
    version: Optional[str] = None  # None: not installed
    module: Optional[str] = None
    error: Optional[str] = None
    said: str = ""  # what it printed while it was imported
    seconds: float = 0.0


def check_packages(context: Context) -> Outcome:
    """Import each package of the expectations."""
    asked = context.expect.packages
    found = [_import(name) for name in asked]
    return judge_packages(found, gpus=context.gpus, others=native.read_compiled(asked))


def _import(name: str) -> ImportedPackage:
    from importlib import metadata

    try:
        installed = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return ImportedPackage(name)
    version = str(installed.version)
    module = main_module(name, [str(file) for file in installed.files or ()])
    if module is None:
        return ImportedPackage(name, version)
    calls = [row for row in native.table()["calls"] if row["package"] == native.plain_name(name)]
    ending = Child(lambda: _imported(module, calls)).wait(EACH_S)
    error = None if ending.returned else ending.how()
    return ImportedPackage(name, version, module, error, ending.output, ending.seconds)


def _imported(module: str, calls: Sequence[Any]) -> bool:
    importlib.import_module(module)
    for row in calls:
        place, _, name = row["function"].partition(":")
        try:
            function = getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError):  # this release has another one
            continue
        given = function(*row.get("arguments", ()))
        if "gives" in row and row["gives"] not in given:
            said = "{}() gives {}, without {}"
            raise RuntimeError(said.format(row["function"], sorted(given), row["gives"]))
    return True


def main_module(name: str, files: Iterable[str]) -> Optional[str]:
    """The module that a package is used by, from its files in the site directory: the one with its
    own name, else the one with the most files. A directory without __init__.py is looked into.
    """
    paths = [file.split("/") for file in files]
    modules: Counter[str] = Counter()
    packages = {tuple(path[:-1]) for path in paths if path[-1] == "__init__.py"}
    for path in paths:
        module = _module_of(path, packages)
        if module:
            modules[module] += 1
    plain = re.sub(r"[-_.]+", "_", name).lower()
    alike = [module for module in modules if module.lower().replace(".", "_") == plain]
    public = [module for module in modules if not module.startswith("_")]
    ranked = sorted(public, key=lambda module: (-modules[module], module))
    return next(iter([*alike, *ranked]), None)


def _module_of(path: Sequence[str], packages: Any) -> Optional[str]:
    """The topmost module or package that a file belongs to; None for data."""
    if path[0] in ("..", "") or path[0].endswith((".dist-info", ".data", ".egg-info")):
        return None
    for depth in range(1, len(path)):
        if tuple(path[:depth]) in packages:
            return ".".join(path[:depth])
    if not path[-1].endswith((".py", ".so")):
        return None
    parts = [*path[:-1], path[-1].partition(".")[0]]
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None


def judge_packages(
    found: Sequence[ImportedPackage], *, gpus: int, others: Sequence[CompiledPackage] = ()
) -> Outcome:
    """Whether each is installed and imports, in the mode for the framework, and the compiled parts
    of `others` load. Without a GPU, one that looks for it is not judged.
    """
    columns = ("package", "version", "module", "seconds", "problem")
    rows = tuple(
        (one.name, one.version or "", one.module or "", round(one.seconds, 1), one.error or "")
        for one in found
    )
    lost = tuple((o.name, o.version, *failure) for o in others for failure in o.failed)
    tables = [Table("Packages that were asked for", columns, rows)] if rows else []
    if lost:
        titles = ("package", "version", "module", "problem")
        tables.append(Table("Not loaded", titles, lost[:_MOST_LOST]))
    measured = pack(tables=tables)
    expected = {"packages": [one.name for one in found]}
    if not found:
        return Outcome(Status.SKIP, "no package was asked for beside the framework")
    for one in found:
        wrong = _what_is_wrong(one)
        if wrong and not _needs_gpu(one, gpus):
            message, cause, fix = wrong
            return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    for other in others:
        wrong = native.what_is_wrong(other)
        if wrong:
            message, cause, fix = wrong
            return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    waiting = [one.name for one in found if one.error is not None]
    works = ["{} {}".format(one.name, one.version) for one in found if one.error is None]
    without = "not judged without a GPU: {}".format(", ".join(waiting))
    if not works:
        return Outcome(Status.SKIP, without, measured=measured, expected=expected)
    message = "imported: {}".format(", ".join(works))
    message += "; " + without if waiting else ""
    loaded = sum(other.loaded for other in others)
    if loaded:
        message += "; {} extension modules of {} others load".format(loaded, len(others))
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _needs_gpu(one: ImportedPackage, gpus: int) -> bool:
    return not gpus and _NO_GPU.search("{}\n{}".format(one.error or "", one.said)) is not None


def _what_is_wrong(one: ImportedPackage) -> Optional[Tuple[str, str, str]]:
    """Message, cause and fix; None if all is well."""
    if one.version is None:
        cause = "the image's packages differ from its lock"
        return "{} is not installed".format(one.name), cause, REBUILD
    named = "{} {}".format(one.name, one.version)
    if one.error is not None:
        known, fix = explain("{}\n{}".format(one.error, one.said))
        line = one.error.partition("\n")[0][:300]
        why = known or last_words(one.said) or line
        other = "lock a release of {} for this framework".format(one.name)
        if _FRAMEWORKS_SYMBOL.search(one.error):
            why = "its library was compiled for another release of the framework"
            fix = other + "; provision inspect names every symbol that is missing"
        return "{} cannot be imported: {}".format(named, line), why, fix or other
    without = _WITHOUT.search(one.said)
    if without:
        message = "{} goes on without a part of it: {}".format(named, without.group())
        because = "this release is for another version or build of the framework"
        return message, because, "lock a release of {} for this framework".format(one.name)
    return None


CHECKS = (
    Check(
        "libraries.packages",
        "What was asked for can be imported",
        check_packages,
        "standard",
        LIMIT_S,
        on_request=True,
    ),
)
