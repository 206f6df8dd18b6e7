"""Rules of `provision.catalog.check` for the tables that are read only when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from packaging.requirements import InvalidRequirement, Requirement

from provision.catalog import Catalog
from provision.catalog.problems import (
    Problem,
    as_version,
    doubled,
    is_date,
    is_specifier,
    rising,
    wrong_python_tags,
    wrong_targets,
)
from provision.catalog.rows import (
    CudaDropped,
    CudaImage,
    CudnnRelease,
    JaxPlugin,
    KernelModules,
    NcclRelease,
    StartRule,
    TensorflowRelease,
    TensorflowWheel,
)

_OS = re.compile(
    r"ubuntu\d\d\.\d\d|(?:rockylinux|ubi|centos|oraclelinux|opensuse|amzn|cm|azl)\d+", re.ASCII
)
_PTX_TARGET = re.compile(r"sm_\d{2,3}a?")
_CUDNN_MAJOR = re.compile(r"-cudnn(\d+)-")


def _versions_read(catalog: Catalog) -> Iterator[Problem]:
    """Every version is one that `packaging` orders."""
    named: list[tuple[str, str, Sequence[str | None]]] = []
    for i, t in enumerate(catalog.tensorflow_releases):
        named.append((f"tensorflow.json tensorflow_releases[{i}]", t.version, (t.cuda, t.cudnn)))
    for i, w in enumerate(catalog.tensorflow_wheels):
        named.append((f"tensorflow.json tensorflow_wheels[{i}]", w.version, (w.glibc,)))
    for i, j in enumerate(catalog.jax_releases):
        named.append((f"jax.json jax_releases[{i}]", j.version, (j.glibc,)))
    for i, p in enumerate(catalog.jax_plugins):
        named.append((f"jax.json jax_plugins[{i}]", plugin_name(p), (p.min_driver,)))
    for i, c in enumerate(catalog.cudnn):
        named.append((f"nvidia.json cudnn[{i}]", library_name(c), (c.min_driver,)))
    for i, r in enumerate(catalog.images):
        named.append((f"images.json images[{i}]", r.tag, (r.cudnn_version,)))
    for i, s in enumerate(catalog.start_rules):
        named.append((f"images.json start_rules[{i}]", rule_name(s), (s.min_cuda,)))
    for place, name, texts in named:
        for text in texts:
            if text is not None and as_version(text) is None:
                yield Problem("version-read", place, name, f"{text!r} is no version")


def _no_duplicates(catalog: Catalog) -> Iterator[Problem]:
    """One row a fact."""
    wheels = [f"{row.version} {row.arch}" for row in catalog.tensorflow_wheels]
    tables: list[tuple[str, list[str]]] = [
        ("tensorflow.json tensorflow_releases", [r.version for r in catalog.tensorflow_releases]),
        ("tensorflow.json tensorflow_wheels", wheels),
        ("tensorflow.json tensorflow_gpu", [row.version for row in catalog.tensorflow_gpu]),
        ("jax.json jax_releases", [row.version for row in catalog.jax_releases]),
        ("jax.json jax_plugins", [plugin_name(row) for row in catalog.jax_plugins]),
        ("nvidia.json cudnn", [library_name(row) for row in catalog.cudnn]),
        ("nvidia.json nccl", [library_name(row) for row in catalog.nccl]),
        ("images.json images", [row.tag for row in catalog.images]),
        ("bases.json ubuntu_releases", [row.release for row in catalog.ubuntu_releases]),
        ("cuda.json dropped", [f"{row.cuda} {row.generation}" for row in catalog.dropped]),
        ("drivers.json highest_majors", [str(row.branch) for row in catalog.highest_majors]),
        ("drivers.json kernel_modules", [modules_name(row) for row in catalog.kernel_modules]),
        ("gpus.json binary_notes", [str(row.compute_capability) for row in catalog.binary_notes]),
    ]
    for table, names in tables:
        yield from doubled(table, names)


def _oldest_first(catalog: Catalog) -> Iterator[Problem]:
    """Releases stand in the order of their versions, libraries below their CUDA major."""
    tables = [
        ("tensorflow.json tensorflow_releases", [r.version for r in catalog.tensorflow_releases]),
        ("tensorflow.json tensorflow_gpu", [row.version for row in catalog.tensorflow_gpu]),
        ("jax.json jax_releases", [row.version for row in catalog.jax_releases]),
    ]
    for table, versions in tables:
        yield from rising("oldest-first", table, [(version, None) for version in versions])
    libraries: list[tuple[str, Sequence[CudnnRelease | NcclRelease]]] = [
        ("nvidia.json cudnn", catalog.cudnn),
        ("nvidia.json nccl", catalog.nccl),
    ]
    for table, rows in libraries:
        for position, (before, row) in enumerate(pairwise(rows), start=1):
            ranks = [(r.cuda_major, as_version(r.version)) for r in (before, row)]
            if ranks[0][1] and ranks[1][1] and ranks[0] > ranks[1]:
                place, what = f"{table}[{position}]", f"stands after {library_name(before)}"
                yield Problem("oldest-first", place, library_name(row), what)


def _tensorflow_releases(catalog: Catalog) -> Iterator[Problem]:
    """A release has wheels, and its toolkit could compile what it holds."""
    wheels = {row.version for row in catalog.tensorflow_wheels}
    for position, row in enumerate(catalog.tensorflow_releases):
        place = f"tensorflow.json tensorflow_releases[{position}]"
        for rule, what in _tensorflow_release_faults(row, catalog, wheels):
            yield Problem(rule, place, row.version, what)


def _tensorflow_release_faults(
    row: TensorflowRelease, catalog: Catalog, wheels: set[str]
) -> Iterator[tuple[str, str]]:
    if row.version not in wheels:
        yield "release-row", "has no wheel"
    if row.requires_python is not None and not is_specifier(row.requires_python):
        yield "release-row", f"{row.requires_python!r} is no specifier"
    if row.upload_time is not None and not is_date(row.upload_time):
        yield "release-row", f"{row.upload_time!r} is no time"
    if row.ptx_only is not None and not _PTX_TARGET.fullmatch(row.ptx_only):
        yield "release-row", f"{row.ptx_only!r} is no target of PTX"
    if row.ptx_only_cuda is not None and catalog.toolkit(row.ptx_only_cuda) is None:
        yield "release-row", f"PTX of CUDA {row.ptx_only_cuda}, which has no toolkit"
    version = as_version(row.version)
    if version is not None and version.is_prerelease != row.prerelease:
        yield "release-row", "its version and whether it is a candidate disagree"
    if bool(row.sm) != (row.sm_source is not None):
        yield "release-row", "architectures and their source go together"
    if row.ptx is not None and row.ptx not in row.sm:
        yield "targets-known", "PTX without the binary code that is built beside it"
    if row.cuda is None:
        if not row.prerelease or row.cudnn or row.sm:
            yield "release-row", "only a candidate, of which nothing is known, has no CUDA"
        return
    possible = [sm for toolkit in catalog.toolkits_of(row.cuda) for sm in toolkit.sm_targets]
    for what in wrong_targets(row.cuda, row.sm, row.ptx, possible):
        yield "targets-known", what


def _tensorflow_wheels(catalog: Catalog) -> Iterator[Problem]:
    """A wheel is of a known release; where CUDA is an extra, its GPU wheel names it."""
    releases = {row.version: row for row in catalog.tensorflow_releases}
    for position, row in enumerate(catalog.tensorflow_wheels):
        place, name = (
            f"tensorflow.json tensorflow_wheels[{position}]",
            f"{row.version} {row.arch}",
        )
        release = releases.get(row.version)
        if release is None:
            yield Problem("release-known", place, name, "its release is not in the table")
            continue
        for what in wrong_python_tags(row.python_tags, release.requires_python):
            yield Problem("python-tags", place, name, what)
        for what in _extra_faults(row, release):
            yield Problem("extra-row", place, name, what)
        for rule, what in _pin_faults(row.pins, catalog):
            yield Problem(rule, place, name, what)


def _extra_faults(row: TensorflowWheel, release: TensorflowRelease) -> Iterator[str]:
    extra = row.gpu and release.libraries == "extra"
    if row.pins and not extra:
        yield "pins of an extra that it does not have"
    if not row.pins and extra and not release.prerelease:
        yield "no pins for the CUDA that it brings"
    if row.stands_for and row.gpu:
        yield "GPU code in a wheel that only points to others"


def _tensorflow_gpu(catalog: Catalog) -> Iterator[Problem]:
    """A release of the old package holds wheels, or is a stub."""
    for position, row in enumerate(catalog.tensorflow_gpu):
        place = f"tensorflow.json tensorflow_gpu[{position}]"
        if (row.content == "stub") == bool(row.python_tags):
            yield Problem("release-row", place, row.version, "a stub has no Pythons, a wheel has")
        for what in wrong_python_tags(row.python_tags, None):
            yield Problem("python-tags", place, row.version, what)


def _jax_rows(catalog: Catalog) -> Iterator[Problem]:
    """A plugin is of a known release, and what it asks for can be read and had."""
    releases = {row.version for row in catalog.jax_releases}
    for position, release in enumerate(catalog.jax_releases):
        for what in wrong_python_tags(release.python_tags, None):
            place = f"jax.json jax_releases[{position}]"
            yield Problem("python-tags", place, release.version, what)
    for position, row in enumerate(catalog.jax_plugins):
        place = f"jax.json jax_plugins[{position}]"
        if row.version not in releases:
            what = "its release is not in the table"
            yield Problem("release-known", place, plugin_name(row), what)
        for rule, what in _plugin_faults(row, catalog):
            yield Problem(rule, place, plugin_name(row), what)


def _plugin_faults(row: JaxPlugin, catalog: Catalog) -> Iterator[tuple[str, str]]:
    if catalog.family(str(row.cuda_major)) is None:
        yield "plugin-row", f"CUDA {row.cuda_major} is no family"
    if row.package != f"jax-cuda{row.cuda_major}-plugin" or row.extra != f"cuda{row.cuda_major}":
        yield "plugin-row", f"package or extra do not say CUDA {row.cuda_major}"
    if not catalog.is_known_branch(row.min_driver):
        yield "plugin-row", f"the branch of driver {row.min_driver} is not in drivers.json"
    for spec in (row.cuda_runtime, row.cudnn, row.nccl):
        if spec is not None and not is_specifier(spec):
            yield "plugin-row", f"{spec!r} is no specifier"
    pins = {"cudnn": row.cudnn, "nccl": row.nccl}
    lines = [f"nvidia-{name}-cu{row.cuda_major}{spec}" for name, spec in pins.items() if spec]
    for rule, what in _pin_faults(lines, catalog):
        if rule != "pins-read":
            yield rule, what


def _library_rows(catalog: Catalog) -> Iterator[Problem]:
    """A library is of a known family, which compiles for all that it supports."""
    targets: dict[str, set[tuple[int, int]]] = {}
    for toolkit in catalog.toolkits:
        targets.setdefault(toolkit.cuda.partition(".")[0], set()).update(toolkit.sm_targets)
    tables: list[tuple[str, Sequence[CudnnRelease | NcclRelease]]] = [
        ("nvidia.json cudnn", catalog.cudnn),
        ("nvidia.json nccl", catalog.nccl),
    ]
    for table, rows in tables:
        for position, row in enumerate(rows):
            wanted = row.capabilities if isinstance(row, CudnnRelease) else (row.sm_min,)
            for what in _library_faults(row, wanted, targets.get(str(row.cuda_major), set())):
                place = f"{table}[{position}]"
                yield Problem("library-row", place, library_name(row), what)


def _library_faults(
    row: CudnnRelease | NcclRelease,
    wanted: tuple[tuple[int, int], ...],
    possible: set[tuple[int, int]],
) -> Iterator[str]:
    if as_version(row.version) is None:
        yield f"{row.version!r} is no version"
    if row.upload_date is not None and not is_date(row.upload_date):
        yield f"{row.upload_date!r} is no day"
    if not wanted or list(wanted) != sorted(set(wanted)):
        yield "capabilities are missing, not in order, or doubled"
    for major, minor in wanted:
        if (major, minor) not in possible:
            yield f"CUDA {row.cuda_major} cannot compile for sm_{major}{minor}"


def _torch_pins(catalog: Catalog) -> Iterator[Problem]:
    """The cuDNN and NCCL that a PyTorch build pins are releases of the table."""
    for position, row in enumerate(catalog.torch):
        for rule, what in _pin_faults(row.pins, catalog):
            if rule != "pins-read":  # that is the business of the build's own rules
                place, name = (
                    f"torch.json builds[{position}]",
                    f"{row.version} {row.tag} {row.arch}",
                )
                yield Problem(rule, place, name, what)


def _pin_faults(pins: Iterable[str], catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Requirements that cannot be read, or that no known release of cuDNN or NCCL satisfies."""
    known: dict[str, list[str]] = {}
    for table, rows in (("cudnn", catalog.cudnn), ("nccl", catalog.nccl)):
        for row in rows:
            known.setdefault(f"nvidia-{table}-cu{row.cuda_major}", []).append(row.version)
    for pin in pins:
        try:
            requirement = Requirement(pin)
        except InvalidRequirement:
            yield "pins-read", f"pin {pin!r} is no requirement"
            continue
        library = requirement.name.split("-")[1] if requirement.name.count("-") > 1 else ""
        versions = known.get(requirement.name)
        if versions is not None and not any(map(requirement.specifier.contains, versions)):
            yield f"{library}-known", f"{pin}: no such release is in nvidia.json"


