"""Numerics: what rounding explains, and what the judges say of everything else."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.kit.reports import CHECK
from tests.unit.verify.checks.test_judges import FAIL, PASS, SKIP, holds
from verify.backends import pytorch, tensorflow
from verify.backends.base import ConvolutionCase
from verify.backends.pytorch import Place
from verify.backends.pytorch_formats import FORMATS, is_absent
from verify.backends.pytorch_numbers import sums_in_bf16
from verify.checks.numerics import compiled as compiling
from verify.checks.numerics.accuracy import (
    ROUNDINGS,
    AccuracyReading,
    compare,
    judge_accuracy,
    judge_convolution,
    judge_products,
    tolerance,
)
from verify.checks.numerics.attention import ForcedBackend, judge_attention
from verify.checks.numerics.compiled import CALLS, CompiledRun, judge_compiled
from verify.checks.numerics.convolution import sums_of
from verify.checks.numerics.graphs import judge_graphs
from verify.checks.numerics.precision import Results
from verify.checks.numerics.repeats import Repeat, ResumedRun, judge_checkpoint, judge_repeats
from verify.model.check import Outcome, Status
from verify.running.symptoms import kind


class Numbers:
    """As much of an array of one dimension as `compare` and `Repeat.of` ask for."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = [float(value) for value in values]
        self.shape = (len(self.values),)

    def _with(self, other: Numbers | float, work: Callable[[float, float], float]) -> Numbers:
        right = other.values if isinstance(other, Numbers) else [other] * len(self.values)
        return Numbers([work(a, b) for a, b in zip(self.values, right, strict=True)])

    def __add__(self, other: Numbers | float) -> Numbers:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Numbers | float) -> Numbers:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Numbers | float) -> Numbers:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Numbers | float) -> Numbers:
        return self._with(other, lambda a, b: a / b)

    def __ne__(self, other: Numbers) -> Numbers:  # type: ignore[override]
        return self._with(other, lambda a, b: float(a != b))

    def __eq__(self, other: Numbers) -> Numbers:  # type: ignore[override]
        return self._with(other, lambda a, b: float(a == b))

    __hash__ = None  # type: ignore[assignment]

    def __abs__(self) -> Numbers:
        return Numbers([abs(value) for value in self.values])

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def reshape(self, _: int) -> Numbers:
        return self

    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def sum(self) -> float:
        return math.fsum(self.values)

    def max(self) -> float:
        """NaN where there is one, as torch and NumPy have it."""
        return math.nan if any(map(math.isnan, self.values)) else max(self.values)


def reading(dtype: str = "fp32", error: float = 1e-7, **more: object) -> AccuracyReading:
    plain = AccuracyReading("512x1024x512", dtype, 1024, error, error)
    return replace(plain, **more)  # type: ignore[arg-type]


def sound(outcome: Outcome) -> None:
    """The numbers go into the report: JSON without NaN, in the shapes of its schema."""
    text = json.dumps(outcome.as_dict(), allow_nan=False)
    CHECK.validate({"id": "numerics.matmul", "title": "t", "seconds": 0, **json.loads(text)})


def test_distances_by_the_norm_and_by_the_worst_element() -> None:
    reference = Numbers([3, -4, 0, 0])
    assert compare(reference, reference) == (0.0, 0.0)
    error, worst = compare(Numbers([3, -4, 0, 1]), reference)
    assert error == pytest.approx(1 / 5)
    assert worst == pytest.approx(1 / 2.5)


def test_what_has_another_shape_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="is not"):
        compare(Numbers([1]), Numbers([1, 2]))


def test_a_reference_of_zeros_is_no_division_by_zero() -> None:
    assert compare(Numbers([0, 0]), Numbers([0, 0])) == (0.0, 0.0)
    assert compare(Numbers([0, 1]), Numbers([0, 0]))[1] == 1.0


