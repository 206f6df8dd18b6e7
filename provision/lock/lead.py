"""Which releases uv found, and how far they are behind the newest. Pure.

A package that was requested ("vllm") decides the release of the framework: uv takes the newest
version of what is listed first, so the packages go before the framework, whose line allows the
releases that run on the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from packaging.version import Version

from provision.lock.extras import ExtraNeed
from provision.lock.lockfile import parse_lock
from provision.lock.uv import Outcome

_OLD_DAYS = 365
_OLD_MINORS = 2
_SMALLEST_NATIVE, _SMALLEST_ANY = 1 << 20, 16 << 20


class PackageRelease(NamedTuple):
    """A version of a package; `uploaded` is its day, None if the index does not give it."""

    version: str
    uploaded: date | None = None

    @property
    def is_prerelease(self) -> bool:
        """Whether it is an alpha, a beta, a candidate or a development release."""
        return Version(self.version).is_prerelease


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTry:
    """What uv found for one Python. `pins` hold packages to releases whose extras accept the
    framework, and the requested ones to those that were found with other lines than the plan's;
    `refused` are needs that no release could meet.
    """

    python: str
    outcome: Outcome
    reason: str
    text: str
    pins: tuple[str, ...] = ()
    refused: tuple[ExtraNeed, ...] = ()

    @property
    def satisfies(self) -> bool:
        """Whether all requirements hold, those of extras included."""
        return self.outcome == "locked" and not self.refused


def releases_in(text: str) -> dict[str, PackageRelease]:
    """The packages of a lock by uv, without the local parts of their versions ("+cu117")."""
    found = {}
    for package in parse_lock(text).packages:
        days = [wheel.upload_time.date() for wheel in package.wheels or () if wheel.upload_time]
        found[str(package.name)] = PackageRelease(
            Version(str(package.version)).public, min(days, default=None)
        )
    return found


def addresses_in(text: str) -> dict[str, str]:
    """The address of a wheel of each package of a lock by uv."""
    return {
        str(package.name): str(wheel.url)
        for package in parse_lock(text).packages
        for wheel in (package.wheels or ())[:1]
        if wheel.url
    }


def native_in(text: str) -> dict[str, str]:
    """The address of a wheel of each package of a lock by uv whose wheel is so large that it can
    hold code for GPUs; one that says it is for every machine (bitsandbytes 0.41) must be larger.
    NVIDIA's own are left out.
    """
    return {
        str(package.name): str(wheel.url)
        for package in parse_lock(text).packages
        for wheel in (package.wheels or ())[:1]
        if wheel.url
        and _may_be_native(wheel.url, wheel.size)
        and not str(package.name).startswith(("nvidia-", "cuda-"))
    }


def _may_be_native(url: str, size: int | None) -> bool:
    if "-any.whl" in url:
        return size is not None and size >= _SMALLEST_ANY
    return size is None or size >= _SMALLEST_NATIVE


def framework_line(package: str, fitting: Iterable[str], known: Iterable[str]) -> str:
    """The requirement that allows the fitting releases, and none that is known or newer.

    ("torch", 2.0.1 and 2.2.0, 2.0.1 to 2.2.0) -> "torch>=2.0.1,<=2.2.0,!=2.1.0"
    """
    wanted = sorted(set(fitting), key=Version)
    first, last = Version(wanted[0]), Version(wanted[-1])
    if first == last:
        return f"{package}=={first}"
    between = {v for v in known if first < Version(v) < last} - set(wanted)
    clauses = [f">={first}", f"<={last}", *(f"!={v}" for v in sorted(between, key=Version))]
    return f"{package}{','.join(clauses)}"


def is_newer(one: Sequence[str | None], other: Sequence[str | None]) -> bool:
    """Whether the versions of the packages are newer, the first package first."""
    for mine, theirs in zip(one, other, strict=True):
        if mine != theirs:
            return theirs is None or (mine is not None and Version(mine) > Version(theirs))
    return False


def lag(found: PackageRelease, newest: PackageRelease) -> str | None:
    """How far a release is behind the newest, if that is far: more than a year, more than two minor
    versions, or another major version.

    Returns "3 years older than" or "older than"; None: it is near enough.
    """
    mine, theirs = Version(found.version), Version(newest.version)
    if mine >= theirs:
        return None
    days = (newest.uploaded - found.uploaded).days if newest.uploaded and found.uploaded else 0
    if days > _OLD_DAYS:
        years = round(days / 365.25, 1)
        return f"{years:g} {'year' if years == 1 else 'years'} older than"
    far = mine.major != theirs.major or theirs.minor - mine.minor > _OLD_MINORS
    return "older than" if far else None


def newest_of(found: Mapping[str, PackageRelease | None]) -> tuple[str, PackageRelease] | None:
    """Of the newest releases for several Pythons, the newest and the first Python that has it."""
    there = [(python, release) for python, release in found.items() if release is not None]
    if not there:
        return None
    best = max(Version(release.version) for _, release in there)
    return next((p, r) for p, r in there if Version(r.version) == best)
