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
from provision.model.plan import ComputeCapability, HostFacts, Plan, Request
from provision.resolve import resolve
from provision.verification.cut import OtherGpuError, other_gpu

_NOT_KNOWN = frozenset({"no-such-build"})
"""Refusals for want of data: a release that the catalog does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassVerdict:
    """Whether an image runs on a class; `runs` None: not known, or there is no GPU. `how` is the
    plan's verdict if it runs ("direct"), else the code of the reason in `message`.
    """

    runs: bool | None
    how: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedImage:
    """An image on each class, now and, if that was asked, with another driver on older nodes."""

    name: str
    plan: Plan
    now: tuple[ClassVerdict, ...]
    then: tuple[ClassVerdict, ...] | None = None

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
    now = tuple(judge_class(plan, one.facts, catalog, cut) for one in classes)
    if driver is None:
        return CheckedImage(name=name, plan=plan, now=now)
    then = tuple(
        judge_class(plan, with_driver(one, driver).facts, catalog, cut)
        if one.facts.gpus and is_older(one, driver)
        else verdict
        for one, verdict in zip(classes, now, strict=True)
    )
    return CheckedImage(name=name, plan=plan, now=now, then=then)


def judge_class(
    plan: Plan, facts: HostFacts, catalog: Catalog, cut: Sequence[ComputeCapability] = ()
) -> ClassVerdict:
    """Whether an image of this plan runs on such a machine."""
    if facts.gpus == ():
        return ClassVerdict(runs=None, how="no-gpu", message="there is no NVIDIA GPU")
    if facts.driver is None and facts.gpus is None:
        message = "neither the driver nor the GPUs are known"
        return ClassVerdict(runs=None, how="node-unknown", message=message)
    if facts.arch is not None and plan.arch is not None and facts.arch != plan.arch:
        message = f"it is for {plan.arch}, and these nodes are {facts.arch}"
        return ClassVerdict(runs=False, how="other-processor", message=message)
    if (other := other_gpu(cut, facts, catalog)) is not None:
        message = f"its code for the {other.name or 'GPU'} was removed (build --cut)"
        return ClassVerdict(runs=False, how=OtherGpuError.code, message=message)
    request = Request(  # of any Python: which bases have one does not matter to an image
        framework=plan.framework, framework_version=f"=={plan.framework_version}", cuda=plan.cuda
    )
    alone = facts._replace(label=HostFacts().label)  # messages name other hosts
    found = resolve([alone], request, catalog)
    if found.error is not None:
        runs = None if found.error.code in _NOT_KNOWN else False
        return ClassVerdict(runs=runs, how=found.error.code, message=found.error.message)
    if found.compat_package is not None and plan.compat_package is None:
        message = (
            f"driver {facts.driver} needs {found.compat_package} for CUDA {plan.cuda}, which the "
            "image does not have"
        )
        return ClassVerdict(runs=False, how="needs-compat", message=message)
    return ClassVerdict(runs=True, how=found.verdict)