@pytest.mark.parametrize(
    ("version", "usage", "expected"),
    [
        ("2.0.1+cu117", "AVX2", True),
        ("1.13.1", "NO AVX", True),
        ("2.0.1+cu117", "AVX512", False),
        ("2.1.0", "AVX2", False),
        ("2.14.1+cu130", "AVX2", False),
    ],
)
def test_an_old_torch_sums_bf16_in_bf16_without_avx512(
    version: str, usage: str, *, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = f"  - LAPACK is enabled\n  - CPU capability usage: {usage}\n  - Build settings: ..."
    assert sums_in_bf16(version, config) is expected
    torch = SimpleNamespace(
        __version__=version, __config__=SimpleNamespace(show=lambda: config), bfloat16=object()
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    reason = Place("cpu").lacks("bf16")
    assert (reason is not None) is expected
    assert reason is None or "sums it in bf16 on a CPU without AVX-512" in reason


@cases(
    "processors expected",
    ("x86 without AVX-512", "model name\t: x\nflags\t\t: fpu avx2\n", True),
    ("AVX-512", "flags\t\t: fpu avx2 avx512f\n", False),
    ("AVX-NE-CONVERT", "flags\t\t: avx2 avx_ne_convert\n", False),
    ("Arm", "Features\t: fp asimd\n", False),
    ("unknown", "", False),
)
def test_tensorflow_sums_bf16_in_bf16_without_avx512(processors: str, *, expected: bool) -> None:
    assert tensorflow.sums_in_bf16(processors) is expected


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.data(),
)
def test_one_number_that_is_none_is_never_within_rounding(
    values: list[float], strange: float, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(values) - 1))
    spoilt = [*values[:at], strange, *values[at + 1 :]]
    error, worst = compare(Numbers(spoilt), Numbers(values))
    outcome = judge_products([reading(error=error, worst=worst)])
    holds(outcome, FAIL, "NaN or infinity")
    sound(outcome)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.sampled_from(sorted(ROUNDINGS)))
def test_longer_sums_may_be_further_off(one: int, other: int, dtype: str) -> None:
    short, long = sorted((one, other))
    assert 0 < tolerance(dtype, short) <= tolerance(dtype, long)


@pytest.mark.parametrize("terms", [7, 1024, 4096])
def test_dtypes_are_told_apart(terms: int) -> None:
    """What one dtype may be off is far below what the next coarser one is off."""
    assert tolerance("fp64", terms) < 1e-6 * tolerance("fp32", terms)
    assert 10 * tolerance("fp32", terms) < 2.9e-4  # the measured error by TF32
    assert tolerance("tf32", terms) < 2.3e-3  # by bf16
    assert tolerance("fp16", terms) < 4.6e-3  # with sums in fp16


@pytest.mark.parametrize(
    ("dtype", "machine", "is_gpu", "error", "worst", "status"),
    [
        # As PyTorch 2.14.1 for aarch64 gave them under qemu-user, and as a sum in fp16 gives them.
        pytest.param("fp16", "aarch64", False, 0.002468, 0.01058, PASS, id="Arm sums fp16 in fp16"),
        pytest.param("fp16", "x86_64", False, 0.002468, 0.01058, FAIL, id="other CPUs do not"),
        pytest.param("fp16", "aarch64", True, 0.002468, 0.01058, FAIL, id="nor do GPUs"),
        pytest.param("fp16", "aarch64", False, 0.02, 0.05, FAIL, id="more is wrong on Arm, too"),
        pytest.param("fp16", "aarch64", False, 0.0026, 0.5, FAIL, id="so is one wrong element"),
        pytest.param("bf16", "aarch64", False, 0.00166, 0.00284, PASS, id="bf16 is summed in fp32"),
        pytest.param("fp32", "aarch64", False, 2.9e-4, 1e-3, FAIL, id="no fp32 by TF32"),
    ],
)
def test_convolutions_on_an_arm_processor(
    dtype: str, machine: str, error: float, worst: float, status: Status, *, is_gpu: bool
) -> None:
    sums = sums_of(dtype, machine, is_gpu=is_gpu)
    slack = 4.0 if sums is None else 1.0
    row = AccuracyReading("3x3, contiguous", dtype, 288, error, worst, slack=slack, sums=sums)
    assert judge_convolution([row]).status is status


