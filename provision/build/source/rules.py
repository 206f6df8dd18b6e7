"""How a package is built from source: its environment and its build requirements. Pure.

What single packages need is in `data/packages.json`, with the sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.errors import Failure
from images.text.data import data_table
from provision.errors import BadInputError, Exit
from provision.model.plan import ComputeCapability, Plan
from provision.model.request import parse_compute_capability

_known = data_table(__file__, "packages.json")
_GIB = 1 << 30
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+(torch|tensorflow|jax)\b", re.MULTILINE)


class BuiltWheelUnfitError(Failure):
    """A package cannot be compiled for the plan's GPUs, or its wheel does not fit the image."""

    code = "built-wheel-unfit"
    exit_code = Exit.BUILD_FAILED


def memory_per_job() -> int:
    """The bytes of memory that one compiler needs."""
    return int(_known()["memory_per_job_gib"]) * _GIB


def capabilities_of(plan: Plan) -> tuple[ComputeCapability, ...]:
    """The compute capabilities of all GPUs of a plan, in order. BadInputError: none is known, or
    not that of every GPU.
    """
    gpus = plan.gpus
    found = {parse_compute_capability(gpu.compute_capability or "") for gpu in gpus}
    if not gpus or None in found:
        raise BadInputError(
            "A wheel with GPU code is compiled for the GPUs that it runs on, and "
            + ("a GPU's compute capability is not known." if gpus else "none is known."),
            fix="Name the GPU, or its compute capability: --gpu H100 or --gpu 9.0",
        )
    return tuple(sorted(one for one in found if one is not None))


def environment_of(name: str, capabilities: Sequence[ComputeCapability]) -> dict[str, str]:
    """The variables for the build of a package, as far as they change the wheel.
    BuiltWheelUnfitError: its source has no code for one of the capabilities.
    """
    own = _package(name)
    wanted = _compiled_for(name, capabilities, own.get("code", ()))
    words = {
        "{capabilities}": " ".join(f"{major}.{minor}" for major, minor in capabilities),
        "{numbers}": ";".join(f"{major}{minor}" for major, minor in wanted),
    }
    pairs = {row["name"]: row["value"] for row in _known()["environment"]}
    pairs |= own.get("environment", {})
    for word, value in words.items():
        pairs = {key: text.replace(word, value) for key, text in pairs.items()}
    return dict(sorted(pairs.items()))


def requirements_for(name: str, declared: Sequence[str]) -> tuple[str, ...]:
    """What must be installed to build a package that declares these requirements."""
    lines = [row["requirement"] for row in _known()["requirements"]]
    return tuple(dict.fromkeys([*declared, *lines, *_package(name).get("requirements", ())]))


def needs_more(name: str, declared: Sequence[str], setup: str) -> str:
    """Why a package is not built in the sandbox: it needs a compiler, or the framework. "" if
    nothing in its name, its declared build requirements and the text of its setup.py says so.
    """
    for line in declared:
        if why := _known()["compiling"].get(canonicalize_name(Requirement(line).name)):
            return f"its build needs {why}"
    if builds_here(name):
        return "it compiles GPU code"
    if found := _IMPORTS.search(setup):
        return f"its setup.py imports {found[1]}"
    return ""


def builds_here(name: str) -> bool:
    """Whether it is known how to build a package with GPU code."""
    return bool(_package(name).get("environment"))


def missing_in(lines: Sequence[str], there: Mapping[str, str]) -> tuple[str, ...]:
    """The requirement lines that the packages of an image (name -> version) do not meet."""
    missing = []
    for line in lines:
        read = Requirement(line)
        version = there.get(canonicalize_name(read.name))
        met = version is not None and read.specifier.contains(version, prereleases=True)
        if not met or read.extras:
            missing.append(line)
    return tuple(missing)


def _package(name: str) -> Mapping[str, Any]:
    rows: list[dict[str, Any]] = _known()["packages"]
    return next((row for row in rows if row["name"] == name), {})


def _compiled_for(
    name: str, capabilities: Sequence[ComputeCapability], code: Sequence[str]
) -> tuple[ComputeCapability, ...]:
    """Of the capabilities that a package compiles for (empty: any), those that the GPUs run."""
    if not code:
        return tuple(capabilities)
    offered = sorted((int(a), int(b)) for a, _, b in (text.partition(".") for text in code))
    found = set()
    for major, minor in capabilities:
        runs = [one for one in offered if one[0] == major and one[1] <= minor]
        if not runs:
            raise BuiltWheelUnfitError(
                f"The source of {name} has no code for compute capability {major}.{minor}, only "
                f"for {', '.join(code)}.",
                fix=f"Use hosts with such a GPU, or remove {name}.",
            )
        found.add(runs[-1])
    return tuple(sorted(found))
