"""torch.compile, FlexAttention and a custom Triton kernel: compiled code must run, and be right.

torch.compile falls back to plain Python in many ways and hardly reports it. So this counts the
graphs that it passes to the compiler, the calls of the compiled code, and the generated kernels.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from verify.backends.each_gpu import on_each
from verify.backends.pytorch import Place
from verify.checks.libraries.compiler import ADD
from verify.checks.numerics import attention
from verify.checks.numerics.accuracy import AccuracyReading, compare, judge_accuracy, tf32_override
from verify.checks.numerics.xla import check_xla
from verify.model.check import Check, Context, Outcome, Status, on_device
from verify.running.children import scratch
from verify.running.symptoms import explain, last_words

CALLS = 2
_ROWS, _COLUMNS = 257, 1023  # not a multiple of any tile
_SLACK = 8.0  # tanh, sin and exp each lose two or three roundings
_TRITON_SINCE = (7, 0)
_TURNED_OFF = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
_TOO_NEW = re.compile(
    r"Python 3\.\d+\+?.*not (yet )?supported|not supported on Python", re.IGNORECASE
)
_AGAIN = "build the image again from its lock: torch and triton must be of one release"
_KERNELS = '''"""Written by verify: triton.jit reads a kernel's source from its file."""

import triton
import triton.language as tl


