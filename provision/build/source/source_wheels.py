"""The wheels of a lock that were built from their source; and bases to build them on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from images.wheels.remote_file import Wheel
from provision.build.base import BuildSettings, PlanInputs
from provision.build.source.plain import PlainWheels
from provision.lock.lockfile import Lock
from provision.lock.sources import SourceWheels
from provision.model.plan import DeclaredIndex, PackageIndexes, Plan
from provision.output.console import Console


def source_wheels(inputs: PlanInputs) -> SourceWheels:
    """The source releases of a request, none built yet."""
    request = inputs.request

    def plans(python: str) -> Iterator[Plan]:
        """Those whose bases may build packages: on the requested base, then on Debian's."""
        for base in dict.fromkeys((request.base, "bootstrap")):
            for one in dict.fromkeys((python, request.python)):
                yield inputs.plan(companions=(), constraints=(), base=base, python=one)

    return SourceWheels(PlainWheels(plans, request.places, inputs.settings, inputs.console))


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
