"""Rules for the releases and builds of PyTorch, TensorFlow and JAX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from packaging.requirements import InvalidRequirement, Requirement

from provision.catalog.catalog import Catalog
from provision.catalog.rows.frameworks import (
    JaxPlugin,
    TensorflowRelease,
    TensorflowWheel,
    TorchBuild,
)
from tools.checks.libraries import pin_faults
from tools.checks.problems import (
    Problem,
    Rule,
    as_version,
    build_name,
    is_date,
    is_specifier,
    plugin_name,
    wrong_python_tags,
    wrong_targets,
)

_PTX_TARGET = re.compile(r"sm_\d{2,3}a?")


def _release_rows(catalog: Catalog) -> Iterator[Problem]:
    """A release has builds, and its specifiers are valid."""
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
    """A build agrees with its release, its toolkit, its tag and its pins."""
    for position, row in enumerate(catalog.torch):
        for rule, faults in _BUILD_RULES.items():
            for what in faults(row, catalog):
                place = f"torch.json builds[{position}]"
                yield Problem(rule, place, build_name(row), what)


def _release_known(build: TorchBuild, catalog: Catalog) -> Iterator[str]:
    if catalog.torch_release(build.version) is None:
        yield "its release is not in the table"


def _tag_agrees(build: TorchBuild, _: Catalog) -> Iterator[str]:
    """cu117 is CUDA 11.7, cpu has no CUDA."""
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
    """Well formed, and allowed by the release's requires-python."""
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
    """PyPI has one build per release and machine."""
    seen: set[tuple[str, str]] = set()
    for position, row in enumerate(catalog.torch):
        if "pypi" not in row.at:
            continue
        if (row.version, row.arch) in seen:
            place = f"torch.json builds[{position}]"
            yield Problem("one-pypi-build", place, build_name(row), "a second build on PyPI")
        seen.add((row.version, row.arch))


_BUILD_RULES: dict[str, Callable[[TorchBuild, Catalog], Iterator[str]]] = {
    "release-known": _release_known,
    "tag-agrees": _tag_agrees,
    "targets-known": _targets_known,
    "python-tags": _python_tags_read,
    "places-known": _places_known,
    "pins-agree": _pins_agree,
}


def _tensorflow_releases(catalog: Catalog) -> Iterator[Problem]:
    """A release has wheels, and its toolkit could compile its code."""
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
        for rule, what in pin_faults(row.pins, catalog):
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
    """A plugin is of a known release, and its requirements are valid and satisfiable."""
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
    for rule, what in pin_faults(lines, catalog):
        if rule != "pins-read":
            yield rule, what


def _torch_pins(catalog: Catalog) -> Iterator[Problem]:
    """The cuDNN and NCCL that a PyTorch build pins are releases of the table."""
    for position, row in enumerate(catalog.torch):
        for rule, what in pin_faults(row.pins, catalog):
            if rule != "pins-read":  # checked by the build's own rules
                place, name = (
                    f"torch.json builds[{position}]",
                    f"{row.version} {row.tag} {row.arch}",
                )
                yield Problem(rule, place, name, what)


RULES: tuple[Rule, ...] = (
    _release_rows,
    _build_rows,
    _one_pypi_build,
    _torch_pins,
    _tensorflow_releases,
    _tensorflow_wheels,
    _tensorflow_gpu,
    _jax_rows,
)