@triton.jit
def add(left, right, result, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    sums = tl.load(left + at, mask=inside) * 3 + tl.load(right + at, mask=inside)
    tl.store(result + at, sums, mask=inside)


@triton.jit
def multiply(left, right, result, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    at = row * SIZE + column
    tl.store(result + at, tl.dot(tl.load(left + at), tl.load(right + at)))
'''


@dataclass(frozen=True)
class CompiledRun:
    """One compiler's result. For a kernel that is called directly the counts are None."""

    by: str  # "inductor", "Triton"
    readings: Tuple[AccuracyReading, ...]
    graphs: Optional[int] = None  # passed to the compiler
    calls: Optional[int] = None  # of the compiled code; CALLS are expected
    kernels: Optional[int] = None  # generated
    seconds: float = 0.0  # compiling and the first call
    turned_off: Tuple[str, ...] = field(default_factory=tuple)  # variables that turn it off


def check_compile(context: Context) -> Outcome:
    """Compile a small training step with inductor, and on a GPU a custom kernel with Triton and, at
    level full, FlexAttention; or a function with XLA, which TensorFlow and JAX have.
    """
    if context.framework != "pytorch":
        return check_xla(context)
    import torch

    if not hasattr(torch, "compile"):
        said = "torch {} has no torch.compile: it came with 2.0"
        return Outcome(Status.SKIP, said.format(torch.__version__), "an older torch")
    folder = scratch()
    try:
        return on_each(
            context,
            lambda context, place: (
                why_not(place, folder) or _compile(place, folder, flex=context.level == "full")
            ),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def why_not(place: Place, folder: str) -> Optional[Outcome]:
    """A skip if something that compiling needs is missing."""
    said = "torch.compile cannot work here: {}"
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        what = "no directory for programs: {} is mounted noexec".format(os.path.dirname(folder))
        return Outcome(Status.SKIP, said.format(what), what, "mount a tmpfs with exec on /tmp")
    compilers = (
        (os.environ.get("CC"), "gcc", "clang") if place.is_gpu else (os.environ.get("CXX"), "g++")
    )
    if not any(name and shutil.which(name) for name in compilers):
        what = "no {} compiler".format("C" if place.is_gpu else "C++")
        return Outcome(Status.SKIP, said.format(what), what, ADD)
    if place.is_gpu and importlib.util.find_spec("triton") is None:
        what = "triton is not installed"
        return Outcome(Status.SKIP, said.format(what), what, "install the triton of this torch")
    if place.is_gpu and (place.capability or (0, 0)) < _TRITON_SINCE:
        what = "Triton needs compute capability 7.0"
        return Outcome(Status.SKIP, said.format(what), what, "run eager code on this GPU")
    return None


def _compile(place: Place, folder: str, *, flex: bool) -> Outcome:
    """Compile with every file in the folder: a home may be read-only or have older kernels."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        os.environ[name] = folder
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool of processes takes longer to start
    tempfile.tempdir = folder
    with place.scope():  # Triton's kernels start on the current device
        found = [_attempt("inductor", place, _inductor)]
        if found[0] and place.is_gpu:
            found.append(_attempt("Triton", place, lambda place: _triton(place, folder)))
        if found[0] and flex and place.has("bf16") and _has_flex_attention():
            found.append(_attempt("FlexAttention", place, _flex))
    if found[0] is None:
        import torch

        said = "torch {} has no torch.compile for this Python".format(torch.__version__)
        return Outcome(Status.SKIP, said, "it came with a later torch", "choose a newer torch")
    finished = [one for one in found if one is not None]
    return judge_compiled(finished, place.kind, tf32_override())


def _attempt(by: str, place: Place, work: Callable[[Place], CompiledRun]) -> Optional[CompiledRun]:
    """Run one compiler; None if this Python is too new for this torch."""
    started = time.monotonic()
    try:
        made = work(place)
    except Exception as error:
        text = "{}: {}".format(type(error).__name__, error)
        if _TOO_NEW.search(text):
            return None
        reading = AccuracyReading(by, "fp32", 1, gpu=_gpu(place), raised=text)
        made = CompiledRun(by, (reading,), turned_off=_turned_off())
    return replace(made, seconds=round(time.monotonic() - started, 3))


def _gpu(place: Place) -> Optional[int]:
    return place.index if place.is_gpu else None


def _turned_off() -> Tuple[str, ...]:
    return tuple(name for name in _TURNED_OFF if os.environ.get(name, "0") not in ("", "0"))


class _Count(NamedTuple):
    """What went through a backend of torch.compile: one entry per graph or call."""

    graphs: List[int]
    calls: List[int]


def _counted_inductor(count: _Count) -> Callable[..., Any]:
    """inductor with counters; torch's messages use the function's name."""

    def inductor(graph: Any, inputs: Any) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        count.graphs.append(len(graph.graph.nodes))
        made = compile_fx(graph, inputs)

        def run(*given: Any) -> Any:
            count.calls.append(len(given))
            return made(*given)

        return run

    return inductor


def _inductor(place: Place) -> CompiledRun:
    """Compare the compiled function's result and gradient with float64."""
    import torch

    generator = torch.Generator().manual_seed(5)
    shape = _ROWS, _COLUMNS
    given = [torch.randn(*shape, generator=generator) for _ in range(2)]
    true = _there_and_back(_function, *(numbers.double() for numbers in given))
    count = _Count([], [])
    _prepare()
    compiled = torch.compile(_function, backend=_counted_inductor(count), fullgraph=True)
    here = [place.put(numbers, "fp32") for numbers in given]
    found = [_there_and_back(compiled, *here) for _ in range(CALLS)][-1]
    readings = tuple(
        _read(what, one, other, place)
        for what, one, other in zip(("result", "gradient"), found, true)
    )
    counts = len(count.graphs), len(count.calls), _kernels()
    return CompiledRun("inductor", readings, *counts, turned_off=_turned_off())


def _prepare() -> None:
    """Configure torch: raise errors, use no caches, and do not precompile the C++ headers."""
    from torch import _dynamo
    from torch._inductor import config, metrics

    _dynamo.reset()
    _dynamo.config.suppress_errors = False
    if hasattr(config, "cpp_cache_precompile_headers"):
        config.cpp_cache_precompile_headers = False  # costs more than it saves here
    metrics.reset()


def _kernels() -> Optional[int]:
    from torch._inductor import metrics

    count = getattr(metrics, "generated_kernel_count", None)
    return None if count is None else int(count)


def _function(left: Any, right: Any) -> Any:
    """Elementwise work and a reduction, which inductor fuses into generated kernels."""
    return ((left.tanh() * right + right.sin()).softmax(-1) * right).sum(-1)


def _there_and_back(work: Callable[..., Any], *given: Any) -> Tuple[Any, Any]:
    """The result, and the gradient with respect to the first argument."""
    import torch

    left = given[0].detach().requires_grad_()
    result = work(left, *given[1:])
    return result.detach(), torch.autograd.grad(result.sum(), left)[0]


def _read(what: str, found: Any, true: Any, place: Place) -> AccuracyReading:
    error, worst = compare(found.cpu().double(), true)
    return AccuracyReading(what, "fp32", _COLUMNS, error, worst, _gpu(place), _SLACK, peak=8.0)


def _triton(place: Place, folder: str) -> CompiledRun:
    """Run a kernel on small integers: results are exact, and memory past the end is unchanged."""
    import torch

    kernels = _load(folder)
    left, right = torch.arange(_COLUMNS) % 17, torch.arange(_COLUMNS) % 13
    result = torch.full((2048,), -1.0, device=place.device)
    kernels.add[(2,)](_floats(left, place), _floats(right, place), result, _COLUMNS, BLOCK=1024)
    sums = torch.full((2048,), -1, dtype=torch.int64)
    sums[:_COLUMNS] = left * 3 + right
    square = (torch.arange(32 * 32) % 7 - 3).reshape(32, 32)
    product = torch.zeros(32, 32, device=place.device)
    halves = _floats(square, place).half()
    kernels.multiply[(1,)](halves, halves, product, SIZE=32)
    readings = (
        _read("masked sum", result, sums.double(), place),
        _read("product of tiles", product, square.double() @ square.double(), place),
    )
    return CompiledRun("Triton", readings)


def _has_flex_attention() -> bool:
    """It came with torch 2.5."""
    import torch

    name = "torch.nn.attention.flex_attention"
    return hasattr(torch.nn, "attention") and importlib.util.find_spec(name) is not None


def _flex(place: Place) -> CompiledRun:
    """Causal attention by a function of the score, with its gradients, against the formula."""
    import torch
    from torch.nn.attention import flex_attention as module

    shape, host = (1, 2, 256, 64), place.backend.place("cpu")
    drawn = place.backend.draw(5, *[shape] * 4)
    given = [host.get(host.put(numbers, "bf16")) for numbers in drawn]
    *inputs, back = (place.put(numbers, "bf16") for numbers in given)
    inputs = [numbers.detach().requires_grad_() for numbers in inputs]
    compiled = torch.compile(module.flex_attention, fullgraph=True)
    result = compiled(*inputs, score_mod=_causal)
    found = (result, *torch.autograd.grad(result, inputs, back))
    mine = AccuracyReading(
        "causal", "bf16", shape[2], gpu=_gpu(place), slack=attention.SLACK, peak=attention.PEAK
    )
    return CompiledRun(
        "FlexAttention",
        tuple(
            attention.read(mine, part, place.get(got), true)
            for part, got, true in zip(
                attention.PARTS, found, attention.formula(place.backend, given, causal=True)
            )
        ),
    )


def _causal(score: Any, _batch: Any, _head: Any, query: Any, key: Any) -> Any:
    import torch

    return torch.where(query >= key, score, -float("inf"))


def _floats(numbers: Any, place: Place) -> Any:
    return numbers.float().to(place.device)


def _load(folder: str) -> Any:
    path = os.path.join(folder, "verify_kernels.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_KERNELS)
    spec = importlib.util.spec_from_file_location("verify_kernels", path)
    if spec is None or spec.loader is None:
        raise ImportError("cannot load " + path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judge_compiled(
    found: Sequence[CompiledRun], device: str, override: Optional[str] = None
) -> Outcome:
    """Whether everything was compiled, compiled code ran, and rounding explains the results."""
    readings = [reading for one in found for reading in one.readings]
    outcome = judge_accuracy("compiled results", readings, override=override)
    counts = [
        {
            "by": one.by,
            "graphs": one.graphs,
            "calls": one.calls,
            "kernels": one.kernels,
            "seconds": one.seconds,
        }
        for one in found
    ]
    measured = {**outcome.measured, "device": device, "compilers": counts}
    expected = {"calls": CALLS}
    # a compiler that generates wrong code is as likely as a GPU that computes wrong results
    expected = {**outcome.expected, **expected}
    outcome = replace(outcome, measured=measured, expected=expected, at_fault=None)
    for one in found:
        fault = _fallen_back(one) or _broken(one)
        if fault:
            message, cause, fix = fault
            return replace(outcome, status=Status.FAIL, message=message, cause=cause, fix=fix)
    if outcome.status is not Status.PASS:
        return outcome
    return replace(outcome, message=_say(found, device))


def _fallen_back(one: CompiledRun) -> "Optional[Tuple[str, str, str]]":
    """Message, cause and fix if the function ran uncompiled."""
    if any(reading.raised for reading in one.readings):
        return None
    cause = "torch falls back to plain Python when it cannot trace or compile a function"
    fix = _AGAIN
    if one.turned_off:
        cause, fix = "{} is set".format(one.turned_off[0]), "unset " + one.turned_off[0]
    if one.graphs == 0:
        return "nothing was compiled: {} received no graph".format(one.by), cause, fix
    if one.calls is not None and one.calls < CALLS:
        said = "the compiled code ran {} of {} times"
        return said.format(one.calls, CALLS), cause, fix
    if one.kernels == 0:
        return "{} generated no kernel".format(one.by), cause, fix
    return None


def _broken(one: CompiledRun) -> "Optional[Tuple[str, str, str]]":
    raised = next((reading.raised for reading in one.readings if reading.raised), None)
    if raised is None:
        return None
    cause, fix = explain(raised)
    message = "{} could not compile: {}".format(one.by, last_words(raised))
    kind = raised.partition(":")[0]
    return message, cause or "{} in the compiler or in what it calls".format(kind), fix or _AGAIN


def _say(found: Sequence[CompiledRun], device: str) -> str:
    parts = ["{} in {:.0f} s".format(one.by, one.seconds) for one in found]
    return "compiled with {}; results differ from float64 only by rounding, {}".format(
        " and ".join(parts), on_device(device)
    )


CHECKS = (Check("numerics.compile", "Compiled code is correct", check_compile, "standard", 240),)
