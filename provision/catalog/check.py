"""What must hold between the rows. The tests run it over the shipped tables and over broken ones.

Each rule is a function that yields (row, what is wrong); the table's place in its file is put
before it. A row that is known to break a rule has an entry among the file's `exceptions`, with the
reason; an exception that excuses nothing is itself a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from packaging.requirements import InvalidRequirement, Requirement

from provision.catalog import FILES, Catalog
from provision.catalog.later_checks import LATER_RULES
from provision.catalog.problems import (
    Problem,
    as_version,
    below,
    doubled,
    is_date,
    is_day,
    is_specifier,
    rising,
    wrong_python_tags,
    wrong_targets,
)
from provision.catalog.rows import DriverBranch, ForwardCompat, GpuModel, TorchBuild
from provision.model.plan import ComputeCapability


def check(catalog: Catalog) -> list[str]:
    """Every broken invariant, as sentences that name file and row; [] is a sound catalog."""
    problems = [problem for rule in (*_RULES, *LATER_RULES) for problem in rule(catalog)]
    broken = {(problem.rule, problem.name) for problem in problems}
    excused = {(row.rule, row.row) for row in catalog.excused}
    idle = [
        f"exceptions ({row.row}): excuses nothing under {row.rule}"
        for row in catalog.excused
        if (row.rule, row.row) not in broken
    ]
    return [str(p) for p in problems if (p.rule, p.name) not in excused] + idle


def build_name(build: TorchBuild) -> str:
    """How one build is called in problems and exceptions: "2.0.1 cu117 x86_64"."""
    return f"{build.version} {build.tag} {build.arch}"


def _versions_read(catalog: Catalog) -> Iterator[Problem]:
    """Every version is one that `packaging` orders."""
    named: list[tuple[str, str, Sequence[str | None]]] = []
    for i, t in enumerate(catalog.toolkits):
        named.append((f"cuda.json toolkits[{i}]", t.full, (t.cuda, t.full, t.driver)))
    for i, f in enumerate(catalog.families):
        floors = (f.min_driver, f.min_driver_windows)
        named.append((f"cuda.json families[{i}]", str(f.major), floors))
    for i, b in enumerate(catalog.branches):
        versions = (b.max_cuda, b.first_version, b.latest_seen)
        named.append((f"drivers.json branches[{i}]", str(b.branch), versions))
    for i, g in enumerate(catalog.gpus):
        named.append((f"gpus.json gpus[{i}]", g.name, (g.driver_from,)))
    for i, r in enumerate(catalog.torch_releases):
        companions = (r.version, r.torchvision, r.torchaudio)
        named.append((f"torch.json releases[{i}]", r.version, companions))
    for i, w in enumerate(catalog.torch):
        named.append((f"torch.json builds[{i}]", build_name(w), (w.cudnn, w.nccl, w.glibc)))
    for place, name, texts in named:
        for text in texts:
            if text is not None and as_version(text) is None:
                yield Problem("version-read", place, name, f"{text!r} is no version")


def _no_duplicates(catalog: Catalog) -> Iterator[Problem]:
    """One row a fact."""
    tables: list[tuple[str, list[str]]] = [
        ("cuda.json families", [str(row.major) for row in catalog.families]),
        ("cuda.json toolkits", [row.full for row in catalog.toolkits]),
        ("cuda.json toolkits", [f"{row.cuda} update {row.update}" for row in catalog.toolkits]),
        ("drivers.json branches", [str(row.branch) for row in catalog.branches]),
        ("drivers.json forward_compat", [row.provides_cuda for row in catalog.compat_packages]),
        ("gpus.json gpus", [row.name.casefold() for row in catalog.gpus]),
        ("torch.json releases", [row.version for row in catalog.torch_releases]),
        ("torch.json builds", [build_name(row) for row in catalog.torch]),
        ("bases.json debian_suites", [row.suite for row in catalog.debian_suites]),
        ("bases.json ubuntu_releases", [row.release for row in catalog.ubuntu_releases]),
        ("bases.json pythons", [row.python for row in catalog.pythons]),
        ("bases.json python_images", [row.reference for row in catalog.python_images]),
        ("gpus.json other_vendors", [row.vendor for row in catalog.other_vendors]),
        ("bases.json compiler_wheels", [row.cuda for row in catalog.compilers]),
    ]
    for table, names in tables:
        yield from doubled(table, names)


def _newer_needs_no_less(catalog: Catalog) -> Iterator[Problem]:
    """A newer CUDA needs at least as new a driver; rows stand oldest first."""
    floors = [(str(row.major), row.min_driver) for row in catalog.families]
    yield from rising("newer-needs-no-less", "cuda.json families", floors)
    shipped = [(row.full, row.driver) for row in catalog.toolkits]
    yield from rising("newer-needs-no-less", "cuda.json toolkits", shipped)


def _branches_rise(catalog: Catalog) -> Iterator[Problem]:
    """Branches stand oldest first; a newer one supports no older CUDA and drives no older GPU."""
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
    """One branch adds a chip and drives it; of one capability all GPUs name their chip."""
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


def _toolkit_rows(catalog: Catalog) -> Iterator[Problem]:
    """A toolkit's names agree, its family is there, and its driver's branch supports it."""
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


def _pythons(catalog: Catalog) -> Iterator[Problem]:
    """Pythons stand oldest first, each with its day; every image's Python is among them."""
    table = "bases.json pythons"
    yield from rising("pythons-rise", table, [(row.python, row.python) for row in catalog.pythons])
    for position, row in enumerate(catalog.pythons):
        before = catalog.pythons[position - 1].released if position else ""
        if not is_date(row.released) or row.released <= before:
            what = f"{row.released!r} is no day after that of the one before it"
            yield Problem("pythons-rise", f"{table}[{position}]", row.python, what)
    known = {row.python for row in catalog.pythons}
    for position, image in enumerate(catalog.python_images):
        if image.python not in known:
            place = f"bases.json python_images[{position}]"
            yield Problem("pythons-known", place, image.reference, "its Python has no day")