OTHER_ERRORS = [
    pytest.param(reading("fp32", 2.9e-4, gpu=1), "GPU 1, fp32", id="the GPU is named"),
    pytest.param(reading("fp32", 2.9e-4, gpu=0), "as large as TF32's", id="TF32 on a GPU"),
    pytest.param(reading("fp32", 2.9e-4), "fewer bits", id="few bits on a CPU"),
    pytest.param(reading("fp32", 2.3e-3), "rounded to bf16", id="bf16 in place of fp32"),
    pytest.param(reading("fp16", 4.7e-3), "sums were kept in fp16", id="sums in fp16"),
    pytest.param(reading("bf16", 3e-2), "sums were kept in bf16", id="sums in bf16"),
    pytest.param(reading("fp16", 0.9), "result is wrong", id="nothing like it"),
    pytest.param(reading("fp64", 1e-7), "result is wrong", id="fp32 in place of fp64"),
    pytest.param(reading(worst=0.5), "single elements", id="one element of many"),
    pytest.param(reading(error=math.nan), "NaN or infinity", id="not a number"),
    pytest.param(
        reading(raised="RuntimeError: CUDA error: no kernel image is available"),
        "other GPU architectures",
        id="a known error is explained",
    ),
    pytest.param(reading(raised="RuntimeError: odd\nmore"), "odd", id="an unknown error is told"),
]


@pytest.mark.parametrize(("wrong", "word"), OTHER_ERRORS)
def test_what_rounding_does_not_explain(wrong: AccuracyReading, word: str) -> None:
    for outcome in (judge_products([reading(), wrong]), judge_convolution([wrong, reading()])):
        holds(outcome, FAIL, word)
        assert "\n" not in outcome.message
        sound(outcome)


@pytest.mark.parametrize(
    ("gpu", "slack", "override", "error", "cause"),
    [
        # The first two: an H200 under NVIDIA_TF32_OVERRIDE=1, a product and a gradient by weight.
        pytest.param(0, 1.0, "1", 2.9e-4, "NVIDIA_TF32_OVERRIDE is 1", id="forced in products"),
        pytest.param(0, 8.0, "1", 3.25e-3, "NVIDIA_TF32_OVERRIDE is 1", id="in convolutions"),
        pytest.param(0, 8.0, None, 3.25e-3, "TF32 or bf16", id="a fast convolution hides which"),
        pytest.param(0, 8.0, "0", 3.25e-3, "TF32 or bf16", id="a variable that forbids it"),
        pytest.param(0, 1.0, "1", 2.3e-3, "rounded to bf16", id="more than TF32's error"),
        pytest.param(0, 8.0, "1", 0.4, "result is wrong", id="a wrong result is no rounding"),
        pytest.param(None, 1.0, "1", 2.9e-4, "fewer bits", id="a CPU has no TF32"),
    ],
)
def test_a_variable_that_forces_tf32(
    gpu: int | None, slack: float, override: str | None, error: float, cause: str
) -> None:
    row = replace(reading(error=error, gpu=gpu), slack=slack)
    for outcome in (
        judge_convolution([row], override=override),
        judge_products([row], override=override),
    ):
        holds(outcome, FAIL, cause)


def test_the_furthest_off_is_told_first() -> None:
    holds(judge_products([reading(error=1e-5), reading("bf16", 0.9)]), FAIL, "bf16 512")


def test_products_that_are_right() -> None:
    rows = [reading(dtype, gpu=i) for dtype in ("fp32", "fp16") for i in range(8)]
    outcome = judge_products(rows, {"fp8": "GPU 0 has compute capability 8.0"})
    holds(outcome, PASS, "correct in fp32, fp16: products")
    assert "on 8 GPUs" in outcome.message
    assert outcome.measured["device"] == "cuda"
    assert len(outcome.measured["tables"][0]["rows"]) == 2
    sound(outcome)


def test_products_on_the_cpu_prove_no_gpu() -> None:
    outcome = judge_products([reading()])
    holds(outcome, PASS, "on the CPU: no GPU visible")
    assert outcome.measured["device"] == "cpu"


def test_nothing_computed_is_no_pass() -> None:
    holds(judge_products([]), FAIL, "no products computed")
    holds(judge_products([], {"fp32": "no kernel"}), FAIL, "fp32: no kernel")


@given(st.lists(st.floats(0, 2), min_size=1, max_size=9), st.randoms())
def test_one_too_far_off_fails_in_any_order(offs: list[float], random: object) -> None:
    rows = [reading(error=off * reading().allowed, worst=0) for off in offs]
    random.shuffle(rows)  # type: ignore[attr-defined]
    wrong = any(row.off > 1 for row in rows)
    assert judge_accuracy("products", rows).status is (FAIL if wrong else PASS)


