"""What a project declares, whatever the format: requirements, limits, and what was not taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.model.environment import (
    MOST_CHARACTERS,
    environment_of,
    is_git_url,
    is_wheel_url,
    public_requirement,
    requirement_of,
)
from provision.model.plan import PACKAGES, DeclaredIndex
from provision.sources.errors import ProjectError

_ARCHS = ("x86_64", "aarch64")
_MOST_PATCH = 40
_OF_THE_PLAN = {*PACKAGES.values(), "jaxlib", "triton", "pytorch-triton"}


class Declared(NamedTuple):
    """One declared value and its place: `text` is a PEP 508 requirement ("torch==2.5.1+cu121"), or
    for Python and CUDA a specifier (">=3.10") or a version ("12.1"); `file` as the user names it,
    `line` from 1, or 0 if unknown. `address`: that of its wheel with what the text leaves out, a
    login or a query.
    """

    text: str
    file: str
    line: int = 0
    address: str = ""

    @property
    def where(self) -> str:
        """For messages: "requirements.txt, line 3"."""
        return f"{self.file}, line {self.line}" if self.line else self.file

    @property
    def requirement(self) -> Requirement:
        return Requirement(self.text)

    @property
    def name(self) -> str:
        """The canonical name of its package."""
        return canonicalize_name(self.requirement.name)


class Lacking(NamedTuple):
    """What a project requires and no image gets, at its place. `name` is what --without accepts: a
    canonical name, or a word for what has none; `text` the requirement as it can be shown, `why`
    the reason, in words.
    """

    name: str
    text: str
    file: str
    line: int = 0
    why: str = "images are built from wheels"

    @property
    def message(self) -> str:
        """For messages: "x @ git+https://... (requirements.txt, line 3; why)"."""
        return f"{self.text} ({Declared('', self.file, self.line).where}; {self.why})"


class OptionalPackages(NamedTuple):
    """An extra or a dependency group, and whether it is installed without being named."""

    kind: Literal["extra", "group"]
    name: str
    declared: Declaration
    default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a project declares.

    `packages` are installed; `constraints` limit versions, of these and of what they need.
    `python` is a specifier set, `cuda` the version that a build or an index names. `hashes` are the
    sha256 in hex that files of a package may have, by its canonical name. `missing`: what is
    required and cannot be installed; `left_out`: what was not taken and nobody has to miss, in
    words. `indexes`: where packages are, in the file's order. `locked`: every version is pinned.
    `members`: directories of the project with packages of their own. `itself`: the project is
    installed, too ("-e ."), with what its pyproject.toml declares. `optional`: its extras and
    groups; `conflicts`: those that exclude each other, as "extra cpu".
    """

    source: str
    packages: tuple[Declared, ...] = ()
    constraints: tuple[Declared, ...] = ()
    python: Declared | None = None
    cuda: Declared | None = None
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    missing: tuple[Lacking, ...] = ()
    left_out: tuple[str, ...] = ()
    optional: tuple[OptionalPackages, ...] = ()
    conflicts: tuple[frozenset[str], ...] = ()
    indexes: tuple[DeclaredIndex, ...] = ()
    locked: bool = False
    members: tuple[str, ...] = ()
    itself: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The whole addresses of wheels that are named, where they may be secret."""
        rows = (*self.packages, *self.constraints)
        return tuple(dict.fromkeys(one.address for one in rows if one.address))


def together(source: str, *parts: Declaration) -> Declaration:
    """Several declarations as one, of a file's parts or of a file and those that it includes: all
    that any of them lists; of single values the first.
    """
    whole = {
        one.name: _joined([getattr(part, one.name) for part in parts])
        for one in fields(Declaration)
    }
    return Declaration(**{**whole, "source": source})


def _joined(values: list[Any]) -> Any:  # noqa: ANN401  whatever the field has
    if all(type(one) is tuple for one in values):
        return tuple(dict.fromkeys(item for one in values for item in one))
    if all(isinstance(one, Mapping) for one in values):
        names = dict.fromkeys(name for one in values for name in one)
        return {name: frozenset().union(*(one.get(name, ()) for one in values)) for name in names}
    return next((one for one in values if one), values[0])


def read_requirement(text: str, file: str, line: int) -> Declared | None:
    """A requirement as it is written; None if its marker excludes every Linux image. ProjectError:
    it is malformed.
    """
    try:
        found = requirement_of(text)
    except InvalidRequirement as error:
        raise ProjectError(
            f"{Declared('', file, line).where}: {printable(text, limit=100)!r} is not a valid "
            f"requirement: {printable(str(error).splitlines()[0], limit=100)}.",
            fix="Write it as pip accepts it, for example: transformers>=4.40",
        ) from error
    try:
        if not applies(found):
            return None
        public, address = public_requirement(found)
        return Declared(public, file, line, address)
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        raise ProjectError(
            f"{Declared('', file, line).where}: the marker of {printable(text, limit=100)!r} "
            "compares what cannot be compared.",
            fix="Write it as pip accepts it, for example: python_version < '3.11'",
        ) from error


def why_missing(name: str, url: str) -> str:
    """Why an image cannot have a package from an address; "" if it can. A framework is in the image
    in the build of the plan.
    """
    if is_git_url(url):
        own = canonicalize_name(name) in _OF_THE_PLAN
        return "the plan chooses the build of a framework" if own else ""
    return "" if is_wheel_url(url) else "images are built from wheels"


def applies(requirement: Requirement) -> bool:
    """Whether some Linux image needs it: its marker may depend on Python and the architecture."""
    marker = requirement.marker
    if marker is None:
        return True
    return any(
        marker.evaluate({**environment_of(python, arch), "extra": ""})
        for python in pythons_of(load())
        for arch in _ARCHS
    )


def pythons_of(catalog: Catalog) -> tuple[str, ...]:
    """The Pythons that the catalog knows, the oldest first: ("3.6", ..., "3.15")."""
    return tuple(row.python for row in catalog.pythons)


def allowed_by(specifier: str, pythons: Iterable[str]) -> tuple[str, ...]:
    """Those of some Pythons that a specifier set allows: ">=3.10,<3.12" -> ("3.10", "3.11"). A
    bound within a minor version (">=3.12.4") allows it. InvalidSpecifier: it is not one.
    """
    found = SpecifierSet(specifier)
    patches = [0, *sorted(set(_patches(found))), _MOST_PATCH]
    return tuple(
        python
        for python in pythons
        if any(found.contains(f"{python}.{patch}") for patch in patches)
    )


def _patches(specifiers: SpecifierSet) -> list[int]:
    """The patch releases that the set names, with their neighbours."""
    found = []
    for one in specifiers:
        parts = one.version.removesuffix(".*").split(".")
        if len(parts) > 2 and parts[2].isdigit():
            number = int(parts[2])
            found += [max(0, number - 1), number, number + 1]
    return found


def read_python(text: object, file: str, line: int) -> Declared | None:
    """A requires-python; None if it is empty, "*" or not a text. ProjectError: it is malformed."""
    if not isinstance(text, str) or text.strip() in {"", "*"}:
        return None
    try:
        SpecifierSet(text if len(text) <= MOST_CHARACTERS else "too long")
    except InvalidSpecifier as error:
        raise ProjectError(
            f"{Declared('', file, line).where}: {printable(text, limit=60)!r} is not a range of "
            "Python versions.",
            fix="Write it like this: requires-python = '>=3.10'",
        ) from error
    return Declared(text.strip(), file, line)
