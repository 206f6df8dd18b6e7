"""Judges whether all that must load finds its libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Any

from provision.inspection.outcome import Outcome, and_more, counted, named, path_of, table, tables

if TYPE_CHECKING:
    from images.inspect.image import Inspection
    from images.inspect.needs import Need, Needs

_NOT_HERE = {"missing", "elsewhere"}


def judge_needs(found: Inspection) -> Outcome:
    """Whether all that must load finds its libraries."""
    needs = found.needs
    if needs is None or not needs.files:
        return Outcome(
            status="skip", message="It holds no program and no library for a machine that is known."
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
        return Outcome(
            status="fail",
            message=f"{path_of(found, one.file)} is an ELF file that cannot be read: {one.why}."
            f"{and_more(len(unreadable) - 1, 'such file')}",
            cause="A file that the loader cannot read ends whatever needs it.",
            fix="Install the package that it is of once more, or build the image anew.",
            measured=measured,
        )
    if failed:
        if found.contents.kind == "wheel" and requires(found):
            return _needs_of_wheel(found, failed, measured)
        return _needs_failed(found, failed, measured)
    driver = ", ".join(measured["driver"])
    optional = {n.file for n in needs.needs if not n.required and n.status in _NOT_HERE}
    optional |= {n.file for n in needs.needs if n.status == "optional"}
    return Outcome(
        status="pass",
        message=f"{counted(needs.files, 'program or library', 'programs and libraries')}: all that "
        f"must load finds what it needs{f'; the driver brings {driver}' if driver else ''}"
        f"{f'; {len(optional)} optional ones would not load' if optional else ''}",
        measured=measured,
    )


def _needs_of_wheel(
    found: Inspection, failed: Sequence[Need], measured: Mapping[str, Any]
) -> Outcome:
    names = named(need.name for need in failed)
    return Outcome(
        status="skip",
        message=f"{counted(len({n.name for n in failed}), 'library', 'libraries')} must come from"
        f" the packages that it requires: {names}. In an image this can be checked.",
        cause="A wheel alone does not have what other packages bring.",
        fix="Inspect the image that it goes into: provision inspect IMAGE",
        measured=measured,
        expected={"requires": sorted(requires(found))},
    )


def _needs_failed(
    found: Inspection, failed: Sequence[Need], measured: Mapping[str, Any]
) -> Outcome:
    first = failed[0]
    names = list(dict.fromkeys(need.name for need in failed))
    others = named(names[1:])
    for_whom = "" if first.root == first.file else f" ({path_of(found, first.root)} loads it)"
    return Outcome(
        status="fail",
        message=f"{path_of(found, first.file)}{for_whom} needs {first.name}, "
        "which is not where the loader looks"
        + (f"; nor are {others}, which others need" if others else ""),
        cause=_where_is_it(found, first),
        fix=_bring(found, first),
        measured=measured,
    )


def _where_is_it(found: Inspection, need: Need) -> str:
    if need.where is not None:
        return f"{path_of(found, need.where)} is there, and nothing leads the loader to it."
    lister = _lister(found, need.name)
    if lister:
        return f"{lister} lists {need.name} among its files, and the image does not have it."
    return f"No file of the image is called {need.name} or has it as its name inside."


def _bring(found: Inspection, need: Need) -> str:
    if need.where is not None and basename(need.where) != need.name:
        return f"Run ldconfig in the image, which links {need.name} to {basename(need.where)}."
    if need.where is not None:
        return (
            f"Set LD_LIBRARY_PATH={dirname(need.where)} in the image, or name that directory in "
            "/etc/ld.so.conf.d and run ldconfig."
        )
    lister = _lister(found, need.name)
    if lister:
        name, _, version = lister.partition(" ")
        return f"Install it again, whole: pip install --force-reinstall {name}=={version}"
    return (
        f"Install what brings {need.name} (Debian: apt-file search {need.name}), or take "
        f"{path_of(found, need.file)} out."
    )


def _lister(found: Inspection, name: str) -> str | None:
    """Name the package that lists a library which is not there."""
    return next((one.package for one in found.damage if basename(one.path) == name), None)


def _needs_table(found: Inspection, needs: Needs) -> dict[str, Any] | None:
    return table(
        "Libraries that must be there and are not found",
        ("file", "needs", "loaded for", "where it is"),
        [
            (path_of(found, n.file), n.name, path_of(found, n.root), n.where or "nowhere")
            for n in needs.needs
            if n.required and n.status in _NOT_HERE
        ],
    )


def _optional_table(found: Inspection, needs: Needs) -> dict[str, Any] | None:
    from images.inspect.known import find_known

    def why(need: Need) -> str:
        row = find_known(need.name, "optional")
        return row.what if row else "nothing that must work loads it"

    return table(
        "Parts that would not load, and need not",
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
