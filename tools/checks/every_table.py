"""Rules for every table: versions are valid, and rows are unique and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from provision.catalog.catalog import Catalog
from provision.catalog.rows.nvidia import CudnnRelease, NcclRelease
from provision.catalog.tables import FILES
from tools.checks.problems import (
    Problem,
    Rule,
    as_version,
    build_name,
    doubled,
    is_day,
    library_name,
    modules_name,
    plugin_name,
    rising,
    rule_name,
)


def _versions_read(catalog: Catalog) -> Iterator[Problem]:
    """Every version is valid for `packaging`."""
    named: list[tuple[str, str, Sequence[str | None]]] = []
    for i, t in enumerate(catalog.toolkits):
        named.append((f"cuda.json toolkits[{i}]", t.full, (t.cuda, t.full, t.driver)))
    for i, f in enumerate(catalog.families):
        floors = (f.min_driver, f.min_driver_windows)
        named.append((f"cuda.json families[{i}]", str(f.major), floors))
    for i, b in enumerate(catalog.branches):
        read = (b.max_cuda, b.first_version, b.latest_seen)
        named.append((f"drivers.json branches[{i}]", str(b.branch), read))
    for i, g in enumerate(catalog.gpus):
        named.append((f"gpus.json gpus[{i}]", g.name, (g.driver_from,)))
    for i, r in enumerate(catalog.torch_releases):
        companions = (r.version, r.torchvision, r.torchaudio)
        named.append((f"torch.json releases[{i}]", r.version, companions))
    for i, w in enumerate(catalog.torch):
        named.append((f"torch.json builds[{i}]", build_name(w), (w.cudnn, w.nccl, w.glibc)))
    for i, release in enumerate(catalog.tensorflow_releases):
        versions = (release.cuda, release.cudnn)
        named.append((f"tensorflow.json tensorflow_releases[{i}]", release.version, versions))
    for i, wheel in enumerate(catalog.tensorflow_wheels):
        named.append((f"tensorflow.json tensorflow_wheels[{i}]", wheel.version, (wheel.glibc,)))
    for i, jaxlib in enumerate(catalog.jax_releases):
        named.append((f"jax.json jax_releases[{i}]", jaxlib.version, (jaxlib.glibc,)))
    for i, plugin in enumerate(catalog.jax_plugins):
        named.append((f"jax.json jax_plugins[{i}]", plugin_name(plugin), (plugin.min_driver,)))
    for i, library in enumerate(catalog.cudnn):
        named.append((f"nvidia.json cudnn[{i}]", library_name(library), (library.min_driver,)))
    for i, image in enumerate(catalog.images):
        named.append((f"images.json images[{i}]", image.tag, (image.cudnn_version,)))
    for i, rule in enumerate(catalog.start_rules):
        named.append((f"images.json start_rules[{i}]", rule_name(rule), (rule.min_cuda,)))
    for place, name, texts in named:
        for text in texts:
            if text is not None and as_version(text) is None:
                yield Problem("version-read", place, name, f"{text!r} is no version")


def _no_duplicates(catalog: Catalog) -> Iterator[Problem]:
    """One row per fact."""
    wheels = [f"{row.version} {row.arch}" for row in catalog.tensorflow_wheels]
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
        ("tensorflow.json tensorflow_releases", [r.version for r in catalog.tensorflow_releases]),
        ("tensorflow.json tensorflow_wheels", wheels),
        ("tensorflow.json tensorflow_gpu", [row.version for row in catalog.tensorflow_gpu]),
        ("jax.json jax_releases", [row.version for row in catalog.jax_releases]),
        ("jax.json jax_plugins", [plugin_name(row) for row in catalog.jax_plugins]),
        ("nvidia.json cudnn", [library_name(row) for row in catalog.cudnn]),
        ("nvidia.json nccl", [library_name(row) for row in catalog.nccl]),
        ("images.json images", [row.tag for row in catalog.images]),
        ("cuda.json dropped", [f"{row.cuda} {row.generation}" for row in catalog.dropped]),
        ("drivers.json highest_majors", [str(row.branch) for row in catalog.highest_majors]),
        ("drivers.json kernel_modules", [modules_name(row) for row in catalog.kernel_modules]),
        ("gpus.json binary_notes", [str(row.compute_capability) for row in catalog.binary_notes]),
    ]
    for table, names in tables:
        yield from doubled(table, names)


def _oldest_first(catalog: Catalog) -> Iterator[Problem]:
    """Releases are in the order of their versions, libraries grouped by CUDA major."""
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


def _files_dated(catalog: Catalog) -> Iterator[Problem]:
    """A file states the date of its data."""
    for name in FILES:
        date = catalog.files[name].text("date")
        if not is_day(date):
            yield Problem("file-date", name, name, f"{date!r} is no day")


RULES: tuple[Rule, ...] = (_versions_read, _no_duplicates, _oldest_first, _files_dated)
