"""Rules for the releases of cuDNN and NCCL, and for the pins that name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement

from provision.catalog.catalog import Catalog
from provision.catalog.rows.nvidia import CudnnRelease, NcclRelease
from tools.checks.problems import Problem, Rule, as_version, is_date, library_name


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


def pin_faults(pins: Iterable[str], catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Requirements that cannot be parsed, or that no known release of cuDNN or NCCL satisfies."""
    tables: dict[str, Sequence[CudnnRelease | NcclRelease]] = {
        "nvidia-cudnn": catalog.cudnn,
        "nvidia-nccl": catalog.nccl,
    }
    for pin in pins:
        requirement = _requirement(pin)
        if requirement is None:
            yield "pins-read", f"pin {pin!r} is no requirement"
            continue
        table, _, major = requirement.name.rpartition("-cu")
        versions = [row.version for row in tables.get(table, ()) if str(row.cuda_major) == major]
        if versions and not any(map(requirement.specifier.contains, versions)):
            library = table.removeprefix("nvidia-")
            yield f"{library}-known", f"{pin}: no such release is in nvidia.json"


@cache
def _requirement(pin: str) -> Requirement | None:
    """None for an invalid one. Many builds have the same pins."""
    try:
        return Requirement(pin)
    except InvalidRequirement:
        return None


RULES: tuple[Rule, ...] = (_library_rows,)
