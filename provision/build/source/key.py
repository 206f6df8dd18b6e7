"""What a built wheel was made from, and whether it fits a plan. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from provision.model.plan import ComputeCapability, Plan
from provision.resolve.specifiers import version as version_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelKey:
    """What determines a wheel. `name` is canonical; `wheel_tag` is the framework's ("cu130");
    `capabilities` are those of the GPUs ("9.0"); `environment` are the variables of the build that
    change the wheel.
    """

    name: str
    version: str
    sdist_sha256: str
    framework: str
    framework_version: str
    cuda: str
    wheel_tag: str
    python: str
    arch: str
    capabilities: tuple[str, ...]
    environment: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The members, for `--json` and for the store."""
        return {**asdict(self), "capabilities": list(self.capabilities)}

    @property
    def text(self) -> str:
        """The same key has the same text."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedWheel:
    """A built wheel: its key, its file, and the newest glibc that it needs ("2.34"; None: none).
    `compiler` is what nvcc and gcc said about themselves.
    """

    key: WheelKey
    path: str
    sha256: str
    size: int
    glibc: str | None = None
    compiler: tuple[str, ...] = ()


def key_for(
    plan: Plan,
    *,
    name: str,
    version: str,
    sdist_sha256: str,
    capabilities: Sequence[ComputeCapability],
    environment: Mapping[str, str],
) -> WheelKey:
    """The key of a package's wheel for a plan."""
    return WheelKey(
        name=name,
        version=version,
        sdist_sha256=sdist_sha256,
        framework=plan.framework,
        framework_version=str(plan.framework_version),
        cuda=str(plan.cuda),
        wheel_tag=plan.wheel_tag or "",
        python=str(plan.python),
        arch=str(plan.arch),
        capabilities=tuple(f"{major}.{minor}" for major, minor in capabilities),
        environment=dict(environment),
    )


def key_from_json(data: Mapping[str, Any]) -> WheelKey | None:
    """A key as the store has it; None: it is not one."""
    try:
        texts = {name: str(data[name]) for name in WheelKey.__slots__ if name not in _NESTED}
        capabilities = tuple(str(one) for one in data["capabilities"])
        environment = {str(name): str(value) for name, value in data["environment"].items()}
    except (KeyError, TypeError, AttributeError):
        return None
    return WheelKey(**texts, capabilities=capabilities, environment=environment)


_NESTED = frozenset({"capabilities", "environment"})


def fits(kept: CachedWheel, plan: Plan) -> bool:
    """Whether a wheel runs in the image of a plan, on all of its GPUs."""
    key = kept.key
    same = (key.framework, key.framework_version, key.cuda, key.wheel_tag, key.python, key.arch)
    wanted = (
        plan.framework,
        plan.framework_version,
        plan.cuda,
        plan.wheel_tag or "",
        plan.python,
        plan.arch,
    )
    gpus = {gpu.compute_capability for gpu in plan.gpus if gpu.compute_capability}
    return same == wanted and gpus <= set(key.capabilities) and not too_new(kept.glibc, plan)


def too_new(glibc: str | None, plan: Plan) -> bool:
    """Whether the plan's base is known to have an older glibc than this."""
    has = plan.base.glibc if plan.base else None
    return bool(glibc and has and version_of(glibc) > version_of(has))


def fitting(kept: Sequence[CachedWheel], requirement: str, plan: Plan) -> list[CachedWheel]:
    """The wheels that a requirement allows and that fit a plan, the newest version first."""
    read = Requirement(requirement)
    found = [
        one
        for one in kept
        if one.key.name == canonicalize_name(read.name)
        and not read.url
        and read.specifier.contains(one.key.version, prereleases=True)
        and fits(one, plan)
    ]
    return sorted(found, key=lambda one: (version_of(one.key.version), one.sha256), reverse=True)
