"""A card watched under load, its twins, and where no figure applies to it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.cases import cases
from tests.unit.verify.checks.speed.test_speed import CALM, card, gemm, judge, pinned
from tests.unit.verify.checks.test_judges import FAIL, PASS, SKIP, holds
from verify.checks.speed import measured as speed
from verify.checks.speed import watch
from verify.checks.speed.pace import MeasuredRate, RatedCard
from verify.device.machine import Machine
from verify.device.telemetry import GpuProcess, GpuState, State
from verify.model.check import Status


def twins(
    slow: float, count: int, **changes: Any
) -> tuple[list[MeasuredRate], tuple[RatedCard, ...]]:
    """So many equal cards of unknown class, the last of which does a share of the others' rate."""
    rates = [
        gemm(780 * (slow if i == count - 1 else 1 - i / 200), i, figure=None) for i in range(count)
    ]
    cards = [card(i) for i in range(count)]
    cards[-1] = card(count - 1, **changes)
    return rates, tuple(cards)


@cases(
    "found status word",
    ("one of eight is a fifth slower", twins(0.8, 8), FAIL, "GPU 7: "),
    ("one of eight is 8 % slower, as cards differ", twins(0.92, 8), PASS, ""),
    ("one of two is a fifth slower: which is usual?", twins(0.8, 2), PASS, ""),
    ("one of two is far slower", twins(0.6, 2), FAIL, "GPU 1: "),
    ("its power limit is another", twins(0.8, 8, power_limit_w=500.0), PASS, ""),
    ("it has a screen", twins(0.8, 8, display=True), PASS, ""),
    ("it is a part of a card", twins(0.4, 8, virtualization="vgpu"), PASS, ""),
)
def test_twins_are_compared(
    found: tuple[list[MeasuredRate], tuple[RatedCard, ...]], status: Status, word: str
) -> None:
    rates, cards = found
    holds(judge(*rates, cards=cards), status, word)


@cases(
    "rate one word",
    ("vGPU", gemm(90), card(virtualization="vgpu"), "a vGPU, a part"),
    ("MIG", gemm(90), card(mig=True), "a MIG slice"),
    ("a laptop", gemm(90), card(name="NVIDIA GeForce RTX 4090 Laptop GPU"), "laptop"),
    ("a VM", pinned(9), card(virtualization="passthrough"), "hypervisor"),
    ("confidential computing", pinned(9), replace(card(), confidential=True), "encrypts"),
    ("no link is known", pinned(9, None), card(), "9 GB/s"),
)
def test_a_rate_without_a_figure_that_applies_is_shown(
    rate: MeasuredRate, one: RatedCard, word: str
) -> None:
    named = replace(one, state=replace(one.state or CALM, name=one.name))
    holds(judge(rate, cards=(named,)), PASS, word)


def test_in_a_virtual_machine_products_are_judged_all_the_same() -> None:
    holds(judge(gemm(90), cards=(card(virtualization="passthrough"),)), FAIL, "its class does")


def test_a_slow_card_that_others_use_has_no_verdict() -> None:
    shared = replace(card(), busy="process 4711 (python), 97 % load")
    holds(judge(gemm(90), cards=(shared,)), SKIP, "in use (process 4711 (python), 97 % load)")
    holds(judge(gemm(700), cards=(shared,)), PASS)
    # another card's fault is not hidden by it
    holds(judge(gemm(90), gemm(90, 1), cards=(shared, card(1))), FAIL, "GPU 1")


@cases(
    "changes metric gbs",
    ("the whole slot", {}, "h2d_pinned", 63.008),
    ("a card with eight lanes", {"pcie_width": 8}, "d2h_pinned", 31.504),
    ("it must wake up under load", {"pcie_generation": 1}, "h2d_pinned", 63.008),
    ("pageable memory is copied twice", {}, "h2d_pageable", None),
    ("no PCIe link", {"pcie_width": None}, "h2d_pinned", None),
    ("a GH200's C2C",
     {"pcie_width": 1, "pcie_generation_max": 4, "c2c_links": 10, "c2c_gbs": 447.0}, "h2d_pinned",
     447.0),
    ("C2C of unknown speed", {"addressing": "ats"}, "h2d_pinned", None),
)  # fmt: skip
def test_what_the_link_to_the_host_can_do(
    changes: dict[str, Any], metric: str, gbs: float | None
) -> None:
    assert speed.link_gbs(metric, card(**changes)) == (gbs if gbs is None else pytest.approx(gbs))