NO_ROWS = "RuntimeError: Rowwise scaling is not currently supported on your device"
UNSUPPORTED = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul"


@cases(
    "text dtype capability cuda absent",
    ("a Hopper whose build lacks the kernel", NO_ROWS, "fp8 rowwise", (9, 0), "12.8", False),
    ("CUDA 11 has none for Hopper", NO_ROWS, "fp8 rowwise", (9, 0), "11.8", True),
    ("a B200 without block scales", UNSUPPORTED, "mxfp8", (10, 0), "12.8", False),
    ("a GeForce of Blackwell need not have them", UNSUPPORTED, "mxfp8", (12, 0), "12.8", True),
    ("words of a release for other cards", "ValueError: compute capability = [9.0, 10.0]",
     "fp8 grouped", (12, 0), "13.0", True),
    ("a release that names arguments otherwise", "TypeError: _scaled_mm() missing scale", "nvfp4",
     (10, 0), "13.0", True),
    ("code for other GPUs", "RuntimeError: no kernel image is available", "nvfp4", (12, 0), "12.8",
     False),
    ("a GPU that is lost", "RuntimeError: GPU is lost", "int8", (7, 5), "12.8", False),
    ("a CPU without it", "RuntimeError: only per-tensor scaling", "fp8 rowwise", None, None, True),
)  # fmt: skip
def test_a_format_that_a_build_may_do_without(
    text: str, dtype: str, capability: tuple[int, int] | None, cuda: str | None, *, absent: bool
) -> None:
    assert is_absent(text, dtype, capability, cuda) is absent


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_wrong_format_does_not_accuse_the_node(dtype: str) -> None:
    outcome = judge_products([reading(dtype, 0.5, gpu=0)])
    holds(outcome, FAIL, f"a kernel for {dtype} is wrong")
    assert outcome.at_fault == "unknown"


def tf32(error: float, gpu: int = 0, what: str = "512x1024x512") -> AccuracyReading:
    return reading("tf32", error, gpu=gpu, what=what)


@cases(
    "errors cards override status word",
    ("in effect", [2.9e-4], (0,), None, PASS, "TF32 in effect"),
    ("not in effect", [1.1e-7], (0,), None, FAIL, "requested but not used"),
    ("turned off outside", [1.1e-7], (0,), "0", PASS, "NVIDIA_TF32_OVERRIDE"),
    ("a card without TF32", [1.1e-7], (), None, PASS, "correct in"),
    ("one shape is enough", [2.9e-4, 1.1e-7], (0,), None, PASS, "in effect"),
    ("TF32 was not tried", [], (0,), None, PASS, "correct in fp32"),
)
def test_tf32(
    errors: list[float], cards: Sequence[int], override: str | None, status: Status, word: str
) -> None:
    shapes = ["512x1024x512", "509x1021x253"]
    rows = [reading(gpu=0, what=shape) for shape in shapes]
    rows += [tf32(error, what=shape) for error, shape in zip(errors, shapes, strict=False)]
    outcome = judge_products(rows, {}, cards, override)
    holds(outcome, status, word)
    assert ("in effect" in outcome.message) == (2.9e-4 in errors and 0 in cards)


def test_tf32_on_the_second_card_only() -> None:
    rows = [reading(gpu=i) for i in (0, 1)] + [tf32(2.9e-4, 0), tf32(1.1e-7, 1)]
    holds(judge_products(rows, {}, (0, 1)), FAIL, "GPU 1")


@cases(
    "case result terms",
    ("the same size", ConvolutionCase("3x3", (4, 28, 28, 32), 64, 3, padding=1), (4, 28, 28, 64),
     (288, 576, 3136)),
    ("strides and groups",
     ConvolutionCase("5x5", (4, 29, 27, 32), 64, 5, stride=2, padding=2, groups=4), (4, 15, 14, 64),
     (200, 400, 840)),
)  # fmt: skip
def test_shapes_of_convolutions(
    case: ConvolutionCase, result: tuple[int, ...], terms: tuple[int, ...]
) -> None:
    assert case.result == result
    assert case.terms == terms


def attended(what: str = "flash full, length 128", error: float = 1e-7) -> AccuracyReading:
    return AccuracyReading(what, "fp32", 128, error, error)


