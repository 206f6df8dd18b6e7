"""A requirement and an index as they are written, wherever they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from images.net.address import shown_url
from provision.model.environment import is_git_url, requirement_of
from provision.model.plan import DeclaredIndex, IndexKind

_INDEX_OF_PYTORCH = re.compile(
    r"(?:download\.pytorch\.org/whl|/pytorch-wheels|/pytorch/whl)/(?P<kind>nightly/|test/)?"
    r"(?P<tag>cu\d+|cpu)(?:/torch_stable\.html|/?$)"
)
"""Its own, and its mirrors by the paths that they have."""
_HOST_OF_PYTORCH = "download.pytorch.org"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file; lines and columns count from 1."""

    line: int
    column: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPackage:
    """A requirement and its position. `address`: the URL of a direct or unnamed reference.

    `name` is normalized, "" if only a URL is known.
    """

    name: str
    written: str
    at: Position
    requirement: Requirement | None = None
    address: str = ""

    @property
    def specifier(self) -> SpecifierSet:
        return self.requirement.specifier if self.requirement else SpecifierSet()

    @property
    def extras(self) -> frozenset[str]:
        return frozenset(self.requirement.extras) if self.requirement else frozenset()

    @property
    def pin(self) -> Version | None:
        """The version of `==`, its local part included; None: not pinned."""
        return pin_of(self.requirement) if self.requirement else None

    @property
    def release(self) -> str | None:
        """The pin without its local part: "2.1.0"."""
        return self.pin.public if self.pin else None

    @property
    def local(self) -> str | None:
        """The local part of the pin: "cu118"."""
        return self.pin.local if self.pin else None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSource:
    """An index or a page of links."""

    url: str
    at: Position
    replaces_default: bool = False

    @property
    def torch_tag(self) -> str | None:
        """The tag of an index of PyTorch ("cu118", "cpu"); None: another index, or not of
        one tag.
        """
        match = _INDEX_OF_PYTORCH.search(self.url)
        return match["tag"] if match and not match["kind"] else None

    def declared(self, kind: IndexKind, where: str) -> DeclaredIndex | None:
        """The place for the request, without a login: that is the user's own (netrc). None: it is
        PyTorch's own, of which the plan names the right one, or cannot be asked: a directory, or an
        address with a variable elsewhere than in its login.
        """
        try:
            parts = urlsplit(self.url)
            host = parts.hostname
        except ValueError:
            return None
        if parts.scheme not in {"http", "https"} or not host or host == _HOST_OF_PYTORCH:
            return None
        plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return None if "$" in plain else DeclaredIndex(plain, kind, where)

    @property
    def cuda(self) -> str | None:
        """The CUDA of an index of PyTorch: "12.1"."""
        match = re.fullmatch(r"cu(\d{1,2})(\d)", self.torch_tag or "")
        return f"{match[1]}.{match[2]}" if match else None


def read_package(text: str, at: Position) -> RequestedPackage:
    """A requirement as it is written; one that cannot be parsed keeps only its text."""
    try:
        requirement = requirement_of(text)
    except InvalidRequirement:
        address = text if "://" in text or text.startswith((".", "/")) else ""
        egg = re.search(r"#egg=([\w.-]+)", text)
        name = canonicalize_name(egg[1]) if egg else ""
        wheel = _wheel(address)
        return RequestedPackage(
            name=canonicalize_name(wheel.name) if wheel else name,
            written=text,
            at=at,
            requirement=wheel,
            address=address,
        )
    return RequestedPackage(
        name=canonicalize_name(requirement.name),
        written=text,
        at=at,
        requirement=requirement,
        address=requirement.url or "",
    )


def repository_url(row: Mapping[str, object]) -> str:
    """The address of a git repository in a row of uv, Poetry or pixi, as a requirement has it; "":
    the row has none that can be cloned.
    """
    said = row.get("git")
    if not isinstance(said, str):
        return ""
    if short := re.fullmatch(r"([\w.-]+@[\w.-]+):(?!/)(\S+)", said):  # as ssh writes it
        said = f"ssh://{short[1]}/{short[2]}"
    named = (row.get(key) for key in ("rev", "tag", "branch"))
    revision = next((f"@{one}" for one in named if isinstance(one, str) and one), "")
    place = row.get("subdirectory")
    directory = f"#subdirectory={place}" if isinstance(place, str) and place else ""
    url = f"git+{said.removeprefix('git+')}{revision}{directory}"
    return url if is_git_url(url) else ""


def repository_name(url: str) -> str:
    """What the package of a repository is probably named: as pip's #egg= says, else as the
    repository, with extras that the former names.
    """
    if egg := re.search(r"[#&]egg=([\w.-]+(?:\[[\w.,-]+\])?)", url):
        return egg[1]
    path = shown_url(url).partition("://")[2].partition("/")[2]
    path = path.partition("@")[0].rstrip("/").removesuffix(".git")
    return re.split(r"[^\w.-]", path.rpartition("/")[2])[0]


def _wheel(address: str) -> Requirement | None:
    """The pin that a wheel's URL amounts to; a marker after it is kept."""
    url, _, marker = address.partition(";")
    file = unquote(shown_url(url.rstrip()).rpartition("/")[2])
    try:
        name, version, _build, _tags = parse_wheel_filename(file)
        return Requirement(f"{name}=={version}" + (f" ; {marker}" if marker else ""))
    except (InvalidRequirement, InvalidWheelFilename):
        return None


def pin_of(requirement: Requirement) -> Version | None:
    """The only version that a requirement allows: that of == or ===; None if it allows several."""
    for one in requirement.specifier:
        if one.operator in {"==", "==="} and not one.version.endswith("*"):
            try:
                return Version(one.version)
            except InvalidVersion:
                return None
    return None