def test_a_slow_c2c_link_is_found() -> None:
    grace = card(c2c_links=10, c2c_gbs=447.0, pcie_width=1)
    figure = speed.link_gbs("h2d_pinned", grace)
    holds(judge(pinned(350, figure), cards=(grace,)), PASS, "350 GB/s (78 %)")
    holds(judge(pinned(60, figure), cards=(grace,)), FAIL, "60 GB/s (13 %)")


def reading(*reasons: str, mhz: int = 1500, **more: Any) -> GpuState:
    return replace(CALM, throttle_reasons=reasons, clock_sm_mhz=mhz, **more)


@cases(
    "readings reasons mhz",
    ("a reading at rest does not count",
     [reading("gpu_idle", mhz=210), reading("sw_power_cap"), reading("sw_power_cap")],
     ("sw_power_cap",), 1500),
    ("a reason for a moment does not count",
     [reading(), reading("hw_slowdown"), reading(), reading()], (), 1500),
    ("a reason that lasts counts",
     [reading("hw_slowdown", mhz=600), reading("hw_slowdown", mhz=700), reading(mhz=900)],
     ("hw_slowdown",), 700),
    ("at rest all along", [reading("gpu_idle", mhz=210)], ("gpu_idle",), 210),
)  # fmt: skip
def test_readings_under_load_are_merged(
    readings: list[GpuState], reasons: tuple[str, ...], mhz: int
) -> None:
    found = watch.merged(readings)
    assert found is not None
    assert (found.throttle_reasons, found.clock_sm_mhz) == (reasons, mhz)
    assert watch.merged([]) is None


def test_a_link_is_read_at_its_best() -> None:
    found = watch.merged([reading(pcie_generation=g) for g in (1, 5, 1)])
    assert found is not None
    assert found.pcie_generation == 5


@cases(
    "gpu words",
    ("at rest", GpuState(0, utilization_percent=3), None),
    ("nothing known", GpuState(0), None),
    ("no such GPU", None, None),
    ("a process at rest", GpuState(0, utilization_percent=0, processes=(GpuProcess(1 << 22),)),
     "process 4194304, 0 % load"),
    ("a load of which the container sees no process",
     GpuState(0, utilization_percent=97, processes=()), "no process that NVML lists, 97 % load"),
)  # fmt: skip
def test_who_is_on_a_card(gpu: GpuState | None, words: str | None) -> None:
    assert watch.busy(gpu) == words


class Scripted(Machine):
    """A machine with these readings, one after the other."""

    def __init__(self, *loads: int, processes: tuple[GpuProcess, ...] = ()) -> None:
        self.left = [
            State(gpus=(GpuState(0, utilization_percent=load, processes=processes),))
            for load in loads
        ]
        self.paused = 0.0

    def state(self) -> State:
        return self.left.pop(0)

    def pause(self, seconds: float) -> None:
        self.paused += seconds


@cases(
    "machine load paused",
    ("at rest", Scripted(0), 0, False),
    ("the load was our own, a moment ago", Scripted(60, 0), 0, True),
    ("somebody's load", Scripted(60, 61), 61, True),
    ("a named process", Scripted(60, processes=(GpuProcess(7),)), 60, False),
)
def test_a_load_without_a_process_is_looked_at_twice(
    machine: Scripted,
    load: int,
    paused: bool,  # noqa: FBT001
) -> None:
    assert watch.before(machine).gpus[0].utilization_percent == load
    assert (machine.paused > 0) is paused


def test_the_card_is_read_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOAD_S", 0.0)
    monkeypatch.setattr(watch, "EVERY_S", 0.001)
    worked = threading.Event()
    readings = watch.under(worked.set, lambda: None, 0.01, lambda: worked.wait(30))
    assert readings
    assert all(readings)


def test_a_reader_that_fails_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.001)
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    def read() -> int:
        raise OSError

    assert watch.under(lambda: None, lambda: None, 0.01, read) == []


@cases(
    "text cpus",
    ("a range and one", "0-3,8\n", {0, 1, 2, 3, 8}),
    ("one", "5", {5}),
    ("none", "\n", set()),
)
def test_the_kernels_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert speed.cpus_of(text) == cpus
