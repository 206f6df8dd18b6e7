"""The labels of an image: the plan it was made from, and the lock's digest."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from provision.catalog.rows.gpus import GpuModel
from provision.errors import BadInputError, LockFileError
from provision.lock.lockfile import Lock
from provision.model.plan import ComputeCapability, Gpu, HostFacts, Plan
from provision.model.planfile import plan_from_json, plan_to_json

PLAN = "org.gpu-provision.plan"
LOCK_SHA256 = "org.gpu-provision.lock-sha256"
VERSION = "org.gpu-provision.version"
CUT = "org.gpu-provision.cut"
"""The GPUs for which an image has code, if that of others was removed: "sm_80,sm_86"."""
TARGET = re.compile(r"sm_([0-9]{1,3})([0-9])")
"""The name of a compute capability: major and minor."""
_LONGEST = 1 << 20
"""Characters of a label; ours have a few thousand."""
_ABOUT_THE_HOST = (
    "reasons",
    "warnings",
    "notes",
    "limited_by",
    "alternatives",
    "gpus",
    "driver",
    "error",
    "verdict",
)


def labels_for(lock: Lock, version: str, cut: Sequence[ComputeCapability] = ()) -> dict[str, str]:
    """The labels of an image built from this lock, with the GPU code for `cut` alone, if there are
    any. They contain no data of the host.
    """
    plan = plan_to_json(lock.plan)
    for private in _ABOUT_THE_HOST:
        plan.pop(private)
    base = lock.plan.base
    if base is not None:
        plan["base"].pop("added", None)  # hundreds of rows, which the lock in the image has
    if base is not None and base.kind == "local":
        # its path means nothing elsewhere, and would give equal images different digests
        base = base._replace(reference="local")
        plan["base"] = {**plan["base"], "reference": "local"}
    return {
        PLAN: json.dumps(plan, separators=(",", ":"), sort_keys=True),
        LOCK_SHA256: lock.sha256,
        VERSION: version,
        **({CUT: ",".join(targets_of(cut))} if cut else {}),
        "org.opencontainers.image.title": f"{lock.plan.framework} {lock.plan.framework_version} "
        f"for CUDA {lock.plan.cuda}",
        "org.opencontainers.image.base.name": base.reference if base else "",
        "org.opencontainers.image.base.digest": (base.digest or "") if base else "",
    }


def labels_in(config: Mapping[str, Any]) -> dict[str, str]:
    """The labels in an image's configuration that are texts, as they should be."""
    own = config.get("config")
    labels = own.get("Labels") if isinstance(own, dict) else None
    found = labels.items() if isinstance(labels, dict) else ()
    return {name: value for name, value in found if isinstance(value, str)}


def targets_of(gpus: Collection[ComputeCapability]) -> list[str]:
    """The names of compute capabilities, ascending, each once: ["sm_80", "sm_86"]."""
    return [f"sm_{major}{minor}" for major, minor in sorted(set(gpus))]


def cut_of(labels: Mapping[str, str], image: str) -> tuple[ComputeCapability, ...]:
    """The only GPUs for which an image has code, as its label says; (): no code was removed.
    BadInputError: the label is not valid.
    """
    text = labels.get(CUT)
    if text is None:
        return ()
    found = [TARGET.fullmatch(word) for word in text[:_LONGEST].split(",")]
    if not all(found) or len(text) > _LONGEST:
        raise BadInputError(
            f"The {CUT} label of {image} is not valid.", fix="Rebuild the image: provision build"
        )
    return tuple((int(match[1]), int(match[2])) for match in found if match)


def plan_of(labels: Mapping[str, str], image: str) -> Plan:
    """The plan that an image's labels say it was built from. BadInputError: they do not say so."""
    text = labels.get(PLAN, "")
    try:
        data = json.loads(text if len(text) <= _LONGEST else "")
    except (ValueError, RecursionError):
        raise BadInputError(
            f"{image} does not say what it was built for: it has no {PLAN} label.",
            fix="Build it with provision build, or install this package in it and run the suite "
            "without expectations: python3 -m verify",
        ) from None
    try:
        return plan_from_json({"verdict": "unverified", **data} if isinstance(data, dict) else {})
    except LockFileError as error:
        raise BadInputError(
            f"The {PLAN} label of {image} was not written by this version: {error.message}",
            fix="Rebuild the image: provision build",
        ) from error


def expectations(
    plan: Plan,
    facts: HostFacts | None,
    image_id: str | None,
    models: Sequence[GpuModel] = (),
    *,
    machine: str = "",
    emulator: str = "",
    packages: Collection[str] = (),
    cut: Collection[ComputeCapability] = (),
    scope: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the suite must find inside the container: the plan, and the host's GPUs, each with its
    specification if the catalog (`models`) has a card of exactly that name; the host's name; what
    emulates the image's processor; the packages that must be importable; and the only GPUs that the
    image has code for, if that of others was removed. `scope`: what is tested on another machine
    than the image's, and why no more.
    """
    gpus = None
    if facts is not None and facts.gpus is not None:
        gpus = [_gpu(gpu, models) for gpu in facts.gpus]
    return {
        "schema": 1,
        "framework": {"name": plan.framework, "version": plan.framework_version},
        "wheel_tag": plan.wheel_tag,
        "cuda": plan.cuda,
        "cudnn": plan.cudnn,
        "nccl": plan.nccl,
        "python": plan.python,
        "gpus": gpus,
        "image": {"digest": image_id} if image_id else None,
        **({"machine": machine} if machine else {}),
        **({"packages": sorted(packages)} if packages else {}),
        **({"cut": ["{}.{}".format(*gpu) for gpu in sorted(cut)]} if cut else {}),
        **({"emulator": emulator} if emulator else {}),
        **({"scope": dict(scope)} if scope else {}),
    }


def _gpu(gpu: Gpu, models: Sequence[GpuModel]) -> dict[str, Any]:
    capability = gpu.compute_capability
    spec = _spec(gpu, models)
    return {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "compute_capability": "{}.{}".format(*capability) if capability else None,
        **({"spec": spec} if spec else {}),
    }


def _spec(gpu: Gpu, models: Sequence[GpuModel]) -> dict[str, Any] | None:
    """The card's specification, by the full name that NVML prints: related cards have other ones.
    Older drivers print it without the maker. A part of a card (MIG) has no specification.
    """
    names = {gpu.name, f"NVIDIA {gpu.name}"}
    model = next((row for row in models if gpu.name and row.name in names), None)
    return None if model is None or gpu.mig else spec_of(model)


def spec_of(model: GpuModel) -> dict[str, Any]:
    """A card's specification in the format of the expectations file."""
    return {
        "memory_bandwidth_gbs": model.memory_bandwidth_gbs,
        "tflops": {kind: rate for kind, rate in model.tflops.items() if rate is not None},
        "nvlink": model.nvlink,
        "sure": model.figures_confidence != "doubtful",
    }
