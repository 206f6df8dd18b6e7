"""What the memory checks say of readings, and how NVML's GPU is found for torch's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import holds
from verify.backends.pytorch import Place
from verify.checks.memory import batches
from verify.checks.memory.batches import Mode
from verify.checks.memory.bench import Job, Late, Refused
from verify.checks.memory.free import (
    HeldMemory,
    check_batch,
    judge_batches,
    judge_free,
    search_batch,
)
from verify.checks.memory.leaks import TOLERANCE, MemorySeries, judge_leak, slope, thinned
from verify.checks.memory.patterns import KeptBlocks, judge_patterns
from verify.device import limits, same_gpu
from verify.device.telemetry import GpuProcess, GpuState
from verify.model.check import Context, Status
from verify.workloads.batching import MAXIMUM, NOTHING, BatchTrial, Search

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP
GB = 10**9


def held(free: float, total: float = 80, *others: GpuProcess, index: int = 0) -> HeldMemory:
    return HeldMemory(index, "NVIDIA A100", int(free * GB), int(total * GB), others)


@cases(
    "readings status word",
    ("an idle GPU passes", [held(79)], PASS, "79.0 of 80.0 GB free"),
    ("a quarter in use passes and names who", [held(60, 80, GpuProcess(7, 15 * GB))], PASS,
     "GPU 0 is shared with process 7 (15.0 GB)"),
    ("less than all free with nobody there passes", [held(70)], PASS, "70.0 of"),
    ("most in use fails, and the largest holder comes first",
     [held(30, 80, GpuProcess(7, 1 * GB), GpuProcess(8, 45 * GB), GpuProcess(9))], SKIP,
     "process 8 (45.0 GB), 7 (1.0 GB), 9"),
    ("the worst of two GPUs counts", [held(79), held(20, index=1)], SKIP, "GPU 1"),
    ("of two idle GPUs the least is told", [held(79), held(78, index=1)], PASS,
     "78.0 of 80.0 GB free or more, on each of 2 GPUs"),
    ("a full GPU without NVML", [HeldMemory(0, "A", 10 * GB, 80 * GB)], SKIP, "NVML lists no"),
    ("a crowd is cut short", [held(1, 80, *(GpuProcess(n, n * GB) for n in range(1, 8)))], SKIP,
     "and 3 more"),
    ("memory that is the CPU's too, with a page cache",
     [HeldMemory(0, "GB10", 10 * GB, 80 * GB, (), shared=True)], PASS, "10.0 of 80.0 GB free"),
    ("no reading proves nothing", [], FAIL, "no GPU reported"),
)  # fmt: skip
def test_free(readings: list[HeldMemory], status: Status, word: str) -> None:
    holds(judge_free(readings), status, word)


@cases(
    "tested kind status word",
    ("all right", [KeptBlocks(0, "A100", 8 * GB)], "cuda", PASS, "every byte of 8.00 GB"),
    ("of two GPUs the least is told", [KeptBlocks(0, "A", 8 * GB), KeptBlocks(1, "B", 4 * GB)],
     "cuda", PASS, "every byte of 4.00 GB holds a pattern and its complement on each of 2 GPUs"),
    ("the wrong word is named",
     [KeptBlocks(0, "A", GB), KeptBlocks(1, "B", GB, 3, 4096, "0x00f0", "0x00f1")], "cuda", FAIL,
     "GPU 1 (B): memory has wrong content (3 of its words), first at byte 4096: 0x00f0 is"),
    ("bits", [KeptBlocks(0, "A", GB, 1, 0, "0x0f", "0xff")], "cuda", FAIL, "4 bits of 64"),
    ("the CPU is said", [KeptBlocks(0, "CPU", GB)], "cpu", PASS, "on the CPU"),
    ("nothing tested fails", [KeptBlocks(0, "A", 0)], "cuda", FAIL, "no byte"),
    ("no GPU tested fails", [], "cuda", FAIL, "no byte"),
)  # fmt: skip
def test_patterns(tested: list[KeptBlocks], kind: str, status: Status, word: str) -> None:
    holds(judge_patterns(tested, kind), status, word)


def series(what: str, each: float, jump: int = 0, steps: int = 60) -> MemorySeries:
    values = (300_000_000 + int(each * i) + (jump if i > steps // 3 else 0) for i in range(steps))
    return MemorySeries(what, tuple(values))


@cases(
    "found status word",
    ("flat passes", [series("host", 0)], PASS, "no growth in 60"),
    ("the allocator's noise passes", [series("host", 4000)], PASS, ""),
    ("one jump is no leak", [series("host", 0, 50_000_000)], PASS, ""),
    ("a leak fails", [series("host", 200_000)], FAIL, "200.0 kB more host"),
    ("a GPU's smallest block with each step fails", [series("GPU", 512), series("host", 0)], FAIL,
     "0.5 kB more GPU memory"),
    ("a leak on the host fails though the GPU has none", [series("GPU", 0), series("host", 1e6)],
     FAIL, "host memory"),
    ("a long run tells the same", [series("host", 200_000, steps=1000)], FAIL, "200.0 kB"),
    ("no reading proves nothing", [], FAIL, "no step"),
    ("no step proves nothing", [MemorySeries("host", ())], FAIL, "no step"),
)  # fmt: skip
def test_leak(found: list[MemorySeries], status: Status, word: str) -> None:
    holds(judge_leak(found, "cuda"), status, word)


@given(st.floats(-1e6, 1e6), st.integers(2, 60), st.randoms(use_true_random=False))
def test_the_slope_is_the_pace_whatever_a_few_readings_say(
    each: float, steps: int, random: Any
) -> None:
    line = [each * i for i in range(steps)]
    assert slope(line) == pytest.approx(each, abs=1e-3)
    shifted = [value + 1e9 for value in line]
    assert slope(shifted) == pytest.approx(each, abs=1.0)
    if steps >= 20:
        line[random.randrange(steps)] += 1e12  # one wild reading
        assert slope(line) == pytest.approx(each, abs=abs(each) * 0.3 + 1.0)


@given(st.integers(1, 3000), st.integers(0, 10**6))
def test_thinning_keeps_the_pace_and_bounds_the_pairs(steps: int, each: int) -> None:
    kept = thinned([each * i for i in range(steps)])
    assert len(kept) <= 200
    assert slope(kept) == pytest.approx(each if len(kept) > 1 else 0.0)


def test_the_tolerance_on_a_gpu_is_below_its_smallest_block() -> None:
    assert TOLERANCE["GPU"] < 512


def found_modes(largest: int | None, precision: str = "fp32") -> Mode:
    fit = (
        (BatchTrial(largest, fits=True, samples_per_s=100.0, steps=3, peak_bytes=GB),)
        if largest
        else ()
    )
    failed = () if largest else (BatchTrial(1, fits=False, reason="CUDA out of memory"),)
    return Mode(precision, None, Search(fit + failed, MAXIMUM if largest else NOTHING))


@cases(
    "modes status word",
    ("both", [found_modes(64), found_modes(128, "amp-bf16")], PASS, "amp-bf16: 128 fit"),
    ("none fits: the reason", [found_modes(None)], FAIL, "CUDA out of memory"),
    ("AMP alone fails", [found_modes(8), found_modes(None, "amp-fp16")], FAIL, "amp-fp16"),
    ("nothing tried is no pass", [], SKIP, "nothing was tried"),
)
def test_batches(modes: list[Mode], status: Status, word: str) -> None:
    holds(judge_batches(modes, "cuda", "on the GPU"), status, word)


@cases(
    "kind room ranges",
    ("the first batch fits", "cuda", 700, [(32, 4096)]),
    ("a small GPU is tried from one sample on", "cuda", 9, [(32, 4096), (1, 31)]),
    ("nothing fits", "cuda", 0, [(32, 4096), (1, 31)]),
    ("a CPU starts with one sample", "cpu", 0, [(1, 4)]),
)
def test_the_first_batch_is_large_where_it_fits(
    kind: str, room: int, ranges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def run(*_: Any, maximum: int, minimum: int = 1, **__: Any) -> Mode:
        asked.append((minimum, maximum))
        return found_modes(min(room, maximum) if room >= minimum else None)

    monkeypatch.setattr(batches, "run", run)
    found = search_batch(Job("resnet50"), Place(kind))
    assert asked == ranges
    assert (found.search.largest is None) == (room == 0)


@cases(
    "error status",
    ("a busy machine is no fault", Late("resnet50: no answer in 195 s"), SKIP),
    ("a step that fails is one", Refused("resnet50 fails at batch 1"), FAIL),
)
def test_a_search_that_ends_early(
    error: Refused, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> Mode:
        raise error

    monkeypatch.setattr(batches, "look", lambda _: (None, Place("cuda")))
    monkeypatch.setattr(batches, "run", run)
    holds(check_batch(Context()), status, str(error))


A, B = GpuState(0, "A100", "GPU-aa"), GpuState(1, "A100", "GPU-bb")
OTHER = GpuState(1, "T4", "GPU-cc")


@cases(
    "index uuid visible gpus environment found",
    ("by UUID, however they are ordered", 0, "bb", 1, (A, B), {}, B),
    ("a UUID with its prefix", 0, "GPU-aa", 1, (A, B), {}, A),
    ("a UUID that NVML does not have", 0, "zz", 1, (A, B), {}, None),
    ("alike and all visible: by number", 1, None, 2, (A, B), {}, B),
    ("one is hidden: unknown", 0, None, 1, (A, B), {}, None),
    ("reordered: unknown", 0, None, 2, (A, B), {"CUDA_VISIBLE_DEVICES": "1,0"}, None),
    ("two kinds: CUDA has its own order", 0, None, 2, (A, OTHER), {}, None),
    ("by the bus", 1, None, 2, (A, OTHER), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, OTHER),
)
def test_the_same_gpu(
    index: int,
    uuid: str | None,
    visible: int,
    gpus: tuple[GpuState, ...],
    environment: dict[str, str],
    found: GpuState | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert same_gpu.match(index, uuid, visible, gpus) is found


def test_the_memory_that_is_left_is_the_lesser_of_machine_and_group(tmp_path: Any) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   1000 kB\n")
    root = str(tmp_path)
    assert limits.memory_available(limits.Limits(), root) == 1_024_000
    tight = limits.Limits(memory_bytes=500_000, memory_used_bytes=100_000)
    assert limits.memory_available(tight, root) == 400_000
    over = limits.Limits(memory_bytes=500_000, memory_used_bytes=600_000)
    assert limits.memory_available(over, root) == 0
