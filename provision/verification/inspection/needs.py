"""Judges whether every file that must load finds its libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from posixpath import basename, dirname
from typing import Any

from images.inspect.image import Inspection
from images.inspect.known_libraries import debian_packages, find_known
from images.inspect.loader import NeededLibrary
from images.inspect.needs import Needs
from provision.verification.inspection.outcome import (
    InspectionOutcome,
    and_more,
    counted,
    named,
    path_of,
    table,
    tables,
)

APT_GET = "/usr/bin/apt-get"
_NOT_HERE = {"missing", "elsewhere"}


def judge_needs(found: Inspection) -> InspectionOutcome:
    """Whether every file that must load finds its libraries."""
    needs = found.needs
    if needs is None or not needs.files:
        return InspectionOutcome(
            status="skip", message="It contains no programs or libraries for a known architecture."
        )
    absent = [need for need in needs.needs if need.status in _NOT_HERE]
    failed = [need for need in absent if need.required]
    unreadable = [one for one in needs.unreadable if one.required]
    measured = {
        "files": needs.files,
        "loaded": needs.roots,
        "driver": sorted({need.name for need in needs.needs if need.status == "driver"}),
        **tables(_needs_table(found, needs), _optional_table(found, needs), _broken_table(needs)),
    }
    if unreadable:
        one = unreadable[0]
        return InspectionOutcome(
            status="fail",
            message=f"{path_of(found, one.file)} is an unreadable ELF file: {one.why}."
            f"{and_more(len(unreadable) - 1, 'such file')}",
            cause="Programs that need a file which the loader cannot read do not start.",
            fix="Reinstall the package that it belongs to, or rebuild the image.",
            measured=measured,
        )
    if failed:
        if found.contents.kind == "wheel" and requires(found):
            return _needs_of_wheel(found, failed, measured)
        return _needs_failed(found, failed, measured)
    driver = ", ".join(measured["driver"])
    optional = {n.file for n in needs.needs if not n.required and n.status in _NOT_HERE}
    optional |= {n.file for n in needs.needs if n.status == "optional"}
    return InspectionOutcome(
        status="pass",
        message=f"{counted(needs.files, 'program or library', 'programs and libraries')}: all that "
        f"must load have their libraries{f'; the driver provides {driver}' if driver else ''}"
        f"{f'; {len(optional)} optional ones cannot load' if optional else ''}",
        measured=measured,
    )


def _needs_of_wheel(
    found: Inspection, failed: Sequence[NeededLibrary], measured: Mapping[str, Any]
) -> InspectionOutcome:
    names = named(need.name for need in failed)
    return InspectionOutcome(
        status="skip",
        message=f"{counted(len({n.name for n in failed}), 'library', 'libraries')} must come from"
        f" packages that it requires: {names}. Only an image can be checked for them.",
        cause="A wheel alone does not contain the files of other packages.",
        fix="Inspect the image that it goes into: provision inspect IMAGE",
        measured=measured,
        expected={"requires": sorted(requires(found))},
    )


def _needs_failed(
    found: Inspection, failed: Sequence[NeededLibrary], measured: Mapping[str, Any]
) -> InspectionOutcome:
    first = failed[0]
    names = list(dict.fromkeys(need.name for need in failed))
    others = named(names[1:])
    for_whom = "" if first.root == first.file else f" ({path_of(found, first.root)} loads it)"
    return InspectionOutcome(
        status="fail",
        message=f"{path_of(found, first.file)}{for_whom} needs {first.name}, "
        "which the loader does not find" + (f"; other files need {others}" if others else ""),
        cause=_where_is_it(found, first),
        fix=_bring(found, failed),
        measured={**measured, "debian": _debian(failed)},
    )


def _where_is_it(found: Inspection, need: NeededLibrary) -> str:
    if need.where is not None:
        return f"{path_of(found, need.where)} exists, but is not on the loader's search path."
    lister = _lister(found, need.name)
    if lister:
        return f"{lister} lists {need.name} among its files, but the image does not have it."
    return "No file of the image has this name or this soname."


def _bring(found: Inspection, failed: Sequence[NeededLibrary]) -> str:
    need = failed[0]
    if need.where is not None and basename(need.where) != need.name:
        return f"Run ldconfig in the image, which links {need.name} to {basename(need.where)}."
    if need.where is not None:
        return (
            f"Set LD_LIBRARY_PATH={dirname(need.where)} in the image, or add that directory to "
            "/etc/ld.so.conf.d and run ldconfig."
        )
    lister = _lister(found, need.name)
    if lister:
        name, _, version = lister.partition(" ")
        return f"Reinstall it: pip install --force-reinstall {name}=={version}"
    remove = f"or remove {path_of(found, need.file)}."
    packages = _debian(failed)
    if packages and (found.packages.debian or found.contents.tree.file(APT_GET)):
        return (
            f"Install {' '.join(packages)} in the image with apt-get, or build it with "
            f"{' '.join(f'--apt {name}' for name in packages)}, {remove}"
        )
    return f"Install the package with {need.name} (Debian: apt-file search {need.name}), {remove}"


def _debian(failed: Sequence[NeededLibrary]) -> list[str]:
    """The Debian packages that have the missing libraries; [] if that of the first is not known."""
    if failed[0].status != "missing" or not debian_packages([failed[0].name]):
        return []
    return [*debian_packages(need.name for need in failed if need.status == "missing")]


def _lister(found: Inspection, name: str) -> str | None:
    """Name the package that lists a missing library."""
    return next((one.package for one in found.damage if basename(one.path) == name), None)


def _needs_table(found: Inspection, needs: Needs) -> dict[str, Any] | None:
    return table(
        "Required libraries that are missing",
        ("file", "needs", "loaded by", "found in"),
        [
            (path_of(found, n.file), n.name, path_of(found, n.root), n.where or "nowhere")
            for n in needs.needs
            if n.required and n.status in _NOT_HERE
        ],
    )


def _optional_table(found: Inspection, needs: Needs) -> dict[str, Any] | None:
    def why(need: NeededLibrary) -> str:
        row = find_known(need.name, "optional", need.file)
        return row.what if row else "nothing essential loads it"

    return table(
        "Optional parts that cannot load",
        ("file", "needs", "why it may be missing"),
        [
            (path_of(found, n.file), n.name, why(n))
            for n in needs.needs
            if n.status == "optional" or (not n.required and n.status in _NOT_HERE)
        ],
    )


def _broken_table(needs: Needs) -> dict[str, Any] | None:
    return table(
        "ELF files that cannot be read",
        ("file", "why"),
        [(one.file, one.why) for one in needs.unreadable],
    )


def requires(found: Inspection) -> frozenset[str]:
    return frozenset().union(*(one.requires for one in found.packages.distributions))
