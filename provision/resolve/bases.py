"""Which image lies below the wheels: base, Python and glibc are chosen together."""

from __future__ import annotations

from provision.catalog import Catalog
from provision.catalog.rows import DevelImage, PythonImage
from provision.model import Base, Request
from provision.resolve.rules import version


def offered_pythons(request: Request, cuda: str, catalog: Catalog) -> tuple[str, ...]:
    """The Pythons that the kind of base asked for can bring.

    Of a base image that the user names the catalog may know the Python; else any is believed.
    """
    if request.base == "bootstrap":
        return tuple(row.python for row in catalog.debian_suites)
    if request.base is not None and (known := _known(request.base, catalog)):
        return (known.python,)
    if request.base is None and request.flavour == "devel":
        return tuple(row.python for row in catalog.devel_images(cuda))
    return tuple(dict.fromkeys(row.python for row in catalog.python_images))


def choose_base(
    request: Request, cuda: str, python: str, glibc: str | None, catalog: Catalog
) -> Base | None:
    """The first base of the kind asked for that has this Python and at least this glibc."""
    return next((b for b in _candidates(request, cuda, python, catalog) if _fits(b, glibc)), None)


def _known(reference: str, catalog: Catalog) -> PythonImage | DevelImage | None:
    """The catalog's row for an image, from whichever registry or mirror it is taken."""
    name = reference.partition("@")[0].rpartition("/")[2]
    rows: tuple[PythonImage | DevelImage, ...] = (*catalog.python_images, *catalog.devel)
    return next((row for row in rows if row.reference.rpartition("/")[2] == name), None)


def _fits(base: Base, glibc: str | None) -> bool:
    return glibc is None or base.glibc is None or version(glibc) <= version(base.glibc)


def _candidates(request: Request, cuda: str, python: str, catalog: Catalog) -> list[Base]:
    if request.base == "bootstrap":
        if request.flavour == "devel" and catalog.compiler_wheels(cuda) is None:
            return []
        return [
            Base(
                kind="bootstrap",
                reference="bootstrap",
                python=row.python,
                glibc=row.glibc,
                suite=row.suite,
            )
            for row in catalog.debian_suites
            if row.python == python
        ]
    if request.base is not None:
        known = _known(request.base, catalog)
        glibc = known.glibc if known else None
        return [Base(kind="registry", reference=request.base, python=python, glibc=glibc)]
    rows = catalog.devel_images(cuda) if request.flavour == "devel" else catalog.python_images
    return [
        Base(kind="registry", reference=row.reference, python=row.python, glibc=row.glibc)
        for row in rows
        if row.python == python
    ]
