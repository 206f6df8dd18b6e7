"""Chooses the base image of the wheels: base, Python and glibc are chosen together.

The wheels bring CUDA, so a plain Python image suffices. NVIDIA's images are used only if something
needs their contents: the compiler (devel), CUDA itself (a TensorFlow that expects it in the
system), or the cuda-compat package. They have a start rule, apart from what the wheel needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from provision.catalog.catalog import Catalog
from provision.catalog.rows.bases import CudaImage
from provision.model.plan import Base, Request
from provision.model.request import is_local
from provision.resolve.blockers import Blocker
from provision.resolve.builds import Build
from provision.resolve.fleet import Site
from provision.resolve.rules.base import image_starts, python_tags_of
from provision.resolve.rules.driver import DriverFit
from provision.resolve.specifiers import version


class Offer(NamedTuple):
    """The bases of the kind that build and request need; those in `refused` would not start
    here.
    """

    bases: tuple[Base, ...]
    pythons: tuple[str, ...]
    refused: tuple[CudaImage, ...] = ()
    doubted: frozenset[str] = frozenset()  # Pythons of images that are only likely to exist


def _offer(
    bases: Iterable[Base],
    refused: Iterable[CudaImage] = (),
    doubted: frozenset[str] = frozenset(),
) -> Offer:
    found = tuple(bases)
    pythons = tuple(dict.fromkeys(base.python for base in found))
    return Offer(found, pythons, tuple(refused), doubted)


def offer(
    build: Build, request: Request, sites: Sequence[Site], catalog: Catalog, *, compat: bool
) -> Offer:
    """Every base that could be used for this build, the preferred one first."""
    by_nvidia = compat or build.libraries == "system"
    if request.base == "bootstrap" or (request.bootstraps and not by_nvidia):
        return _offer(_bootstraps(build, request, catalog, compat=compat))
    if request.base is not None:
        return _named(request.base, build, request, sites, catalog)
    if request.flavour == "devel":
        return _nvidia(catalog.devel_images(build.cuda), request, sites, catalog)
    if build.libraries == "system":
        images = catalog.cuda_images(build.cuda, "runtime", cudnn=True)
        return _nvidia(images, request, sites, catalog)
    if compat:
        images = catalog.cuda_images(build.cuda, "base", cudnn=None)
        return _nvidia(images, request, sites, catalog)
    sure = {row.python for row in catalog.python_images if row.confidence == "confirmed"}
    bases = tuple(
        Base(kind="registry", reference=row.reference, python=row.python, glibc=row.glibc)
        for row in catalog.python_images
    )
    return _offer(bases, doubted=frozenset(base.python for base in bases) - sure)


def choose_base(offered: Offer, python: str, glibc: str | None) -> Base | None:
    """The first that has this Python and at least this glibc."""
    for base in offered.bases:
        if base.python == python and _fits(base, glibc):
            return base
    return None


def base_blocker(
    build: Build, request: Request, offered: Offer, python: str | None, *, compat: bool
) -> Blocker | None:
    """Why no base fits, in the order in which users can change something about it."""
    if offered.refused and not offered.bases:
        image = offered.refused[0]
        return Blocker(
            code="base-refuses-to-start",
            message=f"nvidia/cuda:{image.tag} starts only if the driver supports CUDA "
            f"{image.cuda} or its start rule lists the driver branch and GPU; neither is the case.",
            source="NVIDIA_REQUIRE_CUDA of that image",
        )
    if compat and not offered.bases:
        lacks = "no nvidia/cuda image that brings it is known"
        if request.bootstraps:
            lacks = "Debian has none"
        return Blocker(
            code="no-compat-base",
            message=f"CUDA {build.cuda} needs the cuda-compat package on this driver, and {lacks}.",
        )
    if build.libraries == "system" and not offered.bases:
        return Blocker(
            code="no-cuda-base",
            message=f"{build.name} needs CUDA {build.cuda} and cuDNN in the image, but no such "
            "base is known.",
            source=build.source,
        )
    if request.flavour == "devel" and not offered.bases:
        message = f"No nvidia/cuda devel image for CUDA {build.cuda} is known."
        if request.bootstraps:
            message = (
                f"NVIDIA's packages for CUDA {build.cuda} contain no nvcc, and Debian has none."
            )
        return Blocker(
            code="no-devel-base",
            message=message,
        )
    if python is None:
        return None
    return Blocker(
        code="glibc-too-old",
        message=f"{build.name} needs glibc {build.glibc} in the image; no base image with Python "
        f"{python} has it.",
        source=build.source,
    )


def _bootstraps(
    build: Build, request: Request, catalog: Catalog, *, compat: bool
) -> tuple[Base, ...]:
    lacks_compiler = request.flavour == "devel" and catalog.compiler_wheels(build.cuda) is None
    if lacks_compiler or compat or build.libraries == "system":
        return ()
    return tuple(
        Base(
            kind="bootstrap",
            reference="bootstrap",
            python=row.python,
            glibc=row.glibc,
            suite=row.suite,
            apt=request.apt,
        )
        for row in catalog.debian_suites
    )


def _named(
    reference: str, build: Build, request: Request, sites: Sequence[Site], catalog: Catalog
) -> Offer:
    """A base that the user names: if the catalog knows its Python, glibc and start rule, they are
    checked against the build; any other base is accepted unchecked.
    """
    name = reference.partition("@")[0].rpartition("/")[2]
    for row in catalog.python_images:
        slim = row.reference.rpartition("/")[2]
        if name in {slim, full_image(slim)}:
            return _offer((Base(kind="registry", reference=reference, python=row.python,
                               glibc=row.glibc, apt=request.apt),))  # fmt: skip
    image = catalog.cuda_image(name.partition(":")[2]) if name.startswith("cuda:") else None
    if image is not None and starts_everywhere(image, sites, catalog) is False:
        return _offer((), (image,))
    if image is not None and image.python is not None:
        return _offer((Base(kind="registry", reference=reference, python=image.python,
                           glibc=image.glibc, apt=request.apt),))  # fmt: skip
    pythons = {tag.partition("-")[0][3:] for tag in build.python_tags}
    kind: Literal["local", "registry"] = "local" if is_local(reference) else "registry"
    return _offer(
        tuple(
            Base(kind=kind, reference=reference, python=f"3.{minor}", glibc=None, apt=request.apt)
            for minor in sorted(pythons, key=int)
        )
    )


def _nvidia(
    rows: Iterable[CudaImage], request: Request, sites: Sequence[Site], catalog: Catalog
) -> Offer:
    """NVIDIA's images that bring a Python and start on every host; the confirmed ones first. An
    engine installs the packages of a request in them.
    """
    bases: dict[bool, list[Base]] = {True: [], False: []}
    refused: list[CudaImage] = []
    for row in rows:
        if row.python is None:
            continue
        starts = starts_everywhere(row, sites, catalog)
        if starts is False:
            refused.append(row)
            continue
        base = Base(
            kind="registry",
            reference=row.reference,
            python=row.python,
            glibc=row.glibc,
            apt=request.apt,
        )
        bases[starts is True].append(base)
    return _offer([*bases[True], *bases[False]], refused)


def full_image(reference: str) -> str:
    """The official Python image with compilers and headers, beside one without (-slim)."""
    return reference.replace("-slim-", "-")


def _fits(base: Base, glibc: str | None) -> bool:
    return glibc is None or base.glibc is None or version(glibc) <= version(base.glibc)


def starts_everywhere(image: CudaImage, sites: Sequence[Site], catalog: Catalog) -> bool | None:
    """Whether it starts on every host; None: it depends on something unknown.

    If the rule of a tag was not read, that of another tag of the same CUDA is assumed.
    """
    rule = catalog.start_rule(image.full, image.os) or max(
        (row for row in catalog.start_rules if row.min_cuda == image.cuda),
        key=lambda row: version(row.cuda),
        default=None,
    )
    answers = [image_starts(image.cuda, rule, site) for site in sites]
    return False if False in answers else None if None in answers else True


def python_blocker(build: Build, request: Request, offered: Offer, fit: DriverFit) -> Blocker:
    """A wheel is for one Python: the one asked for, or one that a base image brings. `fit`: of the
    worst driver, which decides whether a usual base would do.
    """
    have = python_tags_of(build)
    span = dict.fromkeys((*request.pythons[:1], *request.pythons[-1:]))
    named = request.python or " to ".join(span)
    asked = f"Python {named}" if named else "any Python of a base image"
    message = f"{build.name} cannot be installed: packages that it requires have no wheel."
    if have:
        message = f"{build.name} has no wheel for {asked}; it has Python {have[0]} to {have[-1]}."
    wanted = [request.python] if request.python else request.pythons
    if any(python in have for python in wanted):
        brought = ", ".join(sorted(offered.pythons, key=version))
        if fit.verdict == "forward":
            return Blocker(
                code="no-compat-base",
                message=f"CUDA {build.cuda} needs driver {fit.need} or newer; found {fit.have}, "
                "which runs it only with cuda-compat, and the images that bring it have Python "
                f"{brought}, not {named}.",
                source=fit.source,
            )
        kind = "Debian base" if request.bootstraps else "base image of the requested kind"
        message = f"No {kind} has Python {named}; they have {brought}."
    return Blocker(code="no-wheel-for-python", message=message, source=build.source)
