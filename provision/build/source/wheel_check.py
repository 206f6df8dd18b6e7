"""Whether a wheel that was built from source is the requested one, and runs in the plan's image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from images.inspect.image import Inspection, inspect_wheel
from images.text.printable import printable
from provision.build.source.key import WheelKey, too_new
from provision.build.source.rules import BuiltWheelUnfitError
from provision.lock.wheels import image_tags
from provision.model.plan import ComputeCapability, Gpu, Plan
from provision.verification.inspection.code import judge_code

_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")  # of "GLIBC_2.34 (by /x.so)"


def check_name(file_name: str, key: WheelKey, plan: Plan) -> None:
    """Refuse a wheel of another package, or for another Python or machine than the plan's.
    BuiltWheelUnfitError: it is one, or its name is malformed.
    """
    try:
        name, version, _, tags = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        name, version, tags = None, None, frozenset()
    why = ""
    if name != key.name or str(version).partition("+")[0] != key.version:
        why = f"it is not one of {key.name} {key.version}"
    elif tags.isdisjoint(image_tags(plan)):
        why = f"it does not fit Python {plan.python} on {plan.arch}"
    if why:
        raise BuiltWheelUnfitError(
            f"The build made {printable(file_name, limit=120)}: {why}.",
            fix="Request another version of the package.",
        )


def judge_built(
    found: Inspection, key: WheelKey, plan: Plan, capabilities: Sequence[ComputeCapability]
) -> str:
    """How a wheel runs on the GPUs, in words. BuiltWheelUnfitError: it has GPU code, and none for
    one of them; or it needs a newer glibc than the plan's base has.
    """
    if too_new(needed_glibc(found), plan):
        assert plan.base is not None
        raise BuiltWheelUnfitError(
            f"The wheel of {key.name} {key.version} needs glibc {needed_glibc(found)}, and the "
            f"plan's base {plan.base.reference} has {plan.base.glibc}.",
            fix="Use a base with the glibc of the devel image, for both: --base bootstrap",
        )
    gpus = [Gpu(compute_capability=capability) for capability in capabilities]
    outcome = judge_code(found, gpus)
    if outcome.status == "fail":
        raise BuiltWheelUnfitError(
            f"The wheel of {key.name} {key.version} does not run on the plan's GPUs. "
            f"{outcome.message}.",
            fix="Its source decides for which GPUs it is compiled: request another version of the "
            "package, or use hosts with another GPU.",
        )
    return outcome.message


def needed_glibc(found: Inspection) -> str | None:
    """The newest glibc that the files of a wheel need: "2.34"."""
    asked = found.needs.newest_asked.get("GLIBC") if found.needs else None
    version = _GLIBC.match(asked or "")
    return version[1] if version else None


def inspect(wheel: Path) -> Inspection:
    """Read a wheel on this machine."""
    return inspect_wheel(str(wheel))
