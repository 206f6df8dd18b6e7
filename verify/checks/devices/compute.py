"""Kernels with known answers on each GPU. CUDA may start and yet run no kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Callable, Optional, Sequence, Tuple

from verify.backends.base import NAMES, ConvolutionCase, of
from verify.backends.sight import START_WITH_GPUS
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


Work = Callable[[Any], Tuple[int, int]]  # how many answers are wrong, and of how many


def check_kernel(context: Context) -> Outcome:
    """Multiply and add up on each GPU."""
    dtypes = ("fp32",) if context.level == "quick" else ("fp32", "fp16", "fp64")
    works = [("{} product".format(NAMES[dtype]), product(dtype)) for dtype in dtypes]
    return _check_answers(context, [("sum", _sum), *works])


def check_convolution(context: Context) -> Outcome:
    """Convolve on each GPU, which uses cuDNN."""
    return _check_answers(context, [("float32 convolution", _convolution)])


def _check_answers(context: Context, works: "Sequence[Tuple[str, Work]]") -> Outcome:
    backend = of(context)
    absent, places = backend.find_gpus(context)
    if absent:
        return absent
    # First: after a failed kernel, queries fail too.
    named = [(place.card, "{}.{}".format(*(place.capability or (0, 0)))) for place in places]
    architectures = backend.architectures() or ["what XLA compiles for this very GPU"]
    answers = [
        _answer(place, name, what, work)
        for place, (name, _) in zip(places, named)
        for what, work in works
    ]
    return judge_answers(answers, [capability for _, capability in named], architectures)


def _answer(place: Any, name: str, what: str, work: Work) -> ComputeAnswer:
    try:
        wrong, total = work(place)
    except Exception as error:
        said = "{}: {}".format(type(error).__name__, error)
        return ComputeAnswer(place.index, name, what, error=said)
    return ComputeAnswer(place.index, name, what, wrong, total)


def _sum(place: Any) -> Tuple[int, int]:
    """0 + 1 + ...: Gauss's formula gives the answer without a library."""
    count = 1 << 20
    return int(place.count_up(count) != count * (count - 1) // 2), 1


def product(dtype: str) -> Work:
    """Small integers: sums are exact in every type and order, also in TF32. They repeat each
    fifth row and column, so that the answers need no library.
    """
    side = range(256)
    left = [[(7 * i + 3 * j) % 5 - 2.0 for j in side] for i in side]
    right = [[(5 * i + 11 * j) % 5 - 2.0 for j in side] for i in side]
    few = [[sum(left[i][k] * right[k][j] for k in side) for j in range(5)] for i in range(5)]
    known = [[few[i % 5][j % 5] for j in side] for i in side]

    def work(place: Any) -> Tuple[int, int]:
        sides = [place.put(place.backend.host(one), dtype) for one in (left, right)]
        got = place.get(place.multiply(*sides, dtype))
        return int((got != place.backend.host(known)).sum()), 256 * 256

    return work


def _convolution(place: Any) -> Tuple[int, int]:
    """All ones: each element is the number of cells under the window, times the channels.

    Winograd's F(4x4) and FFT, which cuDNN may choose, round in between, so round to integers.
    """
    size, channels, filters = 16, 4, 8
    case = ConvolutionCase("3x3", (1, size, size, channels), filters, 3, padding=1)
    drawn = place.backend.draw(0, case.image, case.weight, case.result)
    ones = [numbers * 0 + 1 for numbers in drawn]
    result = place.convolve(case, ones, "fp32", place.backend.layouts[0])[0]
    edge = [2.0, *[3.0] * (size - 2), 2.0]
    known = place.backend.host([[[a * b * channels] * filters for b in edge] for a in edge])
    return int((result[0].round() != known).sum()), size * size * filters


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
        check_convolution,
        limit_s=120,
        gpu=True,
        shares=True,
    ),
)