def _image_rows(catalog: Catalog) -> Iterator[Problem]:
    """An image is of a known toolkit and system, and says no cuDNN but the one in its tag."""
    full = {row.full for row in catalog.toolkits}
    ubuntus = {f"ubuntu{row.release}" for row in catalog.ubuntu_releases}
    for position, row in enumerate(catalog.images):
        for what in _image_faults(row, full, ubuntus):
            yield Problem("image-row", f"images.json images[{position}]", row.tag, what)


def _image_faults(row: CudaImage, full: set[str], ubuntus: set[str]) -> Iterator[str]:
    if row.full not in full:
        yield f"{row.full} is no toolkit"
    if not _OS.fullmatch(row.os) or (row.os.startswith("ubuntu") and row.os not in ubuntus):
        yield f"{row.os} is no known system"
    if row.cudnn_version and not row.cudnn:
        yield f"cuDNN {row.cudnn_version}, which the tag does not say"
    major = _CUDNN_MAJOR.search(row.tag)
    if major and row.cudnn_version and row.cudnn_version.partition(".")[0] != major[1]:
        yield f"cuDNN {row.cudnn_version} against {major[1]} in the tag"
    if row.status == "inferred" and row.confidence == "confirmed":
        yield "what is inferred is not confirmed"


def _start_rules(catalog: Catalog) -> Iterator[Problem]:
    """A start rule is of a known CUDA, says that CUDA, and names known branches; one a system."""
    pairs = [f"{row.cuda} {os}" for row in catalog.start_rules for os in row.os]
    yield from doubled("images.json start_rules, by system", pairs)
    full = {row.full for row in catalog.toolkits} | set(catalog.cuda_versions())
    branches = {row.branch for row in catalog.branches}
    for position, row in enumerate(catalog.start_rules):
        place = f"images.json start_rules[{position}]"
        if row.cuda not in full:
            yield Problem("start-rule", place, rule_name(row), f"CUDA {row.cuda} is not known")
        if row.min_cuda != ".".join(row.cuda.split(".")[:2]):
            what = f"asks for CUDA {row.min_cuda}"
            yield Problem("start-rule", place, rule_name(row), what)
        for os in row.os:
            if not _OS.fullmatch(os):
                yield Problem("start-rule", place, rule_name(row), f"{os} is no known system")
        for branch, brands in row.brands.items():
            if branch not in branches:
                what = f"branch {branch} is not in drivers.json"
                yield Problem("start-branch-known", place, rule_name(row), what)
            if not brands and row.note is None:
                what = f"no brand for branch {branch}, and no note why"
                yield Problem("start-rule", place, rule_name(row), what)