@cases(
    "readings forced status word",
    ("what has no kernel is told", [attended()], [ForcedBackend("flash", "flash", "fp32")], PASS,
     "no kernel here: efficient"),
    ("another backend ran", [attended()], [ForcedBackend("flash", "math", "fp32")], FAIL,
     "only the flash backend"),
    ("wrong numbers come first", [attended(error=0.4)], [ForcedBackend("flash", "math", "fp32")],
     FAIL, "error 0.4"),
    ("no backend at all", [], [], FAIL, "no backend has a kernel"),
)  # fmt: skip
def test_attention(
    readings: list[AccuracyReading], forced: list[ForcedBackend], status: Status, word: str
) -> None:
    outcome = judge_attention(readings, forced, asked=("flash", "efficient", "math"))
    holds(outcome, status, word)
    sound(outcome)


@cases(
    "error raised status word",
    ("replays that are right", 1e-7, None, PASS, "replays of CUDA graphs"),
    ("replays of old numbers", 1.0, None, FAIL, "when it is replayed"),
    ("a graph that cannot be captured", 0.0, "RuntimeError: stream is capturing", FAIL,
     "choose another build"),
    ("an error with a known cause", 0.0, "RuntimeError: no kernel image is available", FAIL,
     "other GPU architectures"),
)  # fmt: skip
def test_graphs(error: float, raised: str | None, status: Status, word: str) -> None:
    outcome = judge_graphs([reading("fp32", error, gpu=0, raised=raised)])
    holds(outcome, status, word)
    assert outcome.at_fault is None


def compiled(error: float = 1e-7, raised: str | None = None, **more: object) -> CompiledRun:
    row = AccuracyReading("result", "fp32", 1023, error, error, raised=raised)
    made = CompiledRun("inductor", (row,), graphs=1, calls=CALLS, kernels=2, seconds=9.0)
    return replace(made, **more)  # type: ignore[arg-type]


TRITON = CompiledRun("Triton", (AccuracyReading("masked sum", "fp32", 1, 0.0, 0.0, gpu=0),))
COMPILE_ERROR = (
    "BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: CppCompileError: bad"
)


@cases(
    "found status word",
    ("compiled and right", [compiled()], PASS, "with inductor in 9 s"),
    ("both are told", [compiled(), TRITON], PASS, "inductor in 9 s and Triton"),
    ("no graph", [compiled(graphs=0)], FAIL, "received no graph"),
    ("turned off by a variable", [compiled(graphs=0, turned_off=("TORCHDYNAMO_DISABLE",))], FAIL,
     "unset TORCHDYNAMO_DISABLE"),
    ("left aside later", [compiled(calls=1)], FAIL, "ran 1 of 2"),
    ("no kernel", [compiled(kernels=0)], FAIL, "no kernel"),
    ("an old torch does not count kernels", [compiled(kernels=None)], PASS, ""),
    ("other numbers", [compiled(0.1)], FAIL, "error 0.1"),
    ("an error", [compiled(raised=COMPILE_ERROR)], FAIL, "CppCompileError: bad"),
    ("nothing", [], FAIL, "no compiled results"),
)  # fmt: skip
def test_compiled(found: list[CompiledRun], status: Status, word: str) -> None:
    outcome = judge_compiled(found, "cuda")
    holds(outcome, status, word)
    sound(outcome)


class Card(Place):
    """A GPU of any capability, without torch."""

    age: tuple[int, int] = (9, 0)

    @property
    def capability(self) -> tuple[int, int]:
        return self.age


class OldCard(Card):
    age = (6, 1)


@cases(
    "place found modules flags word",
    ("the CPU with a C++ compiler", Place("cpu"), {"g++"}, (), 0, None),
    ("with a C compiler only", Place("cpu"), {"gcc"}, (), 0, "no C++ compiler"),
    ("where nothing may run", Place("cpu"), {"g++"}, (), os.ST_NOEXEC, "noexec"),
    ("a GPU with all it needs", Card("cuda"), {"clang"}, ("triton",), 0, None),
    ("a GPU, no compiler", Card("cuda"), set(), ("triton",), 0, "no C compiler"),
    ("a GPU without Triton", Card("cuda"), {"gcc"}, (), 0, "triton"),
    ("a GPU before Volta", OldCard("cuda"), {"gcc"}, ("triton",), 0, "7.0"),
)
def test_what_compiling_needs(
    place: Place,
    found: set[str],
    modules: Sequence[str],
    flags: int,
    word: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in found else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in modules or None)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    outcome = compiling.why_not(place, str(tmp_path))
    assert (outcome is None) == (word is None)
    if outcome is not None and word is not None:
        holds(outcome, SKIP, word)
        assert outcome.fix


