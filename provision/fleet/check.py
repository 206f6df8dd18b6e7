"""Which images run on which classes of nodes, and which would not with another driver.

An image is what its plan says: the framework's build and cuda-compat. The resolver's rules decide:
an image is judged as if it were planned for that class alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.catalog.catalog import Catalog
from provision.fleet.classes import NodeClass
from provision.fleet.what_if import is_older, with_driver
from provision.model.plan import ComputeCapability, Plan
from provision.verification.on_host import HostVerdict, judge_host


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedImage:
    """An image on each class, now and, if that was asked, with another driver on older nodes."""

    name: str
    plan: Plan
    now: tuple[HostVerdict, ...]
    then: tuple[HostVerdict, ...] | None = None

    @property
    def breaks(self) -> tuple[int, ...]:
        """The classes on which it runs now, and would not with the driver."""
        return self._changed(now=True, then=False)

    @property
    def gains(self) -> tuple[int, ...]:
        """The classes on which it does not run now, and would."""
        return self._changed(now=False, then=True)

    def _changed(self, *, now: bool, then: bool) -> tuple[int, ...]:
        return tuple(
            number
            for number, (one, other) in enumerate(zip(self.now, self.then or (), strict=False))
            if one.runs is now and other.runs is then
        )


def check_image(
    name: str,
    plan: Plan,
    classes: Sequence[NodeClass],
    driver: str | None,
    catalog: Catalog,
    cut: Sequence[ComputeCapability] = (),
) -> CheckedImage:
    """Judge an image by its plan. `driver` is what older nodes would get; `cut` are the only GPUs
    that it has code for, if that of others was removed.
    """
    now = tuple(judge_host(plan, one.facts, catalog, cut) for one in classes)
    if driver is None:
        return CheckedImage(name=name, plan=plan, now=now)
    then = tuple(
        judge_host(plan, with_driver(one, driver).facts, catalog, cut)
        if one.facts.gpus and is_older(one, driver)
        else verdict
        for one, verdict in zip(classes, now, strict=True)
    )
    return CheckedImage(name=name, plan=plan, now=now, then=then)
