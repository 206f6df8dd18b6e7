"""Attention with each of torch's backends: forward and gradients against the float64 formula."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from verify.backends.pytorch import BACKEND, Place, find
from verify.backends.pytorch_numbers import kind_of, set_tf32
from verify.checks.numerics.accuracy import AccuracyReading, compare, judge_accuracy, tf32_override
from verify.checks.numerics.precision import Results
from verify.model.check import Check, Context, Outcome, Status

Shape = Tuple[int, int, int, int]  # batch, heads, length, width of a head
# 510 is no multiple of a tile. Nor is an odd length, but there torch 2.1 writes past its buffers
# in bf16 on a CPU (pytorch issue 132871).
_SHAPES: Mapping[str, Tuple[Shape, ...]] = {
    "quick": ((2, 4, 128, 64),),
    "standard": ((2, 4, 128, 64), (1, 4, 510, 64)),
    "full": ((2, 4, 128, 64), (1, 4, 510, 64), (2, 8, 1024, 128)),
}
_DTYPES = ("fp32", "fp16", "bf16")
# Names in torch.nn.attention.SDPBackend, and before 2.3 arguments of sdp_kernel.
_BACKENDS = {
    "flash": ("FLASH_ATTENTION", "enable_flash"),
    "efficient": ("EFFICIENT_ATTENTION", "enable_mem_efficient"),
    "cudnn": ("CUDNN_ATTENTION", None),
    "math": ("MATH", "enable_math"),
}
# Messages of torch and cuDNN if a backend has no kernel: pytorch issues 140930, 138340.
_NO_KERNEL = re.compile(
    r"No available kernel|No viable backend|No execution plans support the graph"
    r"|No valid (execution plans|engine configs)|unable to find an engine|STATUS_NOT_SUPPORTED",
    re.IGNORECASE,
)
# Each pass has three roundings to the dtype one after another: weights, their products, gradients.
_SLACK = 4.0
# With a causal mask the first rows are means of few values, and up to ten times as large as most.
_PEAK = 8.0
_PARTS = ("", ", gradient by query", ", gradient by key", ", gradient by value")


@dataclass(frozen=True)
class ForcedBackend:
    """The only backend that was allowed, and the one that ran."""

    asked: str
    ran: str
    dtype: str


class _Given(NamedTuple):
    query: Any
    key: Any
    value: Any
    back: Any  # the gradient of the result


def check_attention(context: Context) -> Outcome:
    """Force each backend in turn, on the first GPU or the CPU."""
    import torch

    if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        said = "torch {} has no scaled_dot_product_attention"
        return Outcome(Status.SKIP, said.format(torch.__version__), "it came with torch 2.0")
    broken, place = find(context)
    if broken:
        return broken
    set_tf32(on=False)
    found, forced = Results(BACKEND, [], {}), []
    for dtype in _DTYPES:
        if not found.able(dtype, (place,)):
            continue
        for shape in _SHAPES[context.level]:
            for causal in (False, True):
                forced += _try_each(dtype, shape, place, found, causal=causal)
    return judge_attention(found.readings, forced, found.left_out, tf32_override())


def _try_each(
    dtype: str, shape: Shape, place: Place, found: Results, *, causal: bool
) -> List[ForcedBackend]:
    """Every backend on the same inputs."""
    import torch

    generator = torch.Generator().manual_seed(shape[2])
    given = _Given(*(torch.randn(*shape, generator=generator).to(kind_of(dtype)) for _ in range(4)))
    true = _there_and_back(_formula(causal=causal), *(x.double() for x in given))
    here = _Given(*(numbers.to(place.device) for numbers in given))
    forced: List[ForcedBackend] = []
    gpu = place.index if place.is_gpu else None
    what = "as torch chooses, {}, length {}".format("causal" if causal else "full", shape[2])
    mine = AccuracyReading(what, dtype, shape[2], gpu=gpu, slack=_SLACK, peak=_PEAK)
    found.add(lambda: _choose(here, true, mine, causal=causal), mine)
    for backend in _BACKENDS:
        what = "{} {}, length {}".format(backend, "causal" if causal else "full", shape[2])
        one = replace(mine, what=what)
        found.add(lambda: _force(backend, here, true, one, forced, causal=causal), one)  # noqa: B023
    return forced


def _choose(
    given: _Given, true: Sequence[Any], mine: AccuracyReading, *, causal: bool
) -> List[AccuracyReading]:
    """The readings with torch's own choice of backend, as a user gets it by default."""
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    made = _there_and_back(lambda *qkv: attend(*qkv, is_causal=causal), *given)
    return [_read(mine, *row) for row in zip(_PARTS, made, true)]


