"""Judges whether the packages are complete, and reports which packages the bytes belong to."""

from __future__ import annotations

from typing import Any

from images.inspect.image import Inspection
from provision.errors import BadInputError
from provision.lock.labels import PLAN, cut_of, labels_in, plan_of
from provision.model.plan import PACKAGES, TITLES, ComputeCapability, Plan
from provision.verification.inspection.outcome import (
    InspectionOutcome,
    and_more,
    counted,
    in_units,
    path_of,
    table,
    tables,
)


def judge_packages(found: Inspection) -> InspectionOutcome:
    """Whether the packages have all files, one version each, and match the plan."""
    packages = found.packages.distributions
    damaged = list(found.damage)
    measured = {
        "packages": len(packages),
        "left_out": found.left_out,
        "cuda_runtimes": list(found.toolkits),
        "python": found.python,
        "plan": _plan_word(found),
        **tables(
            table(
                "Packages",
                ("package", "version", "place"),
                [(p.name, p.version, p.site) for p in sorted(packages, key=lambda p: p.name)],
            ),
            table(
                "Missing or truncated files of packages",
                ("package", "file", "what"),
                [(d.package, path_of(found, d.path), d.why) for d in damaged],
            ),
        ),
    }
    if found.twins:
        one, other = found.twins[0]
        return InspectionOutcome(
            status="fail",
            message=f"{one.name} is installed twice in {one.site}: {one.version} and "
            f"{other.version}{and_more(len(found.twins) - 1, 'such package')}",
            cause="The later one has overwritten files of the earlier one.",
            fix=f"Install one: pip install --force-reinstall {one.name}=={other.version}",
            measured=measured,
        )
    if damaged:
        first = damaged[0]
        name, _, version = first.package.partition(" ")
        return InspectionOutcome(
            status="fail",
            message=f"{path_of(found, first.path)} of {first.package} {first.why}"
            f"{and_more(len(damaged) - 1, 'damaged file')}",
            cause="Files of the package were removed or changed after it was installed.",
            fix=f"Reinstall it: pip install --force-reinstall {name}=={version}",
            measured=measured,
        )
    wrong = _against_plan(found)
    if wrong is not None:
        return InspectionOutcome(
            status="fail",
            message=wrong,
            cause="Something was installed after the build, or the label belongs to another image.",
            fix="Rebuild it: provision build",
            measured=measured,
        )
    if not packages:
        return InspectionOutcome(
            status="skip", message="no Python package is installed", measured=measured
        )
    twice = (
        f"; the CUDA runtime is in {len(found.toolkits)} places" if len(found.toolkits) > 1 else ""
    )
    if measured["plan"] == "unreadable":
        twice += "; its plan label cannot be read"
    left_out = counted(found.left_out, "small file was", "small files were")
    less = f"; {left_out} left out" if found.left_out else ""
    return InspectionOutcome(
        status="pass",
        message=f"{counted(len(packages), 'package has all its', 'packages have all their')} "
        f"libraries{less}{twice}",
        measured=measured,
    )


def _plan_word(found: Inspection) -> str:
    """Say whether the image names its plan: a label of another version may be unreadable."""
    if plan_label(found) is not None:
        return "read"
    return "unreadable" if PLAN in labels_in(found.contents.config) else "none"


def plan_label(found: Inspection) -> Plan | None:
    """The plan that the image says it was made from; None if it has no readable one."""
    labels = labels_in(found.contents.config)
    if PLAN not in labels:
        return None
    try:
        return plan_of(labels, found.contents.shown)
    except BadInputError:
        return None


def cut_label(found: Inspection) -> tuple[ComputeCapability, ...]:
    """The only GPUs that the image says it has code for; (): no code was removed. BadInputError:
    its label is not valid.
    """
    return cut_of(labels_in(found.contents.config), found.contents.shown)


def _against_plan(found: Inspection) -> str | None:
    plan = plan_label(found)
    if plan is None:
        return None
    package = found.packages.named(PACKAGES[plan.framework], "jaxlib")
    wanted = f"{TITLES[plan.framework]} {plan.framework_version}"
    if package is None:
        return f"the image should contain {wanted}, but does not"
    if package.version.partition("+")[0] != (plan.framework_version or "").partition("+")[0]:
        return f"the image should contain {wanted}, but has {package.title}"
    if plan.python and found.python and plan.python != found.python:
        return f"the image was built for Python {plan.python}, but has {found.python}"
    if plan.cuda and found.packages.cuda and found.packages.cuda != plan.cuda:
        return (
            f"the image was built for CUDA {plan.cuda}, but its torch is for {found.packages.cuda}"
        )
    return None


def tell_sizes(found: Inspection) -> InspectionOutcome:
    """The sizes by package. This check cannot fail: it sets no limit for sizes."""
    contents = found.contents
    total = sum(share.size for share in found.shares)
    compressed = sum(layer.size for layer in contents.layers)
    layers = (
        f" in {counted(len(contents.layers), 'layer')}, {in_units(compressed)} compressed"
        if contents.layers
        else ""
    )
    largest = ", ".join(f"{share.name} {in_units(share.size)}" for share in found.shares[:3])
    hidden = (
        f"; {in_units(found.hidden_bytes)} are hidden by later layers" if found.hidden_bytes else ""
    )
    metrics = [_bytes("size", total), *([_bytes("compressed", compressed)] if layers else [])]
    return InspectionOutcome(
        status="pass",
        message=f"{in_units(total)}{layers}: {largest or 'nothing'}{hidden}",
        measured={
            "metrics": metrics,
            "hidden_bytes": found.hidden_bytes,
            **tables(
                table(
                    "Bytes by package",
                    ("name", "kind", "files", "bytes"),
                    [(s.name, s.kind, s.files, s.size) for s in found.shares],
                ),
                table(
                    "Layers",
                    ("layer", "compressed", "files", "unpacked", "made by"),
                    [
                        (one.digest[7:19], one.size, one.files, one.unpacked, one.created_by[:200])
                        for one in contents.layers
                    ],
                ),
            ),
        },
    )


def _bytes(name: str, value: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": "bytes",
        "better": "lower",
        "repeats": 1,
        "spread": 0.0,
        "labels": {},
        "spec": None,
        "of_spec": None,
    }