def _release_rows(catalog: Catalog) -> Iterator[Problem]:
    """A release has builds, and its specifiers can be read."""
    built = {row.version for row in catalog.torch}
    for position, row in enumerate(catalog.torch_releases):
        place = f"torch.json releases[{position}]"
        if row.version not in built:
            yield Problem("release-row", place, row.version, "has no build")
        for specifier in (row.requires_python or "", row.numpy or ""):
            if not is_specifier(specifier):
                yield Problem("release-row", place, row.version, f"{specifier!r} is no specifier")
        if (row.numpy is None) != (row.numpy_source is None):
            yield Problem("release-row", place, row.version, "numpy and its source go together")
        if row.upload_time is not None and not is_date(row.upload_time):
            yield Problem("release-row", place, row.version, f"{row.upload_time!r} is no time")


def _build_rows(catalog: Catalog) -> Iterator[Problem]:
    """A build agrees with its release, its toolkit, its tag, its pins and itself."""
    for position, row in enumerate(catalog.torch):
        for rule, faults in _BUILD_RULES.items():
            for what in faults(row, catalog):
                place = f"torch.json builds[{position}]"
                yield Problem(rule, place, build_name(row), what)


def _release_known(build: TorchBuild, catalog: Catalog) -> Iterator[str]:
    if catalog.torch_release(build.version) is None:
        yield "its release is not in the table"


def _tag_agrees(build: TorchBuild, _: Catalog) -> Iterator[str]:
    """cu117 is CUDA 11.7, cpu is none."""
    expected = "cpu" if build.cuda is None else "cu" + build.cuda.replace(".", "")
    if build.tag != expected:
        yield f"tag {build.tag} of a build for CUDA {build.cuda}"


def _targets_known(build: TorchBuild, catalog: Catalog) -> Iterator[str]:
    """Its toolkit exists and can compile for every architecture of the build."""
    if build.cuda is None:
        if build.sm or build.ptx or build.cudnn or build.nccl:
            yield "a CPU build with GPU code or libraries"
        return
    possible = [sm for toolkit in catalog.toolkits_of(build.cuda) for sm in toolkit.sm_targets]
    yield from wrong_targets(build.cuda, build.sm, build.ptx, possible)


def _python_tags_read(build: TorchBuild, catalog: Catalog) -> Iterator[str]:
    """Well formed, and within what the release asks for."""
    release = catalog.torch_release(build.version)
    yield from wrong_python_tags(build.python_tags, release.requires_python if release else None)


def _places_known(build: TorchBuild, _: Catalog) -> Iterator[str]:
    """Each place once; the wheels of PyPI were read, the others' sizes and pins were not."""
    if len(set(build.at)) != len(build.at):
        yield "a place is named twice"
    if "pypi" in build.at and (build.size_min_bytes is None or build.size_max_bytes is None):
        yield "a wheel on PyPI without its size"
    if (build.size_min_bytes or 0) > (build.size_max_bytes or 0):
        yield "its smallest wheel is larger than its largest"


def _pins_agree(build: TorchBuild, _: Catalog) -> Iterator[str]:
    """Pins are requirements, and say the same cuDNN and NCCL as the row."""
    said = {"nvidia-cudnn-": build.cudnn, "nvidia-nccl-": build.nccl}
    for pin in build.pins:
        try:
            requirement = Requirement(pin)
        except InvalidRequirement:
            yield f"pin {pin!r} is no requirement"
            continue
        for prefix, version in said.items():
            if requirement.name.startswith(prefix) and str(requirement.specifier) != f"=={version}":
                yield f"pin {pin} against {version} in the row"


def _one_pypi_build(catalog: Catalog) -> Iterator[Problem]:
    """PyPI has one build a release and machine."""
    seen: set[tuple[str, str]] = set()
    for position, row in enumerate(catalog.torch):
        if "pypi" not in row.at:
            continue
        if (row.version, row.arch) in seen:
            place = f"torch.json builds[{position}]"
            yield Problem("one-pypi-build", place, build_name(row), "a second build on PyPI")
        seen.add((row.version, row.arch))


def _files_dated(catalog: Catalog) -> Iterator[Problem]:
    """A file says on which day it was drawn up."""
    for name in FILES:
        date = catalog.files[name].text("date")
        if not is_day(date):
            yield Problem("file-date", name, name, f"{date!r} is no day")


_RULES: tuple[Callable[[Catalog], Iterable[Problem]], ...] = (
    _versions_read,
    _no_duplicates,
    _newer_needs_no_less,
    _branches_rise,
    _branch_rows,
    _gpu_drivers,
    _toolkit_rows,
    _compat_rows,
    _pythons,
    _release_rows,
    _build_rows,
    _one_pypi_build,
    _files_dated,
)
_MODULES = ("optional", "required-from-blackwell", "only")
"""What branches did, one after the other: open kernel modules came, and became the only ones."""

_BUILD_RULES: dict[str, Callable[[TorchBuild, Catalog], Iterator[str]]] = {
    "release-known": _release_known,
    "tag-agrees": _tag_agrees,
    "targets-known": _targets_known,
    "python-tags": _python_tags_read,
    "places-known": _places_known,
    "pins-agree": _pins_agree,
}
