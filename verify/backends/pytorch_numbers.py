"""PyTorch's number formats: their types, TF32, and what products of fp8 need."""

from __future__ import annotations

import re
from typing import Any, Tuple

from verify.backends.base import NAMES


def kind_of(dtype: str) -> Any:
    """The torch.dtype."""
    import torch

    return getattr(torch, NAMES[dtype])


def sums_in_bf16(version: str, config: str) -> bool:
    """Whether the CPU sums products of bf16 in bf16, from torch's own build information.

    Before 2.1 only oneDNN sums them in fp32, and it needs AVX-512 for bf16:
    https://github.com/pytorch/pytorch/issues/83863, fixed by pull request 96074.
    """
    release = re.match(r"(\d+)\.(\d+)", version)
    is_old = release is not None and (int(release[1]), int(release[2])) < (2, 1)
    return is_old and "CPU capability usage: AVX512" not in config


def set_tf32(*, on: bool) -> None:
    """Allow or forbid TF32. A check has its own process, so nothing needs to be restored."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def scaled(left: Any, right: Any) -> Any:
    """torch's only product of fp8 numbers; the right matrix must be column-major."""
    import torch

    one = torch.ones((), device=left.device)
    columns = right.t().contiguous().t()
    result = torch._scaled_mm(  # noqa: SLF001  # there is no public name for it
        left, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )
    return result[0] if isinstance(result, tuple) else result  # before 2.5 with the largest value


def operands(place: Any, dtype: str, size: int) -> Tuple[Any, Any]:
    """Two random square matrices; for fp8 the right one is column-major, as cuBLASLt requires."""
    import torch

    sides = (torch.randn((size, size), device=place.device) for _ in range(2))
    left, right = (side.to(kind_of(dtype)) for side in sides)
    return left, right.t().contiguous().t() if dtype == "fp8" else right
