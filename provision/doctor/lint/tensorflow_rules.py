"""Rules for TensorFlow and JAX among the packages that are installed together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.rows.frameworks import TensorflowRelease
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.installs import Install
from provision.doctor.lint.setting import Setting, capped


def tensorflow_gpu(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """The newest allowed tensorflow-gpu is the empty release that only fails."""
    package = install.named("tensorflow-gpu")
    if package is None:
        return
    admitted = [
        row
        for row in catalog.tensorflow_gpu
        if package.specifier.contains(row.version, prereleases=False)
        and not Version(row.version).is_prerelease
    ]
    newest = max(admitted, key=lambda row: Version(row.version), default=None)
    if newest is not None and newest.content == "stub":
        yield RuleHit(
            rule="tensorflow-gpu-retired",
            at=package.at,
            message=f"{package.written} is {newest.version}, an empty package that fails on "
            "purpose when it is installed.",
            fix=_tensorflow_for(setting, catalog),
            swap=("tensorflow-gpu", "tensorflow[and-cuda]")
            if not package.specifier and _has_extra(setting, catalog)
            else None,
        )


def _admitted(setting: Setting, catalog: Catalog) -> list[TensorflowRelease]:
    """The releases of TensorFlow for one of these Pythons, the newest first."""
    return sorted(
        (
            row
            for row in catalog.tensorflow_releases
            if not (row.prerelease or row.yanked)
            and any(
                SpecifierSet(row.requires_python or "").contains(f"{python}.99")
                for python in setting.pythons
            )
        ),
        key=lambda row: Version(row.version),
        reverse=True,
    )


def _has_extra(setting: Setting, catalog: Catalog) -> bool:
    """Whether a release that brings CUDA can be installed; true if no Python is known."""
    if not setting.pythons:
        return True
    return any(row.libraries == "extra" for row in _admitted(setting, catalog))


def _tensorflow_for(setting: Setting, catalog: Catalog) -> str:
    if _has_extra(setting, catalog):
        return "Write tensorflow[and-cuda]: tensorflow itself has the GPU code."
    pythons = ", ".join(setting.pythons)
    newest = next(iter(_admitted(setting, catalog)), None)
    if newest is None:
        return f"No TensorFlow is for Python {pythons}: build from a newer image."
    return (
        f"Write tensorflow=={newest.version} and build from an image with CUDA {newest.cuda} and "
        f"cuDNN {newest.cudnn}: tensorflow[and-cuda] is not for Python {pythons}."
    )


def jax_extra_retired(install: Install, _: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """An extra that newer releases do not have: the installer warns, and installs jax for CPUs."""
    known = table("known.toml")["python"]
    package = install.named("jax")
    if package is None:
        return
    retired = [
        extra for extra in package.extras if re.fullmatch(known["jax_extras_retired"], extra)
    ]
    last = Version(known["jax_extras_until"])
    if not retired or (package.pin is not None and package.pin <= last):
        return
    if package.pin is None and capped(package, last):
        return
    newest = max(row.cuda_major for row in catalog.jax_plugins)
    majors = sorted({row.extra for row in catalog.jax_plugins})
    yield RuleHit(
        rule="jax-extra-retired",
        at=package.at,
        message=f"jax has no extra {', '.join(retired)} any more: the installer passes over it, "
        "and what it installs has no CUDA.",
        fix=f"Write one of {', '.join(f'jax[{extra}]' for extra in majors)}; the newest CUDA is "
        f"{newest}.",
        swap=(retired[0], majors[-1]) if package.pin is None else None,
    )


def jax_for_cpus(install: Install, setting: Setting, _: Catalog) -> Iterator[RuleHit]:
    """jax without an extra although everything else is for GPUs."""
    package = install.named("jax")
    if package is None or package.extras or setting.for_cpus or not setting.for_gpus:
        return
    if not setting.whole or install.sources or not install.complete:
        return
    if any("cuda" in other.name for other in install.packages) or "--no-deps" in install.options:
        return
    yield RuleHit(
        rule="jax-cpu",
        at=package.at,
        message=f"{package.written} alone installs jax without CUDA.",
        fix="Write jax[cuda12] or jax[cuda13].",
    )


def jax_old_index(install: Install, _: Setting, __: Catalog) -> Iterator[RuleHit]:
    """The page of links of old releases together with a current jax."""
    pattern = table("known.toml")["python"]["jax_index"]
    source = next((one for one in install.sources if re.search(pattern, one.url)), None)
    package, jaxlib = install.named("jax"), install.named("jaxlib")
    if source is None or package is None:
        return
    if package.specifier or (jaxlib is not None and jaxlib.specifier):
        return  # releases of that time are on that page and nowhere else
    yield RuleHit(
        rule="jax-old-index",
        at=source.at,
        message="That page has the CUDA builds of old releases only; those of today are on the "
        "default index.",
        fix="Leave the page out, and write jax[cuda12] or jax[cuda13].",
    )
