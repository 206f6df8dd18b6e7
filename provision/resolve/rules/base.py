"""Which Python a build gets, and whether an image starts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from provision.catalog.rows.bases import StartRule
from provision.model.plan import TITLES, Request
from provision.resolve.builds import Build
from provision.resolve.fleet import GpuKind, Site
from provision.resolve.rules.driver import native_cuda
from provision.resolve.specifiers import version


def python_tags_of(build: Build) -> tuple[str, ...]:
    """The Pythons that have a wheel, oldest first ("3.8"); free-threaded ABIs are left out."""
    return _pythons(build.python_tags)


@cache
def _pythons(tags: tuple[str, ...]) -> tuple[str, ...]:
    found = set[tuple[int, int]]()
    for tag in tags:
        interpreter, _, abi = tag.partition("-")
        # Until Python 3.7 the tag of the usual ABI ended in m; t is the free-threaded one.
        if abi in {interpreter, f"{interpreter}m"} and interpreter.startswith("cp3"):
            found.add((3, int(interpreter[3:])))
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def allowed_pythons(offered: Sequence[str], request: Request) -> tuple[str, ...]:
    """Those of the bases' Pythons that the request allows."""
    return tuple(python for python in offered if python in (request.pythons or offered))


def choose_python(
    build: Build,
    asked: str | None,
    offered: Sequence[str],
    settled: Collection[str],
    *,
    doubted: Collection[str] = (),
    suite: bool = False,
) -> tuple[str | None, str]:
    """The Python asked for; else, of those that the build has a wheel for and a base offers, the
    newest that was `settled` (had a successor) when the release was published; else the oldest.
    The choice does not depend on the machine. Returned with the reason.

    `doubted` are those of images that are only likely to exist. `suite`: each base is a Debian
    suite with its own Python, the preferred one first.
    """
    usable = [python for python in python_tags_of(build) if python in offered]
    if asked is not None:
        return (asked if asked in usable else None), "as requested"
    if suite:
        own = next((python for python in offered if python in usable), None)
        return own, "that of the first Debian suite that the wheels support"
    # That an image does not exist shows only when it is pulled.
    sure = [python for python in usable if python not in doubted] or usable
    # In its first months a Python lacks the wheels of many packages.
    tried = [python for python in sure if python in settled] or sure[:1]
    chosen = tried[-1] if tried else None
    newer = usable[usable.index(chosen) + 1 :] if chosen else []
    young = next((python for python in newer if python not in settled), None)
    if young is None:
        return chosen, "the newest that both the wheels and a base image support"
    when = f"when {TITLES[build.framework]} {build.version} was published"
    return chosen, f"{young} was the newest Python {when}, and not yet widely supported"


def image_starts(cuda: str, rule: StartRule | None, site: Site) -> bool | None:
    """An nvidia/cuda image starts if the driver reports at least its CUDA, or if its list names the
    driver's branch together with the brand of the GPU; for every GPU. None: it depends on the list
    or the brand of a GPU, which is not known.
    """
    highest, _ = native_cuda(site)
    if highest is None or version(highest) >= version(rule.min_cuda if rule else cuda):
        return True
    if rule is None:
        return None
    listed = frozenset(rule.brands.get(site.branch.branch, ())) if site.branch else frozenset()
    answers = [
        bool(listed & brands) if (brands := brands_of(device)) else None
        for device in site.devices or ()
    ]
    if not listed or False in answers:
        return False
    return None if None in answers or not answers else True


def brands_of(device: GpuKind) -> frozenset[str]:
    """The words that an image's start rule may use for a GPU; empty if its kind is unknown."""
    kinds = {row.kind for row in device.rows}
    words: set[str] = set()
    for kind in kinds:
        words |= _BRANDS.get(kind, set())
    # A capability that several kinds share does not determine the brand.
    return frozenset(words) if len(kinds) == 1 else frozenset()


# The words after "brand=" in an image's NVIDIA_REQUIRE_CUDA, which NVIDIA's container runtime
# compares with the GPU.
_BRANDS: dict[str, set[str]] = {
    "data-centre": {"tesla", "nvidia"},
    "workstation": {"quadro", "quadrortx", "nvidiartx"},
    "geforce": {"geforce", "geforcertx"},
    "titan": {"titan", "titanrtx"},
}
