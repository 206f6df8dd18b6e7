"""Whether an image runs on a machine, by the plan of the image and the machine's facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from provision.catalog.catalog import Catalog
from provision.model.plan import ComputeCapability, HostFacts, Plan, Request
from provision.resolve import resolve
from provision.verification.cut import OtherGpuError, other_gpu

_NOT_KNOWN = frozenset({"no-such-build"})
"""Refusals for want of data: a release that the catalog does not have."""


class HostVerdict(NamedTuple):
    """Whether an image runs on a machine; `runs` None: not known, or there is no GPU. `how` is the
    plan's verdict if it runs ("direct"), else the code of the reason in `message`.
    """

    runs: bool | None
    how: str
    message: str = ""


def judge_host(
    plan: Plan, facts: HostFacts, catalog: Catalog, cut: Sequence[ComputeCapability] = ()
) -> HostVerdict:
    """Whether an image of this plan runs on such a machine."""
    if facts.gpus == ():
        return HostVerdict(runs=None, how="no-gpu", message="there is no NVIDIA GPU")
    if facts.driver is None and facts.gpus is None:
        message = "neither the driver nor the GPUs are known"
        return HostVerdict(runs=None, how="node-unknown", message=message)
    if facts.arch is not None and plan.arch is not None and facts.arch != plan.arch:
        message = f"it is for {plan.arch}, and these nodes are {facts.arch}"
        return HostVerdict(runs=False, how="other-processor", message=message)
    if (other := other_gpu(cut, facts, catalog)) is not None:
        message = f"its code for the {other.name or 'GPU'} was removed (build --cut)"
        return HostVerdict(runs=False, how=OtherGpuError.code, message=message)
    request = Request(  # of any Python: which bases have one does not matter to an image
        framework=plan.framework, framework_version=f"=={plan.framework_version}", cuda=plan.cuda
    )
    alone = facts._replace(label=HostFacts().label)  # messages name other hosts
    found = resolve([alone], request, catalog)
    if found.error is not None:
        runs = None if found.error.code in _NOT_KNOWN else False
        return HostVerdict(runs=runs, how=found.error.code, message=found.error.message)
    if found.compat_package is not None and plan.compat_package is None:
        message = (
            f"driver {facts.driver} needs {found.compat_package} for CUDA {plan.cuda}, which the "
            "image does not have"
        )
        return HostVerdict(runs=False, how="needs-compat", message=message)
    return HostVerdict(runs=True, how=found.verdict)
