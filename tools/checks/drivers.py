"""Rules for toolkits, driver branches, kernel modules, and the GPUs that these support."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from provision.catalog.catalog import Catalog
from provision.catalog.rows.gpus import GpuModel
from provision.catalog.rows.nvidia import CudaDropped, DriverBranch, ForwardCompat
from provision.model.plan import ComputeCapability
from tools.checks.problems import (
    Problem,
    Rule,
    below,
    doubled,
    is_date,
    is_day,
    modules_name,
    rising,
)

_MODULES = ("optional", "required-from-blackwell", "only")
"""The states of branches in order of time: open kernel modules appeared, then became the
only ones.
"""


def _newer_needs_no_less(catalog: Catalog) -> Iterator[Problem]:
    """A newer CUDA needs at least as new a driver; rows are ordered oldest first."""
    floors = [(str(row.major), row.min_driver) for row in catalog.families]
    yield from rising("newer-needs-no-less", "cuda.json families", floors)
    shipped = [(row.full, row.driver) for row in catalog.toolkits]
    yield from rising("newer-needs-no-less", "cuda.json toolkits", shipped)


def _branches_rise(catalog: Catalog) -> Iterator[Problem]:
    """Branches are ordered oldest first; a newer one supports no older CUDA and drives no older
    GPU.
    """
    table = "drivers.json branches"
    rows = catalog.branches
    yield from rising("branches-rise", table, [(str(r.branch), r.max_cuda) for r in rows])
    for position, (before, row) in enumerate(pairwise(rows), start=1):
        if row.dropped_below < before.dropped_below:
            what = f"drives older GPUs than branch {before.branch} before it"
            yield Problem("branches-rise", f"{table}[{position}]", str(row.branch), what)
    highest = 0
    for position, row in enumerate(rows):
        rank = _MODULES.index(row.open_modules) if row.open_modules else highest
        if rank < highest:
            what = "brings back kernel modules that a branch before it did away with"
            yield Problem("branches-rise", f"{table}[{position}]", str(row.branch), what)
        highest = max(highest, rank)


def _branch_rows(catalog: Catalog) -> Iterator[Problem]:
    """A branch's versions are of that branch; what it adds has its source."""
    open_from = next(
        (row.capability for row in catalog.kernel_modules if row.open_modules != "unsupported"),
        None,
    )
    for position, row in enumerate(catalog.branches):
        faults = [*_branch_faults(row), *_module_faults(row, open_from)]
        for what in faults:
            place = f"drivers.json branches[{position}]"
            yield Problem("branch-row", place, str(row.branch), what)


def _branch_faults(row: DriverBranch) -> Iterator[str]:
    for said, version in (("first", row.first_version), ("newest", row.latest_seen)):
        if version and version.partition(".")[0] != str(row.branch):
            yield f"{said} version {version} is of another branch"
    if row.latest_seen and row.first_version and below(row.latest_seen, row.first_version):
        yield f"newest version {row.latest_seen} is older than the first"
    if bool(row.adds) < bool(row.adds_source):
        yield "names a source for chips that it does not add"
    if row.adds and row.adds_source is None and row.adds_confidence == "confirmed":
        yield "adds chips and names no source for it"
    if row.end_of_life and not is_date(row.end_of_life):
        yield f"end of life {row.end_of_life} is no date"
    if row.latest_date and not is_day(row.latest_date):
        yield f"date of its newest version {row.latest_date} is no day"
    if (row.latest_date or row.latest_source) and not row.latest_seen:
        yield "the date or the source of a newest version that is not named"
    if row.latest_date and not row.latest_source:
        yield "the date of its newest version has no source"


def _module_faults(row: DriverBranch, open_from: ComputeCapability | None) -> Iterator[str]:
    """`open_from`: the lowest capability that the open kernel modules serve."""
    if (row.open_modules is None) != (row.modules_source is None):
        yield "its kernel modules and their source go together"
    if row.open_modules == "only" and (open_from is None or row.dropped_below < open_from):
        yield "has only the open kernel modules, and drives GPUs that they do not serve"


