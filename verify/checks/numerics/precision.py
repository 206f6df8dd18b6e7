"""PyTorch's dtypes by short name, which devices have them, and the collection of readings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from verify.backends.pytorch import Place, find, find_gpus
from verify.checks.numerics.accuracy import AccuracyReading
from verify.model.check import Context, Outcome

NAMES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
_SINCE = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}  # the first compute capability with it
# torch's messages if a dtype has no kernel. Any other error is a failure.
_NOT_THERE = re.compile(
    r"not implemented for|not[ _]supported|only supported|unsupported|could not run .aten::"
    r"|could not create a primitive",
    re.IGNORECASE,
)


def kind_of(dtype: str) -> Any:
    """The torch.dtype."""
    import torch

    return getattr(torch, NAMES[dtype])


def has(dtype: str, place: Place) -> bool:
    """Whether a GPU has units for a dtype."""
    return place.is_gpu and (place.capability or (0, 0)) >= _SINCE.get(dtype, (0, 0))


def why_not(dtype: str, place: Place) -> Optional[str]:
    """Why a dtype is not tried on a device."""
    import torch

    if not hasattr(torch, NAMES[dtype]):
        return "torch {} has no {}".format(torch.__version__, NAMES[dtype])
    if dtype == "tf32" and not place.is_gpu:
        return "CPUs have none"
    is_on_cpu = dtype == "bf16" and not place.is_gpu
    if is_on_cpu and sums_in_bf16(str(torch.__version__), torch.__config__.show()):
        return "torch {} sums it in bf16 on a CPU without AVX-512".format(torch.__version__)
    if place.is_gpu and not has(dtype, place):
        said = "GPU {} has compute capability {}.{}, and it comes with {}.{}"
        return said.format(place.index, *(place.capability or (0, 0)), *_SINCE[dtype])
    return None


def sums_in_bf16(version: str, config: str) -> bool:
    """Whether the CPU sums products of bf16 in bf16, from torch's own build information.

    Before 2.1 only oneDNN sums them in fp32, and it needs AVX-512 for bf16:
    https://github.com/pytorch/pytorch/issues/83863, fixed by pull request 96074.
    """
    release = re.match(r"(\d+)\.(\d+)", version)
    is_old = release is not None and (int(release[1]), int(release[2])) < (2, 1)
    return is_old and "CPU capability usage: AVX512" not in config


def sum_in_fp32() -> None:
    """Forbid sums in fp16 and bf16, which torch allows by default when it splits a product by its
    terms: with 64 parts their error exceeds what the rounding of one sum explains.
    """
    import torch

    for dtype in ("fp16", "bf16"):  # bf16's since torch 1.13
        name = "allow_{}_reduced_precision_reduction".format(dtype)
        if hasattr(torch.backends.cuda.matmul, name):
            setattr(torch.backends.cuda.matmul, name, False)


def set_tf32(*, on: bool) -> None:
    """Allow or forbid TF32. A check has its own process, so nothing needs to be restored."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def places(context: Context) -> Tuple[Optional[Outcome], Tuple[Place, ...]]:
    """Every GPU, or the CPU; or the failure if there should be a GPU and there is none."""
    broken, first = find(context)
    return broken, find_gpus(context)[1] if first.is_gpu else (first,)


class Results(NamedTuple):
    """What a check collects: readings, and the reason for each dtype that it leaves out."""

    readings: List[AccuracyReading]
    left_out: Dict[str, str]

    def able(self, dtype: str, everywhere: Tuple[Place, ...]) -> List[Place]:
        """The places that have a dtype; notes why the others do not."""
        reasons = {place: why_not(dtype, place) for place in everywhere}
        for reason in filter(None, reasons.values()):
            self.left_out.setdefault(dtype, reason)
        return [place for place, reason in reasons.items() if reason is None]

    def add(self, work: Callable[[], List[AccuracyReading]], doomed: AccuracyReading) -> None:
        """Add the work's readings; or `doomed` with the error, or the reason for leaving it out.

        A CPU may lack a dtype. Of a GPU's dtypes only fp8 depends on more than the capability.
        """
        try:
            self.readings.extend(work())
        except (RuntimeError, TypeError, ValueError) as error:
            text = "{}: {}".format(type(error).__name__, error)
            if _NOT_THERE.search(text) and (doomed.gpu is None or doomed.dtype == "fp8"):
                self.left_out.setdefault(doomed.dtype, text.partition("\n")[0][:160])
            else:
                self.readings.append(replace(doomed, raised=text))
