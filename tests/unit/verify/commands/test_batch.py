"""The search for a batch size, in worlds that are known, noisy or hostile; the command's page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from verify.backends.pytorch import Place
from verify.checks.memory import batches
from verify.checks.memory.bench import Job, Late, out_of_memory
from verify.commands import batch
from verify.device import limits
from verify.model.check import UsageError
from verify.workloads.batching import (
    BOUNDARY,
    MAXIMUM,
    NOTHING,
    BatchTrial,
    Search,
    predicted_bytes,
    predicted_seconds,
    search,
)

Measure = Callable[[int], BatchTrial]


def fitting(batch_size: int, rate: float = 100.0, peak: int | None = None) -> BatchTrial:
    return BatchTrial(batch_size, fits=True, samples_per_s=rate, steps=3, peak_bytes=peak)


def world(capacity: int) -> Measure:
    """Batches fit up to a capacity, and no further."""
    return lambda n: (
        fitting(n) if n <= capacity else BatchTrial(n, fits=False, reason="out of memory")
    )


def most_trials(maximum: int) -> int:
    return 2 * math.ceil(math.log2(maximum)) + 2 if maximum > 1 else 2


@given(st.integers(1, 5000), st.integers(0, 6000))
def test_the_boundary_is_found_exactly(maximum: int, capacity: int) -> None:
    found = search(world(capacity), maximum)
    largest = found.largest.batch if found.largest else 0
    assert largest == min(capacity, maximum)
    assert found.ended == (
        NOTHING if not capacity else MAXIMUM if capacity >= maximum else BOUNDARY
    )
    assert len(found.trials) <= most_trials(maximum)


@given(st.integers(1, 5000), st.integers(1, 200), st.integers(0, 6000))
def test_the_search_starts_at_the_minimum(maximum: int, minimum: int, capacity: int) -> None:
    found = search(world(capacity), maximum, minimum=minimum)
    asked = [trial.batch for trial in found.trials]
    assert asked[0] == min(minimum, maximum)
    assert min(asked) == asked[0]
    if capacity >= asked[0]:
        assert found.largest
        assert found.largest.batch == min(capacity, maximum)


@given(st.integers(1, 1 << 20), st.randoms(use_true_random=False))
def test_in_a_noisy_world_the_search_ends_and_reports_only_what_it_saw(
    maximum: int, random: Any
) -> None:
    def measure(n: int) -> BatchTrial:
        return fitting(n) if random.random() < 0.6 else BatchTrial(n, fits=False)

    found = search(measure, maximum)
    asked = [trial.batch for trial in found.trials]
    assert len(asked) == len(set(asked)) <= most_trials(maximum)
    assert all(1 <= n <= maximum for n in asked)
    assert (found.largest is None) == (found.ended == NOTHING)
    if found.largest:
        assert found.largest.fits


@given(st.integers(2, 5000), st.integers(1, 6000), st.floats(0.01, 0.5))
def test_a_coarse_search_misses_by_no_more_than_its_resolution(
    maximum: int, capacity: int, resolution: float
) -> None:
    found = search(world(capacity), maximum, resolution=resolution)
    assert found.largest
    best = min(capacity, maximum)
    assert best - found.largest.batch <= max(0.0, resolution * found.largest.batch)


@given(st.integers(1, 1000), st.integers(0, 12))
def test_a_stop_ends_the_search_with_what_it_has(maximum: int, retries: int) -> None:
    def stop(_: int, done: Sequence[BatchTrial]) -> str | None:
        return "the time limit was reached" if len(done) >= retries else None

    found = search(world(10**6), maximum, stop=stop)
    assert len(found.trials) <= retries
    assert found.ended in ("the time limit was reached", MAXIMUM)


def test_the_fastest_is_the_smaller_of_two_that_are_equal() -> None:
    slow, fast, large = fitting(1, 50.0), fitting(2, 90.0), fitting(4, 90.0)
    found = Search((slow, fast, large, BatchTrial(8, fits=False, samples_per_s=999.0)), BOUNDARY)
    assert found.fastest == fast
    assert found.largest == large


@given(
    st.integers(1, 10**9), st.integers(1, 10**8), st.lists(st.integers(1, 500), min_size=2),
    st.integers(501, 5000),
)  # fmt: skip
def test_memory_that_grows_by_a_line_is_predicted(
    base: int, each: int, batches: list[int], wanted: int
) -> None:
    trials = [fitting(n, peak=base + each * n) for n in dict.fromkeys(batches)]
    guess = predicted_bytes(trials, wanted)
    assert guess is not None
    true = base + each * wanted
    assert guess >= true * (1 - 1e-9)  # one point alone is a bound
    if len(trials) > 1:
        assert guess == pytest.approx(true)


def test_nothing_measured_predicts_nothing() -> None:
    trials = [BatchTrial(4, fits=False), fitting(2)]
    assert predicted_bytes(trials, 8) is None
    assert predicted_seconds([], 8, 3) is None
    assert predicted_seconds(trials, 8, 3) == pytest.approx(3 * 8 / 100.0)


@cases(
    "available share refused",
    ("what fits into the share is tried", 10 * 10**9, 0.9, False),
    ("what is above the share is not", 10 * 10**9, 0.5, True),
    ("where the memory is unknown nothing can be refused", None, 0.9, False),
)
def test_a_batch_that_would_not_fit_is_not_tried_on_the_cpu(
    available: int | None,
    share: float,
    refused: bool,  # noqa: FBT001
) -> None:
    trials = [fitting(1, peak=2 * 10**9), fitting(2, peak=3 * 10**9)]
    found = batches.refuse(trials, 8, available, share)  # 9 GB
    assert (found is not None) == refused
    if found:
        assert not found.fits
        assert "would need about 9.0 GB, and 5.0 GB may be used" in (found.reason or "")


@cases(
    "text is_memory",
    ("the allocator", "CUDA out of memory. Tried to allocate 2.00 GiB", True),
    ("the CPU's", "[enforce fail] can't allocate memory: you tried", True),
    ("TensorFlow's", "OOM when allocating tensor with shape[64,64,112,112]", True),
    ("XLA's", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.", True),
    ("the kernel's", "OSError: [Errno 12] Cannot allocate memory", True),
    ("cuBLAS", "CUBLAS_STATUS_ALLOC_FAILED when calling", True),
    ("cuDNN's workspace", "Unable to find a valid cuDNN algorithm to run", True),
    ("a spoilt context", "CUDA error: an illegal memory access was", False),
    ("a wrong model", "mat1 and mat2 shapes cannot be multiplied", False),
)
def test_errors_that_mean_no_memory(text: str, is_memory: bool) -> None:  # noqa: FBT001
    assert out_of_memory(text) is is_memory


@cases(
    "arguments word",
    ("no such model", ["--model", "resnet5000"], "unknown model 'resnet5000'"),
    ("not a module's name", ["--model", "a b:c"], "unknown model"),
    ("a batch of nothing", ["--max", "0"], "'0' is not a number from 1 to"),
    ("no number", ["--max", "many"], "'many' is not a number"),
    ("crossed bounds", ["--min", "9", "--max", "8"], "--min 9 is above --max 8"),
    ("more than all memory", ["--memory-share", "1.5"], "'1.5' is not a number"),
    ("no time", ["--seconds", "nan"], "'nan' is not a number"),
    ("no such option", ["--tpu"], "--tpu"),
)
def test_wrong_options_are_told(arguments: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word.replace(".", r"\.")):
        batch.parse(arguments)


def mode() -> batches.Mode:
    trials = (
        replace(fitting(1, 120.0, 2 * 10**9), utilization_percent=61.0),
        replace(fitting(2, 210.0, 3 * 10**9), utilization_percent=88.0),
        BatchTrial(4, fits=False, reason="OutOfMemoryError: CUDA out of memory"),
        fitting(3, 205.0, 4 * 10**9),
    )
    return batches.Mode("amp-bf16", "NVIDIA A100", Search(trials, BOUNDARY))


def test_the_page_fits_into_80_columns_and_says_what_was_found() -> None:
    page = batch.page([mode()], batch.parse(["--amp"]), Place("cuda"))
    assert max(map(len, page.splitlines())) <= 80
    assert "resnet50, on the GPU (NVIDIA A100)" in page
    assert "largest that fits: 3 (one more does not fit)" in page
    assert "fastest: 2, 210 samples/s" in page
    numbers = [int(line.split()[0]) for line in page.splitlines() if line[:7].strip().isdigit()]
    assert numbers == [1, 2, 3, 4]


def test_a_search_where_nothing_fits_has_a_page_and_a_document() -> None:
    search_ = Search((BatchTrial(1, fits=False, reason="out of memory"),), NOTHING)
    modes, options = [batches.Mode("fp32", None, search_)], batch.parse([])
    assert "none fits: not even the smallest batch" in batch.page(modes, options, Place("cpu"))
    found = json.loads(json.dumps(batch.document(modes, options, Place("cpu")), allow_nan=False))
    assert found["modes"][0]["largest"] is None
    assert "metrics" not in found


def test_the_document_carries_metrics_a_table_and_a_plot() -> None:
    found = json.loads(json.dumps(batch.document([mode()], batch.parse([]), Place("cuda"))))
    named = {metric["name"]: metric for metric in found["metrics"]}
    assert named["largest_batch"]["value"] == 3
    assert named["batch_throughput"]["labels"]["batch"] == "2"
    assert [row[0] for row in found["tables"][0]["rows"]] == [1, 2, 3, 4]
    assert found["plots"][0]["lines"][0]["points"] == [[1.0, 120.0], [2.0, 210.0], [3.0, 205.0]]


class Ready:
    """A stand-in for the child: it answers at once, and counts what it was asked."""

    facts = {"precision": "fp32", "gpu": None}  # noqa: RUF012

    def __init__(self, _job: Job, _place: Place) -> None:
        self.asked: list[int] = []

    def measure(self, size: int, _limit_s: float) -> BatchTrial:
        self.asked.append(size)
        return fitting(size, peak=10**9 * size)

    def close(self) -> None:
        pass


def test_on_the_cpu_the_search_stops_at_the_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "Bencher", Ready)
    monkeypatch.setattr(limits, "memory_available", lambda *_: 11 * 10**9)
    found = batches.run(Job("small", memory_share=0.5), Place("cpu"), maximum=64, seconds=60)
    assert found.search.largest
    assert found.search.largest.batch == 5
    assert found.search.ended == BOUNDARY


def test_a_search_without_time_tries_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "Bencher", Ready)
    found = batches.run(Job("small"), Place("cuda"), maximum=64, seconds=0.0)
    assert [trial.batch for trial in found.search.trials] == [1]
    assert "time limit was reached" in found.search.ended


@pytest.mark.parametrize("ended", [0, 2])
def test_a_trial_that_does_not_end_in_time_ends_the_search(
    ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(Ready):
        def measure(self, size: int, limit_s: float) -> BatchTrial:
            if len(self.asked) == ended:
                raise Late("no answer")
            return super().measure(size, limit_s)

    monkeypatch.setattr(batches, "Bencher", Busy)
    if not ended:
        with pytest.raises(Late):
            batches.run(Job("small"), Place("cuda"), maximum=64, seconds=60)
        return
    found = batches.run(Job("small"), Place("cuda"), maximum=64, seconds=60)
    assert [trial.batch for trial in found.search.trials] == [1, 2]
    assert "time limit was reached" in found.search.ended


def test_resident_memory_is_read_in_bytes() -> None:
    now, most = limits.resident_bytes("VmRSS"), limits.resident_bytes("VmHWM")
    assert 1 << 20 < now <= most