def _gpu_drivers(catalog: Catalog) -> Iterator[Problem]:
    """A chip is added by one branch, which drives it; the GPUs of one capability all name their
    chip.
    """
    yield from doubled(
        "drivers.json branches adds", [chip for row in catalog.branches for chip in row.adds]
    )
    named = {row.chip for row in catalog.gpus}
    for position, branch in enumerate(catalog.branches):
        for chip in branch.adds:
            if chip not in named:
                what = f"adds {chip}, which no GPU has"
                place = f"drivers.json branches[{position}]"
                yield Problem("gpu-driver", place, str(branch.branch), what)
    for position, row in enumerate(catalog.gpus):
        for what in _driver_faults(row, catalog):
            yield Problem("gpu-driver", f"gpus.json gpus[{position}]", row.name, what)


def _toolkit_rows(catalog: Catalog) -> Iterator[Problem]:
    """A toolkit's names agree, its family exists, and its driver's branch supports it."""
    for position, row in enumerate(catalog.toolkits):
        place = f"cuda.json toolkits[{position}]"
        if not row.full.startswith(f"{row.cuda}."):
            yield Problem("toolkit-row", place, row.full, f"is no release of CUDA {row.cuda}")
        if row.minor_version_compatibility != (catalog.family(row.cuda) is not None):
            what = "minor-version compatibility and the table of families disagree"
            yield Problem("toolkit-row", place, row.full, what)
        if row.released is not None and not is_day(row.released):
            yield Problem("toolkit-row", place, row.full, f"{row.released!r} is no day")
        if row.driver is None:
            continue
        branch = catalog.branch_of(row.driver)
        if branch is None or not catalog.is_known_branch(row.driver):
            what = f"the branch of its driver {row.driver} is not in drivers.json"
            yield Problem("toolkit-driver-branch", place, row.full, what)
        elif below(branch.max_cuda, row.cuda):
            what = f"its driver {row.driver} supports no more than CUDA {branch.max_cuda}"
            yield Problem("toolkit-driver-branch", place, row.full, what)


def _compat_rows(catalog: Catalog) -> Iterator[Problem]:
    """A cuda-compat package brings a known CUDA onto known branches older than its own."""
    for position, row in enumerate(catalog.compat_packages):
        place = f"drivers.json forward_compat[{position}]"
        for rule, what in _compat_faults(row, catalog):
            yield Problem(rule, place, row.package, what)


def _compat_faults(row: ForwardCompat, catalog: Catalog) -> Iterator[tuple[str, str]]:
    known = {branch.branch: branch for branch in catalog.branches}
    if row.package != f"cuda-compat-{row.provides_cuda.replace('.', '-')}":
        yield "compat-row", f"the name does not say CUDA {row.provides_cuda}"
    if catalog.toolkit(row.provides_cuda) is None:
        yield "compat-row", f"CUDA {row.provides_cuda} has no toolkit"
    own = known.get(row.built_from_branch)
    if own is None or own.max_cuda != row.provides_cuda:
        yield "compat-row", f"branch {row.built_from_branch} is not that of its CUDA"
    for base in (*(row.official_base_branches or ()), *row.accepted_base_branches):
        if base not in known:
            yield "compat-branch-known", f"base branch {base} is not in the table"
        if base > row.built_from_branch:
            yield "compat-row", f"base branch {base} is newer than the package"


