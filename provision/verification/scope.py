"""How much the suite says about an image on this machine: the one place that decides it.

The suite knows which checks belong to a scope (`verify.model.check.is_outside`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from provision.catalog.catalog import Catalog
from provision.model.plan import ComputeCapability, HostFacts, Plan
from provision.resolve.specifiers import version

_TESTED = {
    "image": "imports, libraries and a function of each package",
    "results": "all but times and rates",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteScope:
    """What is tested of an image that is not for this machine, and why no more."""

    checks: Literal["image", "results"]
    because: str

    @property
    def words(self) -> str:
        """What is tested."""
        return _TESTED[self.checks]

    def to_json(self) -> dict[str, str]:
        """As in the suite's expectations."""
        return {"checks": self.checks, "because": self.because}


def scope_of(plan: Plan, here: HostFacts, catalog: Catalog) -> SuiteScope | None:
    """The scope of a plan's image on this machine; None: everything.

    A GPU whose compute capability is not known may be the plan's.
    """
    if (other := _other_machine(plan, here, catalog)) is not None:
        return SuiteScope(checks="image", because=other)
    if here.gpus:
        return None
    return SuiteScope(checks="results", because="this machine has no NVIDIA GPU")


def _other_machine(plan: Plan, here: HostFacts, catalog: Catalog) -> str | None:
    """Why this machine is not one that the plan is for; None: it may be."""
    planned = {gpu.compute_capability for gpu in plan.gpus}
    names = " and ".join(dict.fromkeys(_named(g.name, g.compute_capability) for g in plan.gpus))
    if planned and not here.gpus:
        return f"the plan is for {names}, and this machine has no NVIDIA GPU"
    found = {_shown(catalog.capability_of(gpu)) for gpu in here.gpus or ()}
    if planned and None not in planned | found and not planned & found:
        own = ", ".join(dict.fromkeys(gpu.name or "another GPU" for gpu in here.gpus or ()))
        return f"the plan is for {names}, and this machine has {own}"
    if plan.driver_have is not None and here.driver is None:
        return f"the plan is for driver {plan.driver_have}, and this machine has no NVIDIA driver"
    runs_by_driver = plan.verdict in {"direct", "minor-version"} and plan.driver_need is not None
    if not runs_by_driver or here.driver is None or plan.driver_need is None:
        return None
    if version(here.driver) < version(plan.driver_need):
        return f"the plan needs driver {plan.driver_need}, and this machine has {here.driver}"
    return None


def _named(name: str | None, capability: str | None) -> str:
    return name or f"compute capability {capability or 'unknown'}"


def _shown(capability: ComputeCapability | None) -> str | None:
    return None if capability is None else "{}.{}".format(*capability)
