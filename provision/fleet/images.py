"""The fewest images that serve the nodes of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.catalog.catalog import Catalog
from provision.fleet.classes import NodeClass, several
from provision.fleet.cover import Cover, cover
from provision.model.plan import HostFacts, Plan, PlanError, Request
from provision.resolve import fitting_builds, resolve
from provision.resolve.builds import Build
from provision.resolve.specifiers import version


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetImage:
    """One image, and the classes of nodes that get it."""

    plan: Plan
    classes: tuple[NodeClass, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that get it."""
        return tuple(node for one in self.classes for node in one.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedClass:
    """Nodes that no image serves, and why."""

    node_class: NodeClass
    error: PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class OneImageRefusal:
    """The resolver's answer to one image for these classes, which have several."""

    classes: tuple[NodeClass, ...]
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The images of a fleet, those for the most nodes first.

    No plan has fewer than `at_least`. `apart`: classes of which no two can share an image, if that
    is what proves it. `without_gpu` are nodes that need no image.
    """

    images: tuple[FleetImage, ...]
    unserved: tuple[UnservedClass, ...]
    without_gpu: tuple[str, ...]
    at_least: int
    apart: tuple[NodeClass, ...]
    against_one: tuple[OneImageRefusal, ...]

    @property
    def proven(self) -> bool:
        """Whether fewer images cannot do."""
        return len(self.images) == self.at_least


class FleetResolver:
    """Asks the resolver about classes of nodes, and remembers its answers."""

    def __init__(self, request: Request, catalog: Catalog) -> None:
        self._request = request
        self._catalog = catalog
        self._builds: dict[tuple[HostFacts, ...], frozenset[Build]] = {}

    def builds(self, classes: Sequence[NodeClass]) -> frozenset[Build]:
        """The builds that an image for all these classes could have."""
        key = tuple(one.facts for one in classes)
        if key not in self._builds:
            self._builds[key] = fitting_builds(key, self._request, self._catalog)
        return self._builds[key]

    def plan(self, classes: Sequence[NodeClass]) -> Plan:
        """The resolver's plan for all these classes."""
        return resolve([one.facts for one in classes], self._request, self._catalog)

    def cover(self, classes: Sequence[NodeClass]) -> Cover:
        """The fewest sets of classes that can have an image each; each class can have one."""
        rows = [self.builds([one]) for one in classes]
        return cover(
            rows,
            lambda found: bool(self.builds([classes[i] for i in sorted(found)])),
            lambda found: _newest(frozenset.intersection(*(rows[i] for i in found))),
        )

    def served(self, one: NodeClass) -> bool:
        """Whether some image serves it. Where nothing is known of a node, nothing would be
        checked.
        """
        known = one.facts.driver is not None or one.facts.gpus is not None
        return known and bool(self.builds([one]))

    def parted(self, classes: Sequence[NodeClass]) -> tuple[list[NodeClass], list[NodeClass]]:
        """The classes that some image serves, and the others."""
        serving = [one for one in classes if self.served(one)]
        ids = {id(one) for one in serving}
        return serving, [one for one in classes if id(one) not in ids]


def plan_fleet(classes: Sequence[NodeClass], resolver: FleetResolver) -> FleetPlan:
    """The images for these classes."""
    needing = [one for one in classes if one.facts.gpus != ()]
    serving, others = resolver.parted(needing)
    found = resolver.cover(serving)
    images = _images(serving, found, resolver)
    return FleetPlan(
        images=tuple(sorted(images, key=lambda one: -len(one.nodes))),
        unserved=tuple(UnservedClass(node_class=one, error=_why(one, resolver)) for one in others),
        without_gpu=tuple(node for one in classes if one.facts.gpus == () for node in one.nodes),
        at_least=found.at_least,
        apart=tuple(serving[i] for i in found.apart),
        against_one=_against_one(images, resolver),
    )


def _images(
    classes: Sequence[NodeClass], found: Cover, resolver: FleetResolver
) -> list[FleetImage]:
    """One image a set. A class of several sets gets the newest of their builds, and each image is
    planned again for the classes that it is left with: they may allow a newer one.
    """
    plans = [resolver.plan([classes[i] for i in sorted(one)]) for one in found.sets]
    parts: list[list[NodeClass]] = [[] for _ in plans]
    for number, one in enumerate(classes):
        holding = [at for at, members in enumerate(found.sets) if number in members]
        parts[max(holding, key=lambda at: _age(plans[at]))].append(one)
    images = []
    for plan, part in zip(plans, parts, strict=True):
        again = resolver.plan(part) if part else plan
        images.append(FleetImage(plan=plan if again.error else again, classes=tuple(part)))
    return images


def _age(plan: Plan) -> tuple[object, ...]:
    return version(plan.framework_version or "0"), version(plan.cuda or "0")


def _newest(builds: frozenset[Build]) -> tuple[object, ...]:
    """Of a set's builds, the newest that is known to exist decides where it is tried."""
    return max((b.existence == "confirmed", version(b.version), version(b.cuda)) for b in builds)


def _why(one: NodeClass, resolver: FleetResolver) -> PlanError:
    error = resolver.plan([one]).error
    return error or PlanError(
        code="node-unknown",
        message=f"{one.facts.label}: neither the driver nor the GPUs are known.",
        fix="The rows of `absent` in its host file say why. Read the node again: "
        "provision fleet detect --again",
    )


def _against_one(
    images: Sequence[FleetImage], resolver: FleetResolver
) -> tuple[OneImageRefusal, ...]:
    """Why there are several images: for all classes together, and if these differ in their CPU
    architecture only for those of each.
    """
    if len(images) < 2:
        return ()
    parts: Mapping[str | None, list[NodeClass]] = {None: [one for i in images for one in i.classes]}
    archs = {image.plan.arch for image in images}
    if len(archs) > 1:
        by_arch = {
            arch: [one for i in images if i.plan.arch == arch for one in i.classes]
            for arch in sorted(archs, key=str)
            if sum(i.plan.arch == arch for i in images) > 1
        }
        parts = {**parts, **by_arch}
    return tuple(
        OneImageRefusal(classes=tuple(part), plan=resolver.plan(part)) for part in parts.values()
    )


def named(classes: Sequence[NodeClass]) -> str:
    """The nodes of several classes in short."""
    return several([node for one in classes for node in one.nodes], 3)
