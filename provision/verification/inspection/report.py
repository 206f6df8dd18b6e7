"""Write the results of an inspection as a report in the suite's format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Literal

from images.inspect.image import Inspection
from provision.model.plan import TITLES, Framework, Gpu
from provision.verification.inspection.code import judge_code
from provision.verification.inspection.needs import judge_needs
from provision.verification.inspection.outcome import InspectionOutcome
from provision.verification.inspection.packages import judge_packages, tell_sizes
from provision.verification.inspection.symbols import judge_symbols
from provision.verification.inspection.versions import judge_versions, provided_versions

NEEDS, VERSIONS, CODE = "inspect.needs", "inspect.glibc", "inspect.architectures"
SYMBOLS, PACKAGES, SIZES = "inspect.symbols", "inspect.packages", "inspect.sizes"
_TITLES = {
    NEEDS: "All required libraries are present",
    VERSIONS: "The base is new enough for the compiled files",
    SYMBOLS: "All required symbols are defined",
    CODE: "There is code for the GPU",
    PACKAGES: "The packages are complete",
    SIZES: "Size by package and layer",
}


def make_report(found: Inspection, gpus: Sequence[Gpu], *, seconds: float) -> dict[str, Any]:
    """Judge what was found; `seconds` is how long the reading took."""
    outcomes = {
        NEEDS: judge_needs(found),
        VERSIONS: judge_versions(found),
        SYMBOLS: judge_symbols(found),
        CODE: judge_code(found, gpus),
        PACKAGES: judge_packages(found),
        SIZES: tell_sizes(found),
    }
    return {
        "schema": 1,
        "verdict": verdict(found, outcomes, asked_for_gpus=bool(gpus)),
        "level": "standard",
        "environment": _environment(found),
        "checks": [
            {
                "id": name,
                "title": _TITLES[name],
                "status": outcome.status,
                "seconds": round(seconds, 3) if name == SIZES else 0.0,
                "message": outcome.message,
                "cause": outcome.cause,
                "fix": outcome.fix,
                "measured": dict(outcome.measured),
                "expected": dict(outcome.expected),
            }
            for name, outcome in outcomes.items()
        ],
    }


def verdict(
    found: Inspection, outcomes: Mapping[str, InspectionOutcome], *, asked_for_gpus: bool
) -> Literal["fit", "unfit", "no-verdict"]:
    """Unfit if anything failed. Else the requested facts must have been shown: code for a named
    GPU; that every file is present, always for an image, for a wheel if no GPU was named, since a
    wheel may depend on others.
    """
    if any(outcome.status == "fail" for outcome in outcomes.values()):
        return "unfit"
    must = {CODE} if asked_for_gpus else set()
    if found.contents.kind == "image" or not asked_for_gpus:
        must |= {NEEDS, VERSIONS}
    return "fit" if all(outcomes[name].status == "pass" for name in must) else "no-verdict"


def _environment(found: Inspection) -> dict[str, Any]:
    """The report's environment: that of the image, as far as its files show it. Nothing was
    started, so there is no kernel, no driver and no GPU; the CPUs are those of the machine that
    reads it.
    """
    package = found.framework_package
    framework: Framework = "pytorch"
    for name in TITLES:
        if name == found.framework:
            framework = name
    glibc = provided_versions(found).get("GLIBC")
    return {
        "started": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "image": found.contents.digest,
        "python": found.python or "0.0 (none is in it)",
        "framework": {"name": framework, "version": package.version if package else None},
        "kernel": "nothing was started",
        "arch": found.machine or "unknown",
        "glibc": glibc.removeprefix("GLIBC_") if glibc else None,
        "cpus": os.cpu_count() or 1,
        "shm_bytes": None,
        "container": None,
        "visible_devices": None,
        "device_nodes": 0,
        "driver": None,
        "cuda_driver": None,
        "gpus": [],
        "driver_error": "nothing was started: only its files were read",
    }
