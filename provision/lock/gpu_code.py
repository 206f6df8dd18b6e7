"""Whether the libraries of a wheel have code for the GPUs, from as much of them as shows it.

A package of PyPI is compiled for some GPUs, and no metadata says for which: vLLM 0.33 has no code
for a V100, and FBGEMM 1.9 none for an RTX 5090. A library's device code follows its program code,
so the first pieces with device code usually show that a GPU is supported; that it is not is shown
by the whole library only.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from images.errors import Failure
from images.inspect.archive import WheelArchive
from images.inspect.coverage import cover
from images.inspect.fatbin import FatbinScanner
from images.inspect.model import Capability, LibraryCode
from images.inspect.remote import is_url, open_url
from images.wheels.directory import Member
from provision.lock.runtimes import READ_BYTES, WAIT_S, own_libraries, versions_in

MOST_BYTES = 64 << 20
"""How much is read of the wheel of a package that was not requested itself."""


class MissingCode(NamedTuple):
    """A wheel has device code, for these targets ("sm_80", "compute_90"), and none of it runs on
    these GPUs.
    """

    gpus: tuple[Capability, ...]
    targets: tuple[str, ...]


def missing_code(
    address: str,
    gpus: Sequence[Capability],
    runtime: str,
    *,
    ca_bundle: Path | None,
    most: int | None = None,
) -> MissingCode | None:
    """The GPUs for which no library of a wheel has code, of those libraries that need this CUDA
    runtime ("12"). None: each has some, or there is no device code, or it cannot be read, or not
    within `most` bytes.
    """
    if not is_url(address) or not gpus:
        return None
    try:
        source = open_url(address, ca_bundle=ca_bundle, patience_s=WAIT_S, parts_only=True)
    except Failure:
        return None
    try:
        return _in_wheel(
            WheelArchive(source), gpus, runtime, lambda: most is None or source.bytes_read < most
        )
    except (Failure, ValueError):  # a damaged wheel or fatbin
        return None
    finally:
        source.close()


def _in_wheel(
    archive: WheelArchive, gpus: Sequence[Capability], runtime: str, goes_on: Callable[[], bool]
) -> MissingCode | None:
    left, targets = tuple(gpus), set[str]()
    for member in own_libraries(archive):
        found = _in_library(archive, member, left, runtime, goes_on)
        if found is None:
            return None
        left = found.gpus
        targets.update(found.targets)
        if not left:
            return None
    return MissingCode(left, tuple(sorted(targets, key=_by_number))) if targets else None


def _in_library(
    archive: WheelArchive,
    member: Member,
    gpus: tuple[Capability, ...],
    runtime: str,
    goes_on: Callable[[], bool],
) -> MissingCode | None:
    """The same for one library; None: it would take too much."""
    scanner, passed, seen = FatbinScanner(member.size), 0, 0
    left, targets = gpus, set[str]()
    with contextlib.closing(_pieces(archive, member, runtime)) as pieces:
        for piece in pieces:
            scanner.feed(piece)
            passed += len(piece)
            if len(scanner.found) > seen:
                counted = scanner.count(scanner.found[seen], passed)
                seen = len(scanner.found)
                code = LibraryCode(
                    name=member.name, fatbins=counted.fatbins, sass=counted.sass, ptx=counted.ptx
                )
                targets.update(counted.sass, counted.ptx)
                left = tuple(gpu for gpu in left if cover(code, gpu).nothing)
            if not left:
                break
            if not goes_on():
                return None
    return MissingCode(left, tuple(targets))


def _pieces(archive: WheelArchive, member: Member, runtime: str) -> Generator[bytes, None, None]:
    """The content of a library; nothing of one that does not need this CUDA runtime."""
    start = b""
    with contextlib.closing(archive.stream(member)) as pieces:  # type: ignore[type-var]
        for piece in pieces:
            start += piece
            if len(start) >= min(READ_BYTES, member.size):
                break
        if runtime in versions_in(start):
            yield start
            yield from pieces


def _by_number(target: str) -> tuple[bool, int, str]:
    kind, _, number = target.partition("_")
    digits = re.match(r"\d+", number)
    return kind != "sm", int(digits[0]) if digits else 0, number
