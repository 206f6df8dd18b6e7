"""What the memory checks say of readings, and how NVML's GPU is found for torch's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.verify.checks.test_judges import holds
from verify.checks.memory.batches import Mode
from verify.checks.memory.free import HeldMemory, judge_batches, judge_free
from verify.checks.memory.leaks import TOLERANCE, MemorySeries, judge_leak, slope, thinned
from verify.checks.memory.patterns import KeptBlocks, judge_patterns
from verify.device import limits, same_gpu
from verify.device.telemetry import GpuProcess, GpuState
from verify.model.check import Status
from verify.workloads.batching import MAXIMUM, NOTHING, BatchTrial, Search

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP
GB = 10**9


def held(free: float, total: float = 80, *others: GpuProcess, index: int = 0) -> HeldMemory:
    return HeldMemory(index, "NVIDIA A100", int(free * GB), int(total * GB), others)


@pytest.mark.parametrize(
    ("readings", "status", "word"),
    [
        pytest.param([held(79)], PASS, "79.0 of 80.0 GB free", id="an idle GPU passes"),
        pytest.param([held(60, 80, GpuProcess(7, 15 * GB))], PASS,
                     "GPU 0 is shared with process 7 (15.0 GB)",
                     id="a quarter in use passes and names who"),
        pytest.param([held(70)], PASS, "70.0 of", id="less than all free with nobody there passes"),
        pytest.param([held(30, 80, GpuProcess(7, 1 * GB), GpuProcess(8, 45 * GB), GpuProcess(9))],
                     SKIP, "process 8 (45.0 GB), 7 (1.0 GB), 9",
                     id="most in use fails, and the largest holder comes first"),
        pytest.param([held(79), held(20, index=1)], SKIP, "GPU 1",
                     id="the worst of two GPUs counts"),
        pytest.param([held(79), held(78, index=1)], PASS,
                     "78.0 of 80.0 GB free or more, on each of 2 GPUs",
                     id="of two idle GPUs the least is told"),
        pytest.param([HeldMemory(0, "A", 10 * GB, 80 * GB)], SKIP, "NVML lists no",
                     id="a full GPU without NVML"),
        pytest.param([held(1, 80, *(GpuProcess(n, n * GB) for n in range(1, 8)))], SKIP,
                     "and 3 more", id="a crowd is cut short"),
        pytest.param([HeldMemory(0, "GB10", 10 * GB, 80 * GB, (), shared=True)], PASS,
                     "10.0 of 80.0 GB free", id="memory that is the CPU's too, with a page cache"),
        pytest.param([], FAIL, "no GPU reported", id="no reading proves nothing"),
    ],
)  # fmt: skip
def test_free(readings: list[HeldMemory], status: Status, word: str) -> None:
    holds(judge_free(readings), status, word)


@pytest.mark.parametrize(
    ("tested", "kind", "status", "word"),
    [
        pytest.param([KeptBlocks(0, "A100", 8 * GB)], "cuda", PASS, "every byte of 8.00 GB",
                     id="all right"),
        pytest.param([KeptBlocks(0, "A", 8 * GB), KeptBlocks(1, "B", 4 * GB)], "cuda", PASS,
                     "every byte of 4.00 GB holds a pattern and its complement on each of 2 GPUs",
                     id="of two GPUs the least is told"),
        pytest.param(
            [KeptBlocks(0, "A", GB), KeptBlocks(1, "B", GB, 3, 4096, "0x00f0", "0x00f1")], "cuda",
            FAIL,
            "GPU 1 (B): memory has wrong content (3 of its words), first at byte 4096: 0x00f0 is",
            id="the wrong word is named"),
        pytest.param([KeptBlocks(0, "A", GB, 1, 0, "0x0f", "0xff")], "cuda", FAIL, "4 bits of 64",
                     id="bits"),
        pytest.param([KeptBlocks(0, "CPU", GB)], "cpu", PASS, "on the CPU", id="the CPU is said"),
        pytest.param([KeptBlocks(0, "A", 0)], "cuda", FAIL, "no byte", id="nothing tested fails"),
        pytest.param([], "cuda", FAIL, "no byte", id="no GPU tested fails"),
    ],
)  # fmt: skip
def test_patterns(tested: list[KeptBlocks], kind: str, status: Status, word: str) -> None:
    holds(judge_patterns(tested, kind), status, word)


def series(what: str, each: float, jump: int = 0, steps: int = 60) -> MemorySeries:
    values = (300_000_000 + int(each * i) + (jump if i > steps // 3 else 0) for i in range(steps))
    return MemorySeries(what, tuple(values))


@pytest.mark.parametrize(
    ("found", "status", "word"),
    [
        pytest.param([series("host", 0)], PASS, "no growth in 60", id="flat passes"),
        pytest.param([series("host", 4000)], PASS, "", id="the allocator's noise passes"),
        pytest.param([series("host", 0, 50_000_000)], PASS, "", id="one jump is no leak"),
        pytest.param([series("host", 200_000)], FAIL, "200.0 kB more host", id="a leak fails"),
        pytest.param([series("GPU", 512), series("host", 0)], FAIL, "0.5 kB more GPU memory",
                     id="a GPU's smallest block with each step fails"),
        pytest.param([series("GPU", 0), series("host", 1e6)], FAIL, "host memory",
                     id="a leak on the host fails though the GPU has none"),
        pytest.param([series("host", 200_000, steps=1000)], FAIL, "200.0 kB",
                     id="a long run tells the same"),
        pytest.param([], FAIL, "no step", id="no reading proves nothing"),
        pytest.param([MemorySeries("host", ())], FAIL, "no step", id="no step proves nothing"),
    ],
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


@pytest.mark.parametrize(
    ("modes", "status", "word"),
    [
        pytest.param(
            [found_modes(64), found_modes(128, "amp-bf16")], PASS, "amp-bf16: 128 fit", id="both"
        ),
        pytest.param([found_modes(None)], FAIL, "CUDA out of memory", id="none fits: the reason"),
        pytest.param(
            [found_modes(8), found_modes(None, "amp-fp16")], FAIL, "amp-fp16", id="AMP alone fails"
        ),
        pytest.param([], SKIP, "nothing was tried", id="nothing tried is no pass"),
    ],
)
def test_batches(modes: list[Mode], status: Status, word: str) -> None:
    holds(judge_batches(modes, "cuda", "on the GPU"), status, word)


A, B = GpuState(0, "A100", "GPU-aa"), GpuState(1, "A100", "GPU-bb")
OTHER = GpuState(1, "T4", "GPU-cc")


@pytest.mark.parametrize(
    ("index", "uuid", "visible", "gpus", "environment", "found"),
    [
        pytest.param(0, "bb", 1, (A, B), {}, B, id="by UUID, however they are ordered"),
        pytest.param(0, "GPU-aa", 1, (A, B), {}, A, id="a UUID with its prefix"),
        pytest.param(0, "zz", 1, (A, B), {}, None, id="a UUID that NVML does not have"),
        pytest.param(1, None, 2, (A, B), {}, B, id="alike and all visible: by number"),
        pytest.param(0, None, 1, (A, B), {}, None, id="one is hidden: unknown"),
        pytest.param(
            0, None, 2, (A, B), {"CUDA_VISIBLE_DEVICES": "1,0"}, None, id="reordered: unknown"
        ),
        pytest.param(0, None, 2, (A, OTHER), {}, None, id="two kinds: CUDA has its own order"),
        pytest.param(
            1, None, 2, (A, OTHER), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, OTHER, id="by the bus"
        ),
    ],
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