def _force(
    backend: str,
    given: _Given,
    true: Sequence[Any],
    mine: AccuracyReading,
    forced: List[ForcedBackend],
    *,
    causal: bool,
) -> List[AccuracyReading]:
    """The readings of one backend; empty if it does not support this case."""
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    only = allow_only(backend)
    if only is None:
        return []
    try:
        with only:
            result, *gradients = _there_and_back(
                lambda *qkv: attend(*qkv, is_causal=causal), *given
            )
    except RuntimeError as error:
        if _NO_KERNEL.search(str(error)):
            return []
        raise
    ran = backend_of(result)
    if mine.gpu is None and backend != ran == "math" and not _has_choice(given, causal=causal):
        return []  # torch 2.0 has one backend on a CPU and uses it whatever is allowed
    forced.append(ForcedBackend(backend, ran, mine.dtype))
    return [_read(mine, *row) for row in zip(_PARTS, (result, *gradients), true)]


def _has_choice(given: _Given, *, causal: bool) -> bool:
    """Whether torch chooses another backend than the plain one if all are allowed."""
    import torch

    query, key, value = (x.detach().requires_grad_() for x in given[:3])
    attend = torch.nn.functional.scaled_dot_product_attention
    return backend_of(attend(query, key, value, is_causal=causal)) != "math"


def _read(mine: AccuracyReading, part: str, got: Any, true: Any) -> AccuracyReading:
    error, worst = compare(got.detach().cpu().double(), true.detach())
    return replace(mine, what=mine.what + part, error=error, worst=worst)


def allow_only(backend: str) -> Any:
    """A context in which attention may use only this backend; None if torch does not have it."""
    import torch

    name, argument = _BACKENDS[backend]
    new: Any = getattr(torch.nn, "attention", None)
    if new is not None and hasattr(new, "sdpa_kernel"):
        member = getattr(new.SDPBackend, name, None)
        return None if member is None else new.sdpa_kernel([member])
    if argument is None:
        return None
    allowed = {other: other == argument for _, other in _BACKENDS.values() if other}
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


def _there_and_back(
    attend: Callable[..., Any], query: Any, key: Any, value: Any, back: Any
) -> Tuple[Any, ...]:
    """The result and the gradients with respect to the three inputs."""
    import torch

    inputs = tuple(numbers.detach().requires_grad_() for numbers in (query, key, value))
    result = attend(*inputs)
    return (result, *torch.autograd.grad(result, inputs, back, retain_graph=True))


def _formula(*, causal: bool) -> Callable[[Any, Any, Any], Any]:
    """softmax(query key' / sqrt(width)) value; with a causal mask no row looks ahead."""
    import torch

    def attend(query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        if causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(ahead, -float("inf"))
        return scores.softmax(-1) @ value

    return attend


def judge_attention(
    readings: Sequence[AccuracyReading],
    forced: Sequence[ForcedBackend],
    left_out: Optional[Mapping[str, str]] = None,
    override: Optional[str] = None,
) -> Outcome:
    """Whether rounding explains every reading, and no backend replaced another."""
    if not readings and not left_out:
        left_out = {"every dtype": "no backend has a kernel for it, not even math"}
    outcome = judge_accuracy("attention results", readings, left_out, override)
    ran = list(dict.fromkeys(row.ran for row in forced))
    lacking = [name for name in _BACKENDS if name not in {row.asked for row in forced}]
    measured = {**outcome.measured, "backends": ran}
    outcome = replace(outcome, measured=measured)
    if outcome.status is not Status.PASS:
        return outcome
    swapped = next((row for row in forced if row.asked != row.ran), None)
    if swapped is not None:
        said = "{}: only the {} backend was allowed, but {} ran"
        message = said.format(swapped.dtype, swapped.asked, swapped.ran)
        cause = "torch ignores the choice of a backend"
        fix = "build the image again from its lock; look for packages that patch torch"
        return replace(outcome, status=Status.FAIL, message=message, cause=cause, fix=fix)
    none = "; no kernel here: {}".format(", ".join(lacking)) if lacking else ""
    message = "{} {}{}".format(", ".join(ran), outcome.message, none)
    return replace(outcome, message=message)


CHECKS = (
    Check(
        "numerics.attention",
        "Attention is correct with every backend",
        check_attention,
        "standard",
        180,
    ),
)