def test_repeats_are_counted() -> None:
    one, other = [Numbers([1, 2]), Numbers([3])], [Numbers([1, 2.5]), Numbers([3])]
    assert Repeat.of(one, one) == Repeat(0, 3)
    assert Repeat.of(one, other) == Repeat(1, 3, 0.5)
    assert not Repeat.of(one, one[:1]).same
    assert not Repeat.of([], []).same
    assert not Repeat.of([Numbers([math.nan])], [Numbers([math.nan])]).same
    assert not Repeat.of([Numbers([math.inf])], [Numbers([math.inf])]).same


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=9))
def test_a_run_is_the_same_as_itself(values: list[float]) -> None:
    assert Repeat.of([Numbers(values)], [Numbers(values)]) == Repeat(0, len(values))


SAME, APART = Repeat(0, 9), Repeat(2, 9, 0.25)
STRANGE = Repeat(2, 9, math.nan, finite=False)


@cases(
    "asked free status word",
    ("the same either way", SAME, SAME, PASS, "without deterministic"),
    ("only when asked for", SAME, APART, PASS, "2 of 9 weights differ"),
    ("the other not tried", SAME, None, PASS, "bit-identical"),
    ("apart though asked for", APART, APART, FAIL, "by up to 0.25"),
    ("not a number", STRANGE, SAME, FAIL, "NaN"),
    ("nothing compared", Repeat(0, 0), None, FAIL, "no weights"),
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_repeats(
    asked: Repeat, free: Repeat | None, status: Status, word: str, device: str
) -> None:
    outcome = judge_repeats(asked, free, device)
    holds(outcome, status, word)
    sound(outcome)


@cases(
    "resumed status word",
    ("the same bits", ResumedRun(SAME, moved=True), PASS, "bit-identical"),
    ("a part is lost", ResumedRun(SAME, moved=True, lost=("optimizer",)), FAIL, "optimizer"),
    ("two parts are lost", ResumedRun(APART, moved=True, lost=("model", "random state")), FAIL,
     "model and random state"),
    ("it ends elsewhere", ResumedRun(APART, moved=True), FAIL, "from a checkpoint differs"),
    ("nothing moved", ResumedRun(SAME, moved=False), FAIL, "did not change any weight"),
    ("not a number", ResumedRun(STRANGE, moved=True), FAIL, "NaN"),
)  # fmt: skip
def test_checkpoint(resumed: ResumedRun, status: Status, word: str) -> None:
    outcome = judge_checkpoint(resumed, "cuda")
    holds(outcome, status, word)
    sound(outcome)


def test_a_framework_with_one_way_of_attention_names_none() -> None:
    outcome = judge_attention([attended()], [])
    assert outcome.message.startswith("correct in fp32: attention results"), outcome


@pytest.mark.parametrize(
    "text",
    [
        "No available kernel. Aborting execution.",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        "cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built.",
        "cuDNN Frontend error: [cudnn_frontend] Error: No valid engine configs for Matmul",
        "GET was unable to find an engine to execute this computation",
        "No viable backend for scaled_dot_product_attention was found.",
    ],
)
def test_a_backend_without_a_kernel_is_no_failure(text: str) -> None:
    assert kind(text) == "kernel"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "The size of tensor a (128) must match the size of tensor b (64)",
    ],
)
def test_another_error_of_a_backend_is_one(text: str) -> None:
    assert kind(text) != "kernel"


def test_fp8_that_cublas_does_not_have_is_left_out() -> None:
    found = Results(pytorch.BACKEND, [], {})

    def work() -> list[AccuracyReading]:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul")

    found.add(work, AccuracyReading("512x1024x512", "fp8", 1024, gpu=0))
    assert (found.readings, list(found.left_out)) == ([], ["fp8"])
    found.add(
        work, AccuracyReading("512x1024x512", "bf16", 1024, gpu=0)
    )  # which every such GPU has
    assert [reading.raised is None for reading in found.readings] == [False]
