"""PyTorch's number formats and what fp8 needs; convolutions and attention, with gradients."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Optional, Sequence, Tuple

from verify.backends.base import NAMES, ConvolutionCase
from verify.running.symptoms import kind

# Names in torch.nn.attention.SDPBackend, and before 2.3 arguments of sdp_kernel.
ATTENTION = {
    "flash": ("FLASH_ATTENTION", "enable_flash"),
    "efficient": ("EFFICIENT_ATTENTION", "enable_mem_efficient"),
    "cudnn": ("CUDNN_ATTENTION", None),
    "math": ("MATH", "enable_math"),
}


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


def convolve(
    place: Any, case: ConvolutionCase, given: Sequence[Any], dtype: str, layout: str
) -> Sequence[Any]:
    """As `Place.convolve`."""
    import torch

    set_tf32(on=dtype == "tf32")
    form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    forms = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    here = [
        place.put(numbers.permute(order), dtype).contiguous(memory_format=form)
        for numbers, order in zip(given, forms)
    ]
    image, weight = (numbers.detach().requires_grad_() for numbers in here[:2])
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=dtype == "tf32"):
        result = torch.nn.functional.conv2d(
            image, weight, stride=case.stride, padding=case.padding, groups=case.groups
        )
        by_image, by_weight = torch.autograd.grad(result, (image, weight), here[2])
    back = ((0, 2, 3, 1), (0, 2, 3, 1), (2, 3, 1, 0))
    results = (result, by_image, by_weight)
    return [place.get(found).permute(order) for found, order in zip(results, back)]


def no_attention() -> Optional[str]:
    """Why this release has no attention of its own, if so: it came with torch 2.0."""
    import torch

    if hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        return None
    return "torch {} has no scaled_dot_product_attention".format(torch.__version__)


def attend(
    place: Any, given: Sequence[Any], dtype: str, way: str, *, causal: bool
) -> Optional[Tuple[str, Sequence[Any]]]:
    """As `Place.attend`."""
    import torch

    only = allow_only(way) if way else contextlib.nullcontext()
    if only is None:
        return None
    *inputs, back = (place.put(numbers, dtype) for numbers in given)
    inputs = [numbers.detach().requires_grad_() for numbers in inputs]
    compute = torch.nn.functional.scaled_dot_product_attention
    try:
        with only:
            result = compute(*inputs, is_causal=causal)
            gradients = torch.autograd.grad(result, inputs, back, retain_graph=True)
    except RuntimeError as error:
        if way and kind(str(error)) == "kernel":
            return None
        raise
    ran = backend_of(result)
    if way and not place.is_gpu and way != ran == "math":
        chosen = backend_of(compute(*inputs, is_causal=causal))
        if chosen == "math":  # torch 2.0 has one backend on a CPU and uses it whatever is allowed
            return None
    return ran, [place.get(one) for one in (result, *gradients)]


def allow_only(backend: str) -> Any:
    """A context in which attention may use only this backend; None if torch does not have it."""
    import torch

    name, argument = ATTENTION[backend]
    new: Any = getattr(torch.nn, "attention", None)
    if new is not None and hasattr(new, "sdpa_kernel"):
        member = getattr(new.SDPBackend, name, None)
        return None if member is None else new.sdpa_kernel([member])
    if argument is None:
        return None
    allowed = {other: other == argument for _, other in ATTENTION.values() if other}
    return torch.backends.cuda.sdp_kernel(**allowed)


def backend_of(result: Any) -> str:
    """The backend that computed a result, as autograd recorded it."""
    left, seen = [result.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        match = re.match(r"ScaledDotProduct(Flash|Efficient|Cudnn)Attention", node.name())
        if match:
            return match.group(1).lower()
        left += [parent for parent, _ in node.next_functions]
    return "math"  # it consists of many small operations


def checksum(_: Any, values: Any) -> Any:
    """The sum of an array's bits, as integers: equal for equal bits."""
    import torch

    kind = torch.int16 if values.element_size() == 2 else torch.int32
    return values.view(kind).sum(dtype=torch.int64)
