"""What is installed of what a project declares: its extras and groups, and what it may lack."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.sources.declaration import (
    Declaration,
    Lacking,
    OptionalPackages,
    together,
)
from provision.sources.errors import ProjectError, ProjectIncompleteError

_MOST_SHOWN = 6


def select(
    declared: Declaration,
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
    without: Sequence[str] = (),
    imports: Callable[[], Collection[str]] = frozenset,
) -> Declaration:
    """A declaration with the extras and groups that are named or default, and without the packages
    that the image may lack. `imports`: canonical names that the project's code imports, which it
    may lack, too.

    ProjectError: there is no such extra, group or package, or two of them exclude each other.
    ProjectIncompleteError: the image would lack a package that is required.
    """
    chosen = [
        *(_named(declared, "extra", name) for name in extras),
        *(_named(declared, "group", name) for name in groups),
        *(one for one in declared.optional if one.default),
    ]
    chosen = list({(one.kind, one.name): one for one in chosen}.values())
    _refuse_conflicts(declared, chosen)
    whole = together(declared.source, declared, *(one.declared for one in chosen))
    left = tuple(one for one in declared.optional if one not in chosen)
    whole = replace(whole, optional=left, left_out=(*whole.left_out, *_left_out(left, declared)))
    return _without(whole, {canonicalize_name(name) for name in without}, imports)


def _named(declared: Declaration, kind: str, name: str) -> OptionalPackages:
    wanted = canonicalize_name(name)
    known = [one for one in declared.optional if one.kind == kind]
    for one in known:
        if one.name == wanted:
            return one
    names = ", ".join(one.name for one in known[:_MOST_SHOWN])
    raise ProjectError(
        f"{declared.source} has no {kind} {printable(name, limit=60)}.",
        fix=f"Its {kind}s: {names}" if known else f"Remove --{kind}: none can be read.",
    )


def _refuse_conflicts(declared: Declaration, chosen: Sequence[OptionalPackages]) -> None:
    names = {f"{one.kind} {one.name}" for one in chosen}
    for conflict in declared.conflicts:
        both = sorted(conflict & names)
        if len(both) > 1:
            raise ProjectError(
                f"{declared.source}: {both[0]} and {both[1]} exclude each other (conflicts).",
                fix=f"Name one of them: --{both[0]}",
            )


def _left_out(left: Sequence[OptionalPackages], declared: Declaration) -> list[str]:
    """The extras and groups that are not installed, in words."""
    said = []
    for kind in ("extra", "group"):
        names = [printable(one.name, limit=30) for one in left if one.kind == kind]
        if names:
            shown = ", ".join(names[:_MOST_SHOWN])
            are = f"{kind}s" if len(names) > 1 else kind
            said.append(f"{are} {shown} ({declared.source}; to add one: --{kind} {names[0]})")
    return said


def _without(
    declared: Declaration, names: set[str], imports: Callable[[], Collection[str]]
) -> Declaration:
    """Without these packages, which may be missing."""
    known = {one.name for one in declared.packages} | {one.name for one in declared.missing}
    for name in sorted(names - known):
        if name in imports():
            continue
        raise ProjectError(
            f"{declared.source} requires no {printable(name, limit=60)}.",
            fix=f"Remove --without {printable(name, limit=60)}",
        )
    if lacking := [one for one in declared.missing if one.name not in names]:
        raise _incomplete(declared.source, lacking)
    accepted = sorted({one.name for one in declared.packages} & names)
    return replace(
        declared,
        packages=tuple(one for one in declared.packages if one.name not in names),
        missing=(),
        left_out=(
            *declared.left_out,
            *(one.message for one in declared.missing),
            *(f"{name} (--without)" for name in accepted),
        ),
    )


def _incomplete(source: str, lacking: Sequence[Lacking]) -> ProjectIncompleteError:
    shown = "; ".join(one.message for one in lacking[:_MOST_SHOWN])
    more = f" and {len(lacking) - _MOST_SHOWN} more" if len(lacking) > _MOST_SHOWN else ""
    options = " ".join(f"--without {one}" for one in dict.fromkeys(one.name for one in lacking))
    return ProjectIncompleteError(
        f"The image would lack what {source} requires: {shown}{more}.",
        fix=f"Replace it by a release of an index, or build the image without it: {options}",
    )