def _dropped_rows(catalog: Catalog) -> Iterator[Problem]:
    """What a CUDA dropped, the one before it compiled for, and it does not."""
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
    """Notes are of known branches and GPUs."""
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


def modules_name(row: KernelModules) -> str:
    """How a row of kernel modules is called in problems: "7.5", "9.0 NVIDIA GH200 480GB"."""
    return " ".join(["{}.{}".format(*row.capability), *row.gpus])


def plugin_name(row: JaxPlugin) -> str:
    """How a plugin is called in problems and exceptions: "0.7.2 cuda12"."""
    return f"{row.version} cuda{row.cuda_major}"


def library_name(row: CudnnRelease | NcclRelease) -> str:
    """How a library is called in problems and exceptions: "9.1.0.70 cu12"."""
    return f"{row.version} cu{row.cuda_major}"


def rule_name(row: StartRule) -> str:
    """How a start rule is called in problems and exceptions: "12.8.1 ubuntu24.04"."""
    return f"{row.cuda} {row.os[0]}"


LATER_RULES: tuple[Callable[[Catalog], Iterable[Problem]], ...] = (
    _versions_read,
    _no_duplicates,
    _oldest_first,
    _tensorflow_releases,
    _tensorflow_wheels,
    _tensorflow_gpu,
    _jax_rows,
    _library_rows,
    _torch_pins,
    _image_rows,
    _start_rules,
    _dropped_rows,
    _notes,
    _kernel_modules,
)
