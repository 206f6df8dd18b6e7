"""torchvision: whether it was built for this torch, and whether its compiled operators work."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

from verify.backends.pytorch import find
from verify.model.check import Check, Context, Outcome, Status, on_device
from verify.running.symptoms import explain

PAIR = "install the torchvision that was released with this torch, from the same index"

# Boxes as (x1, y1, x2, y2) with their scores. The second overlaps the first by 81 of 119 cells
# (0.68), the fourth the third by 2 of 8 (0.25): at a threshold of 0.5 only the second goes.
BOXES = ((0, 0, 10, 10), (1, 1, 11, 11), (20, 20, 22, 22), (21, 20, 24, 22))
SCORES = (0.9, 0.8, 0.7, 0.95)
KEPT = (3, 0, 2)  # by falling score


@dataclass(frozen=True)
class Vision:
    """The installed torchvision. `version` is None if it is not installed."""

    version: Optional[str] = None
    needs: Optional[str] = None  # the torch that its metadata asks for
    torch: str = ""
    error: Optional[str] = None
    kept: Sequence[int] = ()  # by its non-maximum suppression
    pooled: Sequence[float] = ()  # by its RoIAlign


def check_vision(context: Context) -> Outcome:
    """Import torchvision, and run two of its compiled operators with known answers."""
    import torch

    if importlib.util.find_spec("torchvision") is None:
        return judge_vision(Vision(torch=str(torch.__version__)), "cpu")
    broken, place = find(context)
    if broken:
        return broken
    version, needs = _metadata()
    seen = Vision(version, needs, str(torch.__version__))
    try:
        kept, pooled = _compute(place.device)
        seen = replace(seen, kept=kept, pooled=pooled)
    except Exception as problem:
        seen = replace(seen, error="{}: {}".format(type(problem).__name__, problem))
    return judge_vision(seen, place.kind)


def _metadata() -> Tuple[str, Optional[str]]:
    """The version, and the torch it is pinned to: its wheels ask for exactly one."""
    from importlib import metadata

    try:
        asked = metadata.requires("torchvision") or ()
        version = metadata.version("torchvision")
    except metadata.PackageNotFoundError:  # a build of one's own, on the path
        import torchvision

        return str(torchvision.__version__), None
    pins = (re.match(r"torch\s*\(?==\s*([^\s;)]+)", line) for line in asked)
    return version, next((pin.group(1) for pin in pins if pin), None)


def _compute(device: object) -> "tuple[List[int], List[float]]":
    """Two answers: which boxes remain, and the means of a plane's four quarters.

    The plane is x + 10 y on 4 x 4 cells. RoIAlign of the whole plane into 2 x 2 with one sample
    each reads it at the middle of each quarter: at 0.5 or 2.5 on either axis.
    """
    import torch
    from torchvision import ops

    boxes = torch.tensor(BOXES, dtype=torch.float32, device=device)
    scores = torch.tensor(SCORES, dtype=torch.float32, device=device)
    kept = ops.nms(boxes, scores, 0.5).cpu().tolist()
    axis = torch.arange(4, dtype=torch.float32, device=device)
    plane = (axis.view(1, 4) + 10 * axis.view(4, 1)).view(1, 1, 4, 4)
    whole = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]], device=device)
    pooled = ops.roi_align(plane, whole, 2, sampling_ratio=1, aligned=True)
    return [int(i) for i in kept], [float(x) for x in pooled.flatten().cpu().tolist()]


POOLED = (5.5, 7.5, 25.5, 27.5)


def judge_vision(seen: Vision, device: str) -> Outcome:
    """Pinned to this torch, and both answers as known."""
    measured = {
        "device": device,
        "torchvision": seen.version,
        "asks_for_torch": seen.needs,
        "torch": seen.torch,
        "nms": list(seen.kept),
        "roi_align": list(seen.pooled),
    }
    expected = {"nms": list(KEPT), "roi_align": list(POOLED)}
    if seen.version is None:
        message = "torchvision is not installed"
        return Outcome(Status.SKIP, message, fix=PAIR, measured=measured, expected=expected)
    if seen.needs and _base(seen.needs) != _base(seen.torch):
        message = "torchvision {} requires torch {}, found {}".format(
            seen.version, seen.needs, seen.torch
        )
        cause = "its compiled operators call torch's C++ functions, which differ by version"
        return Outcome(Status.FAIL, message, cause, PAIR, measured, expected)
    if seen.error:
        first = seen.error.split("\n")[0]
        message = "torchvision {} does not work: {}".format(seen.version, first)
        known, fix = explain(seen.error)
        cause = known or "its compiled operators were built for another torch or another CUDA"
        return Outcome(Status.FAIL, message, cause, fix or PAIR, measured, expected)
    wrong = _wrong(seen)
    if wrong:
        message = "torchvision's {} gives {}, not {}".format(*wrong)
        cause = "its compiled operators compute wrong results on this device"
        return Outcome(Status.FAIL, message, cause, PAIR, measured, expected)
    said = "torchvision {}: known answers of nms and roi_align, {}"
    message = said.format(seen.version, on_device(device))
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _wrong(seen: Vision) -> Optional[Tuple[str, str, str]]:
    if tuple(seen.kept) != KEPT:
        return "nms", str(list(seen.kept)), str(list(KEPT))
    near = [abs(one - other) < 1e-3 for one, other in zip(seen.pooled, POOLED)]
    if len(near) != len(POOLED) or len(seen.pooled) != len(POOLED) or not all(near):
        return "roi_align", str(list(seen.pooled)), str(list(POOLED))
    return None


def _base(version: str) -> str:
    return version.partition("+")[0]


CHECKS = (Check("libraries.vision", "torchvision's operators work", check_vision, "standard", 120),)
