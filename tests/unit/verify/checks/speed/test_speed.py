"""Speed: what is said of rates beside a card's class, its peers and its state under load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import FAIL, PASS, holds
from verify.backends import base
from verify.checks.speed import measured, rates
from verify.checks.speed.measured import check_gemm
from verify.checks.speed.pace import (
    FLOOR,
    POWER_FLOOR,
    MeasuredRate,
    RatedCard,
    judge_rates,
    spec_of,
)
from verify.checks.speed.rates import SIZES, copy_bytes, pick_size, transfer_sizes
from verify.checks.speed.slowness import why_slow
from verify.checks.speed.training import TimedSteps, judge_training
from verify.device.telemetry import GpuProcess, GpuState
from verify.model.check import Context, Outcome, Status
from verify.model.expectations import ExpectedGpu, Spec

H200 = "NVIDIA H200"
SPEC = Spec(4800.0, {"bf16": 989.0, "fp32": 67.0}, nvlink=True)
CALM = GpuState(
    0,
    H200,
    "GPU-a",
    mig=False,
    processes=(GpuProcess(1),),
    temperature_c=61,
    power_w=600.0,
    power_limit_w=700.0,
    clock_sm_mhz=1900,
    clock_sm_max_mhz=1980,
    clock_memory_mhz=3201,
    clock_memory_max_mhz=3201,
    throttle_reasons=(),
    ecc_enabled=True,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
)


def card(index: int = 0, name: str = H200, **changes: Any) -> RatedCard:
    return RatedCard(index, name, replace(CALM, index=index, name=name, **changes), SPEC)


def gemm(tflops: float, gpu: int = 0, **more: Any) -> MeasuredRate:
    given = {"label": "bf16", "figure": 989.0, "size": 8192, **more}
    return MeasuredRate("gemm", gpu, (tflops * 0.99, tflops, tflops * 1.01), "TFLOP/s", **given)


def copy(gbs: float, **more: Any) -> MeasuredRate:
    return MeasuredRate(
        "memory_copy", 0, (gbs,) * 3, "GB/s", size=1 << 30, **{"figure": 4800.0, **more}
    )


def pinned(gbs: float, figure: float | None = 63.0) -> MeasuredRate:
    return MeasuredRate("h2d_pinned", 0, (gbs,) * 3, "GB/s", size=1 << 28, figure=figure)


def judge(*rates: MeasuredRate, cards: tuple[RatedCard, ...] = (card(),), **more: Any) -> Outcome:
    return judge_rates(rates, cards, **{"device": "cuda", "what": "products", **more})


@cases(
    "rates cards status word",
    ("as its class", [gemm(788)], (card(),), PASS, "bf16 788 TFLOP/s (80 %)"),
    ("memory as well", [copy(4300)], (card(),), PASS, "4300 GB/s (90 %)"),
    ("half its class", [gemm(480)], (card(),), FAIL, "its class does 989"),
    ("slow memory", [copy(2800)], (card(),), FAIL, "its class does 4800"),
    ("by figures that are not sure", [gemm(300, sure=False)], (card(),), PASS, "uncertain"),
    ("far below figures that are not sure", [gemm(180, sure=False)], (card(),), FAIL,
     "its class does 989, a figure that is uncertain"),
    ("memory far below such a figure", [copy(900, sure=False)], (card(),), FAIL, "uncertain"),
    ("an uncertain figure at the power limit", [gemm(210, sure=False)],
     (card(throttle_reasons=("sw_power_cap",)),), PASS, "uncertain"),
    ("a clock without reason, with no figure", [gemm(90, figure=None)],
     (card(clock_sm_mhz=700),), FAIL, "GPU 0: SM clock 700 of 1980 MHz under load"),
    ("a GB10 whose power supply failed to agree", [gemm(9, figure=None)],
     (card(name="NVIDIA GB10", clock_sm_mhz=611, clock_sm_max_mhz=3003, power_w=14.0),), FAIL,
     "unplug the power supply from the wall"),
    ("a GB10 with enough power", [gemm(9, figure=None)],
     (card(name="NVIDIA GB10", clock_sm_mhz=611, clock_sm_max_mhz=3003, power_w=90.0),), FAIL,
     "nvidia-smi -rgc"),
    ("a clock just high enough", [gemm(90, figure=None)], (card(clock_sm_mhz=800),), PASS, "90"),
    ("a low clock with a reason", [gemm(90, figure=None)],
     (card(clock_sm_mhz=700, throttle_reasons=("sw_power_cap",)),), PASS, "90"),
    ("a clock set by the user", [gemm(90, figure=None)],
     (card(clock_sm_mhz=700, throttle_reasons=("applications_clocks_setting",)),), PASS, "90"),
    ("an old driver gives no reasons", [gemm(90, figure=None)],
     (card(clock_sm_mhz=700, throttle_reasons=None),), PASS, "90"),
    ("the load was not seen", [gemm(90, figure=None)],
     (card(clock_sm_mhz=210, throttle_reasons=("gpu_idle",)),), PASS, "90"),
    ("a low clock of a slice", [gemm(90, figure=None)], (card(clock_sm_mhz=700, mig=True),), PASS,
     "90"),
    ("a low clock of a vGPU", [gemm(90, figure=None)],
     (card(clock_sm_mhz=700, virtualization="vgpu"),), PASS, "90"),
    ("a low clock of a laptop", [gemm(90, figure=None)],
     (card(name="NVIDIA GeForce RTX 4090 Laptop GPU", clock_sm_mhz=700),), PASS, "90"),
    ("a low clock of a card in use", [gemm(90, figure=None)],
     (replace(card(clock_sm_mhz=700), busy="process 7"),), PASS, "90"),
    ("a low clock while memory is copied", [copy(900, figure=None)], (card(clock_sm_mhz=700),),
     PASS, "900"),
    ("without a figure", [gemm(480, figure=None)], (card(),), PASS, "480"),
    ("more than all", [gemm(1100)], (card(),), PASS, "one of the two is wrong"),
    ("a slice is not judged", [gemm(99)], (card(mig=True),), PASS, "MIG slice"),
    ("the card has no NVML", [gemm(99)], (RatedCard(0, H200),), FAIL, "NVML reports nothing"),
    ("a card at its power limit", [gemm(300)],
     (card(throttle_reasons=("sw_power_cap",), power_limit_w=350.0),), PASS,
     "at its power limit of 350 W"),
    ("a power limit far too low", [gemm(200)],
     (card(throttle_reasons=("sw_power_cap",), power_limit_w=200.0),), FAIL,
     "power limit of 200 W"),
    ("a power limit that somebody lowered", [gemm(300)],
     (card(throttle_reasons=("sw_power_cap",), power_limit_w=300.0, power_limit_default_w=700.0),),
     PASS, "its power limit was lowered to 300 of 700 W: no specification applies"),
    ("copies do not reach a power limit", [copy(2000)], (card(throttle_reasons=("sw_power_cap",)),),
     FAIL, "power limit"),
    ("heat", [gemm(300)],
     (card(throttle_reasons=("sw_power_cap", "hw_thermal_slowdown"), temperature_c=92),), FAIL,
     "throttles because of heat (92 degrees)"),
    ("behind its peer, with no figure known", [gemm(780), gemm(400, 1, figure=None)],
     (card(), card(1)), FAIL, "GPU 1: bf16 400 TFLOP/s, GPU 0 of the same model: 780"),
    ("another kind of card is no peer", [gemm(780), gemm(60, 1, figure=None)],
     (card(), card(1, "NVIDIA T4")), PASS, "and 1 GPU in the table"),
    ("a slice is no peer", [gemm(780), gemm(90, 1, figure=None)], (card(), card(1, mig=True)), PASS,
     ""),
    ("a full link", [pinned(52)], (card(),), PASS, "h2d pinned 52 GB/s (83 %)"),
    ("a link below the usual", [pinned(40)], (card(),), PASS, "reach 70 %"),
    ("a slow host", [pinned(20)], (card(),), FAIL, "numactl"),
    ("a narrow link", [pinned(12)], (card(pcie_width=4),), FAIL, "PCIe x4 of x16"),
    ("an old link", [pinned(12)], (card(pcie_generation=1),), FAIL, "PCIe 1.0 of 5.0"),
    ("an unknown link", [pinned(12, None)], (card(),), PASS, "12 GB/s"),
    ("nothing measured", [], (card(),), FAIL, "nothing was measured"),
)  # fmt: skip
def test_rates(
    rates: list[MeasuredRate], cards: tuple[RatedCard, ...], status: Status, word: str
) -> None:
    holds(judge(*rates, cards=cards), status, word)


@cases(
    "metric changes words",
    ("hardware", "gemm", {"throttle_reasons": ("hw_slowdown",)}, "hardware"),
    ("brake", "gemm", {"throttle_reasons": ("hw_power_brake_slowdown",)}, "supply"),
    ("clocks that were set", "gemm",
     {"throttle_reasons": ("applications_clocks_setting",), "clock_sm_mhz": 900},
     "limits its clocks (900 of 1980 MHz)"),
    ("another user", "gemm", {"processes": (GpuProcess(1), GpuProcess(2))}, "1 other process on"),
    ("a clock without reason", "gemm", {"clock_sm_mhz": 600}, "stays low (600 of"),
    ("memory's clock", "memory_copy", {"clock_memory_mhz": 405}, "405 of 3201"),
    ("ECC is told last", "memory_copy", {}, "ECC is on"),
    ("no reason", "gemm", {}, "NVML gives no reason"),
    ("the link is in order", "d2h_pinned", {}, "another socket"),
)  # fmt: skip
def test_why_a_card_is_slow(metric: str, changes: dict[str, Any], words: str) -> None:
    cause, fix, _ = why_slow(metric, replace(CALM, **changes))
    assert words in cause
    assert fix


def test_the_cpu_is_not_judged() -> None:
    outcome = judge(gemm(0.2, figure=None), cards=(), device="cpu", notes=("fp16 not measured",))
    holds(outcome, PASS, "on the CPU: no GPU visible; fp16 not measured")
    assert outcome.measured["device"] == "cpu"
    assert outcome.measured["metrics"][0]["labels"] == {"dtype": "bf16"}


def test_a_figure_that_is_not_sure_is_no_specification() -> None:
    metric = judge(gemm(480, sure=False)).measured["metrics"][0]
    assert metric["spec"] is None
    assert metric["of_spec"] is None


@cases(
    "name uuid expected spec",
    ("by name", H200, "GPU-a", [ExpectedGpu(name=H200, spec=SPEC)], SPEC),
    ("by the old name", "H200", None, [ExpectedGpu(name=H200, spec=SPEC)], SPEC),
    ("by UUID", "X", "GPU-a", [ExpectedGpu(uuid="GPU-a", spec=SPEC)], SPEC),
    ("another card", "X", None, [ExpectedGpu(name=H200, spec=SPEC)], None),
    ("no figures", H200, None, [ExpectedGpu(name=H200)], None),
    ("nothing expected", H200, None, None, None),
    ("a nameless wish", "", None, [ExpectedGpu(spec=SPEC)], None),
)
def test_the_figures_of_a_card(
    name: str, uuid: str | None, expected: list[ExpectedGpu] | None, spec: Spec | None
) -> None:
    assert spec_of(name, uuid, expected) == spec


SHARES = st.floats(0.01, 1.5)


@given(SHARES, st.sampled_from(sorted(FLOOR)))
def test_a_calm_card_fails_exactly_below_its_floor(share: float, metric: str) -> None:
    rate = MeasuredRate(metric, 0, (share * 100,), "GB/s", figure=100.0)
    outcome = judge(rate)
    assert (outcome.status is FAIL) == (rate.share is not None and rate.share < FLOOR[metric])
    assert bool(outcome.cause) == bool(outcome.fix) == (outcome.status is FAIL)


@given(SHARES)
def test_a_power_limit_excuses_and_never_accuses(share: float) -> None:
    rate = gemm(989 * share)
    calm, capped = judge(rate), judge(rate, cards=(card(throttle_reasons=("sw_power_cap",)),))
    assert not (calm.status is PASS and capped.status is FAIL)
    assert (capped.status is FAIL) == (rate.share is not None and rate.share < POWER_FLOOR)


@given(st.lists(SHARES, min_size=1, max_size=5))
def test_without_figures_and_peers_nothing_fails(shares: list[float]) -> None:
    rates = [gemm(100 * s, i, figure=None) for i, s in enumerate(shares)]
    cards = tuple(card(i, f"card {i}") for i in range(len(shares)))
    assert judge(*rates, cards=cards).status is PASS


# Sizes


@cases(
    "tried seconds longest_s cells size",
    ("a fast card takes the largest", 1024, 1e-5, 0.05, 1 << 40, 8192),
    ("a slow one a smaller", 1024, 1e-3, 0.05, 1 << 40, 2048),
    ("as far as there is room", 1024, 1e-5, 0.05, 2048 * 2048, 2048),
    ("the smallest when all take too long", 1024, 10.0, 0.05, 1 << 40, 256),
    ("a clock that saw nothing", 256, 0.0, 0.05, 1 << 40, 8192),
)
def test_the_size_of_a_product(
    tried: int, seconds: float, longest_s: float, cells: int, size: int
) -> None:
    assert pick_size(tried, seconds, longest_s, cells) == size


@given(st.sampled_from(SIZES), st.floats(1e-7, 10), st.floats(1e-3, 1), st.integers(1, 1 << 30))
def test_a_size_stays_within_its_bounds(
    tried: int, spent: float, longest: float, cells: int
) -> None:
    size = pick_size(tried, spent, longest, cells)
    fits = spent * (size / tried) ** 3 <= longest and size * size <= cells
    assert size in SIZES
    assert fits or size == SIZES[0]


@cases(
    "room cache size",
    ("a GiB", 30 << 30, 60 << 20, 1 << 30),
    ("more for a large cache", 30 << 30, 256 << 20, 2 << 30),
    ("what there is", 100 << 20, 60 << 20, 100 << 20),
    ("never nothing", 0, 0, 1 << 20),
)
def test_the_size_of_a_copy(room: int, cache: int, size: int) -> None:
    assert copy_bytes(room, cache) == size


def test_sizes_of_transfers_go_by_fours() -> None:
    assert transfer_sizes(1 << 20) == (4096, 16384, 65536, 262144, 1048576)


# Training

LARGE = TimedSteps("large", 50, 4, (2.0, 2.1, 2.2), (0.05, 0.05))
SMALL = TimedSteps("small", 10, 64, (0.1, 0.1), (0.2, 0.2))


@cases(
    "found device status word",
    ("faster", [SMALL, LARGE], "cuda", PASS, "42 times as fast"),
    ("a small network may be slower", [SMALL], "cuda", PASS, "0.5 times"),
    ("a large one may not", [replace(LARGE, gpu=(2.5, 2.5))], "cuda", FAIL, "0.84 times"),
    ("no GPU", [replace(LARGE, gpu=())], "cpu", PASS, "on the CPU: no GPU visible"),
)
def test_training(found: list[TimedSteps], device: str, status: Status, word: str) -> None:
    outcome = judge_training(found, device)
    holds(outcome, status, word)
    assert outcome.measured["device"] == device


def test_the_gpus_column_is_empty_on_a_cpu() -> None:
    table = judge_training([replace(LARGE, gpu=())], "cpu").measured["tables"][0]
    assert table["rows"] == [["large (50 layers)", 4, 2.1, None, None]]


@dataclass(frozen=True)
class Device(base.Place):
    """A device that does so many operations a second."""

    rate: float = 1e13
    units: tuple[int, int] = (7, 5)

    @property
    def capability(self) -> tuple[int, int]:
        return self.units

    @property
    def backend(self) -> base.Backend:
        return base.Backend()

    def product(self, dtype: str, size: int) -> Callable[[], object]:
        if dtype == "fp16":
            raise RuntimeError("no kernel for half")
        return lambda: size

    def seconds(self, work: Callable[[], Any], *, repeats: int, **_: Any) -> list[float]:
        return [2.0 * work() ** 3 / self.rate] * repeats


@pytest.mark.parametrize(
    ("capability", "dtypes"),
    [
        ((5, 2), ("fp64", "fp32")),
        ((7, 5), ("fp64", "fp32", "fp16")),
        ((9, 0), ("fp64", "fp32", "tf32", "bf16", "fp16")),
    ],
)
def test_dtypes_go_by_the_capability(capability: tuple[int, int], dtypes: tuple[str, ...]) -> None:
    assert rates.dtypes(Device("cuda", units=capability)) == dtypes


@given(st.floats(1e9, 1e15))
def test_a_rate_is_what_the_device_does(rate: float) -> None:
    found, size = rates.gemm(Device("cuda", rate=rate), "fp32", repeats=3, longest_s=0.05)
    assert found == pytest.approx([rate / 1e12] * 3)
    assert size in SIZES


def test_a_dtype_without_a_kernel_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = base.Backend()
    monkeypatch.setattr(backend, "every", lambda _: (None, (Device("cuda"),)))
    monkeypatch.setattr(measured, "of", lambda _: backend)
    monkeypatch.setattr(measured, "describe", lambda *_: None)
    outcome = check_gemm(Context())
    holds(outcome, PASS, "fp16 not measured: no kernel for half")
    assert {row["labels"]["dtype"] for row in outcome.measured["metrics"]} == {"fp64", "fp32"}
