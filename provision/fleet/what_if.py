"""Which nodes need another driver so that a fleet needs fewer images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from provision.fleet.classes import NodeClass
from provision.fleet.images import FleetPlan, FleetResolver, UnservedClass, plan_fleet
from provision.resolve.specifiers import version


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverChange:
    """A fleet in which older nodes have the driver `driver`.

    `changed` are the classes, as they are now, that need it for `plan`; without any one of them
    there were more images, or nodes that no image serves. `lost` are those that this driver
    or its images would not support: they keep theirs.
    """

    driver: str
    changed: tuple[NodeClass, ...]
    lost: tuple[UnservedClass, ...]
    plan: FleetPlan


def change_driver(
    classes: Sequence[NodeClass], driver: str, resolver: FleetResolver
) -> DriverChange:
    """The fewest images that the driver makes possible, and enough nodes to change for that: the
    largest classes keep theirs first.
    """
    older = [one for one in classes if one.facts.gpus and is_older(one, driver)]
    newer = {id(one): with_driver(one, driver) for one in older}
    lost = tuple(
        UnservedClass(node_class=one, error=error)
        for one in older
        if resolver.served(one) and (error := resolver.plan([newer[id(one)]]).error) is not None
    )
    kept = {id(one.node_class) for one in lost}
    changed = [one for one in older if id(one) not in kept]

    def variant(chosen: Sequence[NodeClass]) -> list[NodeClass]:
        ids = {id(one) for one in chosen}
        return [newer[id(one)] if id(one) in ids else one for one in classes]

    def needs(chosen: Sequence[NodeClass]) -> tuple[int, int]:
        """Nodes without an image, and images."""
        needing = [one for one in variant(chosen) if one.facts.gpus != ()]
        serving, others = resolver.parted(needing)
        without = sum(len(one.nodes) for one in others)
        return without, len(resolver.cover(serving).sets)

    best = needs(changed)
    before: list[NodeClass] = []
    while len(before) != len(changed):  # until none can be left out
        before = changed
        for one in before:  # the largest first
            fewer = [other for other in changed if other is not one]
            if (without_it := needs(fewer)) <= best:
                best, changed = without_it, fewer
    return DriverChange(
        driver=driver,
        changed=tuple(changed),
        lost=lost,
        plan=plan_fleet(variant(changed), resolver),
    )


def is_older(one: NodeClass, driver: str) -> bool:
    """Whether it has an older driver, or none that is known."""
    return one.facts.driver is None or version(one.facts.driver) < version(driver)


def with_driver(one: NodeClass, driver: str) -> NodeClass:
    return replace(one, facts=one.facts.with_driver(driver))
