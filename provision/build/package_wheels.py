"""The wheels that uv found for the packages beside the framework: for which CUDA they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from provision.build.package_cuda import (
    FoundRelease,
    OtherCuda,
    WheelRuntimes,
    cudas_of,
    newest_for_cuda,
)
from provision.catalog.catalog import Catalog
from provision.catalog.needs import RunTimeNeed, is_known, needs_of
from provision.catalog.pairs import may_go_with
from provision.lock.lead import PackageRelease, addresses_in, native_in, releases_in
from provision.lock.runtimes import runtimes_in
from provision.model.plan import Plan, Request
from provision.resolve.packages import FRAMEWORKS, PAIRED, paired_line
from provision.resolve.run_time import requested_needs

_WITH_THE_BUILD = frozenset({*FRAMEWORKS, *PAIRED, "jaxlib", "triton"})
"""Packages that come with a build of a framework, for its CUDA."""

_COMPILES = "brings CUDA code and compiles it with torch.utils.cpp_extension"


class Resolved(NamedTuple):
    """What uv answered for a Python and an architecture; `text` is its lock."""

    text: str
    python: str
    arch: str


class TriedWheels:
    """The wheels of packages beside the framework that can hold code for GPUs, as uv found them."""

    def __init__(self, resolved: Resolved, runtimes: WheelRuntimes) -> None:
        self.python, self.arch = resolved.python, resolved.arch
        self.releases = releases_in(resolved.text)
        self.found = {
            name: FoundRelease(self.releases[name], address)
            for name, address in native_in(resolved.text).items()
            if name not in _WITH_THE_BUILD
        }
        self.pure = {n: url for n, url in addresses_in(resolved.text).items() if "-any.whl" in url}
        self._runtimes = runtimes
        brought = runtimes_in(resolved.text)
        if len(brought) == 1:  # the framework's own, and of a build that the plan need not have
            brought = frozenset()
        self._brought = brought

    def other_than(
        self, cuda: str | None, names: Collection[str] | None = None
    ) -> OtherCuda | None:
        """The first of the named packages whose wheel is for another CUDA; None: none is. `names`
        None: all packages.
        """
        if names is None:
            self._runtimes.read(found.address for found in self.found.values())
        for name in self.found if names is None else names:
            found = self.found.get(name)
            other = found and self._runtimes.other(name, found, cuda, self._brought)
            if other:
                return other
        return None

    def compiling(self, names: Collection[str]) -> list[str]:
        """Those of the named packages whose wheels compile CUDA code when they run."""
        found = self._runtimes.compiling([self.pure[name] for name in names if name in self.pure])
        return [name for name in names if self.pure.get(name) in found]

    def all_fit(self, cuda: str) -> bool:
        """Whether each package works with a CUDA."""
        return self.other_than(cuda) is None

    def cudas(
        self, plan: Plan, catalog: Catalog, names: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """The CUDAs that the framework was built for and that the named packages work with, the
        newest first; () if these need no CUDA.
        """
        addresses = [f.address for n, f in self.found.items() if names is None or n in names]
        if not any(need.cudas for need in map(self._runtimes.of, addresses) if need):
            return ()
        return cudas_of(plan, lambda cuda: self.other_than(cuda, names) is None, catalog)


def needs_beside(
    request: Request, leading: Collection[str], wheels: TriedWheels | None
) -> tuple[RunTimeNeed, ...]:
    """What the packages of an image need when they run, as the table and the wheels of those that
    were requested say.
    """
    if wheels is None:
        return requested_needs(request)
    if request.settled:
        return needs_of(sorted(wheels.releases), ())
    compiling = wheels.compiling([name for name in leading if not is_known(name)])
    return (
        *needs_of([*leading, *sorted(wheels.releases)], leading),
        *(RunTimeNeed(name, "nvcc", _COMPILES) for name in compiling),
    )


def newest_that_fits(
    other: OtherCuda, ask: Callable[[str], FoundRelease | None], runtimes: WheelRuntimes
) -> str | None:
    """The version of a package's newest release for the plan's CUDA; None: none was found. `ask`
    gives the newest release within a bound, of all releases.
    """
    newest = ask(">=0")
    wrong = newest and runtimes.other(other.package, newest, other.cuda)
    if newest is None or not wrong:
        return newest.release.version if newest else None
    bound = newest_for_cuda(wrong, ask, runtimes)
    found = ask(bound) if bound else None
    return found.release.version if found else None


def lines_beside(leading: Mapping[str, str], framework: str, release: str) -> list[str]:
    """The requirements of packages, by name, limited to versions for a release of the framework
    where only the catalog has these.
    """
    if framework != "torch":
        return list(leading.values())
    return [paired_line(line, name, release) for name, line in leading.items()]


def go_together(
    names: Collection[str], framework: str, releases: Mapping[str, PackageRelease]
) -> bool:
    """Whether the releases of packages are for that of the framework, as the catalog has it."""
    if framework != "torch" or framework not in releases:
        return True
    mine = {name: releases[name].version for name in names if name in releases}
    beside = releases[framework].version
    return all(may_go_with(n, SpecifierSet(f"=={version}"), beside) for n, version in mine.items())
