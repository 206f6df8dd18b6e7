"""Judges whether the symbols that files need are defined by what they load."""

from __future__ import annotations

from collections.abc import Sequence
from posixpath import basename
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from images.inspect.image import Inspection
from images.inspect.loader import SymbolMissing
from images.inspect.packages import Distribution
from provision.verification.inspection.mangled import readable
from provision.verification.inspection.outcome import (
    InspectionOutcome,
    and_more,
    counted,
    named,
    path_of,
    table,
    tables,
    yes,
)

_MOST_SHOWN = 160


def judge_symbols(found: Inspection) -> InspectionOutcome:
    """Whether every symbol that a file needs is defined by what it loads."""
    symbols = found.needs.symbols if found.needs is not None else None
    if symbols is None or not (symbols.found or symbols.unjudged or symbols.missing):
        return InspectionOutcome(status="skip", message="Nothing in it needs symbols of others.")
    failed = [one for one in symbols.missing if one.required]
    measured: dict[str, Any] = {
        "symbols": symbols.found,
        "not_judged": symbols.unjudged,
        **tables(_table(found, symbols.missing)),
    }
    if failed:
        return _failed(found, failed, measured)
    unjudged = f"{counted(symbols.unjudged, 'symbol')} must come from files that it does not have"
    if symbols.unjudged and found.contents.kind == "wheel":
        return InspectionOutcome(
            status="skip",
            message=unjudged,
            cause="A wheel alone does not contain what it loads.",
            fix="Inspect the image that it goes into: provision inspect IMAGE",
            measured=measured,
        )
    if not symbols.found:
        return InspectionOutcome(status="skip", message=unjudged, measured=measured)
    optional = len({one.file for one in symbols.missing})
    parts = (
        f"{counted(symbols.found, 'required symbol')} found",
        f"{symbols.unjudged:,} not judged: what may define them is not in it"
        if symbols.unjudged
        else "",
        f"{counted(optional, 'optional file')} cannot use all that they name" if optional else "",
    )
    return InspectionOutcome(
        status="pass", message="; ".join(filter(None, parts)), measured=measured
    )


def _failed(
    found: Inspection, failed: Sequence[SymbolMissing], measured: dict[str, Any]
) -> InspectionOutcome:
    first = failed[0]
    own = found.owner(first.file)
    suppliers = _suppliers(found, first, own)
    file = (
        f"{own.title}: {basename(path_of(found, first.file))}"
        if own
        else path_of(found, first.file)
    )
    if suppliers:
        lacks = f"which {named(one.title for one in suppliers)} does not define"
    else:
        lacks = "which nothing that it loads defines"
    others = len({(one.file, one.symbol, one.version) for one in failed}) - 1
    cause, fix = _advice(found, first, own, suppliers)
    return InspectionOutcome(
        status="fail",
        message=f"{file} needs {_shown(first)}, {lacks}{and_more(others, 'such symbol')}",
        cause=cause,
        fix=fix,
        measured=measured,
    )


def _suppliers(
    found: Inspection, one: SymbolMissing, own: Distribution | None
) -> list[Distribution]:
    """The other packages whose libraries the file needs: those that its package requires, if it
    requires any of them.
    """
    owners = [found.owner(path) for path in one.searched]
    others = [other for other in owners if other is not None and other is not own]
    required = [other for other in others if own is not None and other.name in own.requires]
    return list({id(other): other for other in required or others}.values())


def _advice(
    found: Inspection,
    one: SymbolMissing,
    own: Distribution | None,
    suppliers: Sequence[Distribution],
) -> tuple[str, str]:
    """(cause, fix)."""
    if own is None:
        return (
            "It was linked against other releases of its libraries than the image has.",
            f"Reinstall its package, or build {path_of(found, one.file)} in this image.",
        )
    if one.symbol.startswith(("Py", "_Py")):
        return (
            f"It was built for another Python than {found.python}.",
            f"Install a release of {own.name} for Python {found.python}.",
        )
    if not suppliers:
        return (
            "Its libraries are of different releases, or were built without what it needs.",
            f"Reinstall it: pip install --force-reinstall {own.name}=={own.version}",
        )
    supplier = suppliers[0]
    fitting = f"the release of {own.name} that was built for {supplier.title}"
    wanted = own.requires.get(supplier.name, "")
    if not _is_met(wanted, supplier.version):
        return (
            f"It requires {supplier.name}{wanted}, and {supplier.version} is installed.",
            f"Install {supplier.name}{wanted}, or {fitting}.",
        )
    return f"It was built for another release of {supplier.name}.", f"Install {fitting}."


def _is_met(wanted: str, version: str) -> bool:
    """Whether a version is one of those that are required; True if that is unknown."""
    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def _table(found: Inspection, missing: Sequence[SymbolMissing]) -> dict[str, Any] | None:
    return table(
        "Required symbols that are missing",
        ("file", "symbol", "in the source", "version", "must load", "defined in"),
        [
            (
                path_of(found, one.file),
                one.symbol[:_MOST_SHOWN],
                readable(one.symbol)[:_MOST_SHOWN],
                one.version or "any",
                yes(one.required),
                path_of(found, one.where) if one.where else "nothing in it",
            )
            for one in sorted(missing, key=lambda one: (not one.required, one.file))
        ],
    )


def _shown(one: SymbolMissing) -> str:
    """The name in the source and the symbol; bytes that are not text are replaced."""
    name = readable(one.symbol)[:_MOST_SHOWN]
    symbol = (one.symbol + (f"@{one.version}" if one.version else ""))[:_MOST_SHOWN]
    both = name if name == symbol else f"{name} ({symbol})"
    return both.encode("utf-8", "replace").decode()
