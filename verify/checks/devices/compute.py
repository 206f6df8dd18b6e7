"""Kernels with known answers on each GPU. CUDA may start and yet run no kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Callable, Optional, Sequence, Tuple

from verify.backends.pytorch import Place, find_gpus
from verify.backends.sight import START_WITH_GPUS
from verify.checks.devices.inventory import compiled_architectures
from verify.model.check import NODE, Check, Context, Outcome, Status, gpus
from verify.running.symptoms import explain


@dataclass(frozen=True)
class ComputeAnswer:
    """One GPU's result of one computation with a known answer."""

    device: int
    name: str
    what: str
    wrong: int = 0
    total: int = 0
    error: Optional[str] = None


def check_kernel(context: Context) -> Outcome:
    """Multiply and add up on each GPU."""
    types = ("float32",) if context.level == "quick" else ("float32", "float16", "float64")
    works = [("{} product".format(name), _product(name)) for name in types]
    return _check_answers(context, [("int64 sum", _sum), *works])


def check_cudnn(context: Context) -> Outcome:
    """Convolve on each GPU, which uses cuDNN."""
    return _check_answers(context, [("float32 convolution", _convolution)])


def _check_answers(
    context: Context, works: "Sequence[tuple[str, Callable[[Any], tuple[int, int]]]]"
) -> Outcome:
    absent, places = find_gpus(context)
    if absent:
        return absent
    named = [describe(place) for place in places]  # first: after a failed kernel, queries fail too
    architectures = compiled_architectures()
    answers = [
        _answer(place, name, what, work)
        for place, (name, _) in zip(places, named)
        for what, work in works
    ]
    return judge_answers(answers, [capability for _, capability in named], architectures)


def describe(place: Place) -> Tuple[str, str]:
    """A GPU's name and compute capability."""
    import torch

    capability = "{}.{}".format(*torch.cuda.get_device_capability(place.index))
    return str(torch.cuda.get_device_name(place.index)), capability


def _answer(
    place: Place, name: str, what: str, work: "Callable[[Any], tuple[int, int]]"
) -> ComputeAnswer:
    try:
        wrong, total = work(place.device)
        return ComputeAnswer(place.index, name, what, wrong, total)
    except Exception as error:
        return ComputeAnswer(
            place.index, name, what, error="{}: {}".format(type(error).__name__, error)
        )


def _sum(device: Any) -> Tuple[int, int]:
    """0 + 1 + ...: Gauss's formula gives the answer without a library."""
    import torch

    count = 1 << 20
    return int(torch.arange(count, device=device).sum().item() != count * (count - 1) // 2), 1


def _product(dtype: str) -> "Callable[[Any], tuple[int, int]]":
    """Small integers: partial sums are exact in every type and order, also in TF32."""

    def work(device: Any) -> Tuple[int, int]:
        import torch

        rows, columns = torch.arange(256).unsqueeze(1), torch.arange(256).unsqueeze(0)
        left, right = (rows * 7 + columns * 3) % 5 - 2, (rows * 5 + columns * 11) % 5 - 2
        kind = getattr(torch, dtype)
        result = (left.to(device, kind) @ right.to(device, kind)).cpu().to(torch.int64)
        return int((result != left @ right).sum()), result.numel()

    return work


def _convolution(device: Any) -> Tuple[int, int]:
    """All ones: each element is the number of cells under the window, times the channels.

    Winograd's F(4x4) and FFT, which cuDNN may choose, round in between, so round to integers.
    """
    import torch

    size, channels = 16, 4
    image = torch.ones(1, channels, size, size, device=device)
    window = torch.ones(8, channels, 3, 3, device=device)
    with torch.backends.cudnn.flags(enabled=True):
        result = torch.nn.functional.conv2d(image, window, padding=1).cpu()
    edge = torch.full((size,), 3)
    edge[0] = edge[-1] = 2
    known = (edge.unsqueeze(0) * edge.unsqueeze(1) * channels).to(result.dtype)
    return int((result.round() != known).sum()), result.numel()


def judge_answers(
    answers: Sequence[ComputeAnswer], capabilities: Sequence[str], architectures: Sequence[str]
) -> Outcome:
    """Whether every GPU gave every known answer."""
    rows = [{k: v for k, v in asdict(answer).items() if k != "name"} for answer in answers]
    measured = {"device": "cuda", "answers": rows, "capabilities": list(capabilities)}
    expected = {"wrong": 0}
    for answer in answers:
        where = "GPU {} ({}), {}".format(answer.device, answer.name, answer.what)
        if answer.error:
            cause, fix = _explain_kernel(answer, capabilities, architectures)
            message = "{}: {}".format(where, answer.error.split("\n")[0])
            return Outcome(Status.FAIL, message, cause, fix, measured, expected)
        if answer.wrong or not answer.total:
            message = "{}: {} of {} results wrong".format(where, answer.wrong, answer.total)
            cause = "the GPU, its memory or its clocks: a kernel ran and its result is wrong"
            fix = "look at ECC errors (nvidia-smi -q -d ECC) and Xid lines; take the GPU out of use"
            return Outcome(Status.FAIL, message, cause, fix, measured, expected, NODE)
    if not answers:
        return Outcome(Status.FAIL, "nothing was computed", "no GPU responded", START_WITH_GPUS)
    what = ", ".join(dict.fromkeys(answer.what for answer in answers))
    where = gpus(len({answer.device for answer in answers}))
    message = "correct results on {}: {}".format(where, what)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _explain_kernel(
    answer: ComputeAnswer, capabilities: Sequence[str], architectures: Sequence[str]
) -> Tuple[str, Optional[str]]:
    cause, fix = explain(answer.error or "")
    if "no kernel image" in (answer.error or ""):
        have = " ".join(architectures) or "none"
        cause = "compiled for {}; this GPU is {}".format(have, capabilities[answer.device])
    return cause or "the kernel failed", fix or "look at the host's kernel log for Xid lines"


CHECKS = (
    Check(
        "devices.kernel",
        "Kernels compute correctly",
        check_kernel,
        limit_s=120,
        gpu=True,
        shares=True,
    ),
    Check(
        "devices.convolution",
        "cuDNN convolves",
        check_cudnn,
        limit_s=120,
        gpu=True,
        shares=True,
    ),
)