def _driver_faults(row: GpuModel, catalog: Catalog) -> Iterator[str]:
    if (row.driver_from is None) != (row.driver_source is None):
        yield "driver_from and driver_source go together"
    if row.chip is None:
        kin = [other for other in catalog.gpus_of(row.compute_capability) if other.chip]
        if kin:
            yield f"has no chip, and {kin[0].name} of the same capability has one"
        return
    first = catalog.first_branch(row.chip)
    if first is None:
        yield f"no driver branch adds its chip {row.chip}"
    elif row.compute_capability < first.dropped_below:
        yield f"branch {first.branch} adds its chip and does not drive its capability"
    elif row.driver_from and below(row.driver_from, str(first.branch)):
        yield f"is listed from driver {row.driver_from}, older than branch {first.branch}"


def _dropped_rows(catalog: Catalog) -> Iterator[Problem]:
    """A GPU that a CUDA dropped was compiled for by the CUDA before it, and is not by this one."""
    for position, row in enumerate(catalog.dropped):
        for what in _dropped_faults(row, catalog):
            place, name = f"cuda.json dropped[{position}]", f"{row.cuda} {row.generation}"
            yield Problem("dropped-row", place, name, what)


def _dropped_faults(row: CudaDropped, catalog: Catalog) -> Iterator[str]:
    versions = catalog.cuda_versions()
    if row.cuda not in versions:
        yield f"CUDA {row.cuda} has no toolkit"
        return
    targets: list[set[tuple[int, int]]] = [
        {sm for toolkit in catalog.toolkits_of(cuda) for sm in toolkit.sm_targets}
        for cuda in (versions[max(versions.index(row.cuda) - 1, 0)], row.cuda)
    ]
    for major, minor in row.sm:
        if (major, minor) not in targets[0]:
            yield f"sm_{major}{minor} was not there to drop"
        if (major, minor) in targets[1]:
            yield f"sm_{major}{minor} is still there"


def _notes(catalog: Catalog) -> Iterator[Problem]:
    """Notes are about known branches and GPUs."""
    for position, row in enumerate(catalog.highest_majors):
        place = f"drivers.json highest_majors[{position}]"
        branch = catalog.branch_of(str(row.branch))
        if branch is None or branch.branch != row.branch:
            yield Problem("note-row", place, str(row.branch), "is not among the branches")
        elif branch.max_cuda.partition(".")[0] != str(row.cuda_major):
            what = f"CUDA {row.cuda_major} against {branch.max_cuda} in its row"
            yield Problem("note-row", place, str(row.branch), what)
    noted = {
        "gpus.json binary_notes": [r.compute_capability for r in catalog.binary_notes],
    }
    for table, capabilities in noted.items():
        for position, capability in enumerate(capabilities):
            if not catalog.gpus_of(capability):
                name = f"{capability[0]}.{capability[1]}"
                what = "no GPU has this capability"
                yield Problem("note-row", f"{table}[{position}]", name, what)


def _kernel_modules(catalog: Catalog) -> Iterator[Problem]:
    """Rows rise by capability; a row for some GPUs follows one for all, and names known GPUs."""
    table = "drivers.json kernel_modules"
    gpus = {row.name: row for row in catalog.gpus}
    lowest = catalog.kernel_modules[0] if catalog.kernel_modules else None
    if lowest is None or lowest.gpus:
        yield Problem("kernel-modules", table, "first row", "is missing, or not for all GPUs")
    for position, row in enumerate(catalog.kernel_modules):
        place, name = f"{table}[{position}]", modules_name(row)
        if position and row.capability < catalog.kernel_modules[position - 1].capability:
            yield Problem("kernel-modules", place, name, "stands after a newer capability")
        for gpu in row.gpus:
            known = gpus.get(gpu)
            if known is None:
                yield Problem("kernel-modules", place, name, f"{gpu} is not in gpus.json")
            elif known.compute_capability < row.capability:
                yield Problem("kernel-modules", place, name, f"{gpu} is of an older capability")


RULES: tuple[Rule, ...] = (
    _newer_needs_no_less,
    _branches_rise,
    _branch_rows,
    _gpu_drivers,
    _toolkit_rows,
    _compat_rows,
    _dropped_rows,
    _notes,
    _kernel_modules,
)
