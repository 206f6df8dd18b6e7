"""The wheels of a lock that were built from their source; and bases to build them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from images.wheels.remote_file import Wheel
from provision.build.base import BuildSettings
from provision.build.source.plain import PlainWheels
from provision.catalog.catalog import Catalog
from provision.lock.lockfile import Lock
from provision.lock.sources import SourceWheels
from provision.model.plan import DeclaredIndex, HostFacts, PackageIndexes, Plan, Request
from provision.output.console import Console
from provision.resolve import resolve


def source_wheels(
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    settings: BuildSettings,
    console: Console,
) -> SourceWheels:
    """The source releases of a request, none built yet."""
    plans = _plans_for(hosts, request, catalog)
    return SourceWheels(PlainWheels(plans, request.places, settings, console))


def _plans_for(
    hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Callable[[str], Iterator[Plan]]:
    """The plans whose bases may build packages of a request: on its base, then on Debian's."""

    def plans(python: str) -> Iterator[Plan]:
        asked = request._replace(companions=(), constraints=())
        for base in dict.fromkeys((asked.base, "bootstrap")):
            for one in dict.fromkeys((python, asked.python)):
                yield resolve(hosts, asked._replace(base=base, python=one), catalog)

    return plans


def with_built_wheels(
    lock: Lock, indexes: PackageIndexes, settings: BuildSettings, console: Console
) -> Lock:
    """A lock whose wheels that were built from their source are on this machine; they are built
    again if need be. The wheels of an unpacked bundle are in the store.
    """
    builds = {one.unknown_place: one for one in lock.builds}
    if not builds or settings.unpacked is not None:
        return lock
    named = (DeclaredIndex(url, "index", name=name) for name, url in lock.index_names.items())
    indexes = PackageIndexes(indexes.given, (*named, *indexes.declared))
    maker = PlainWheels(lambda _: (lock.plan,), indexes, settings, console)

    def placed(wheel: Wheel) -> Wheel:
        build = builds.get(wheel.url)
        return (
            wheel if build is None else replace(wheel, url=maker.again(build, lock.plan).as_uri())
        )

    return replace(lock, wheels=tuple(placed(wheel) for wheel in lock.wheels))
