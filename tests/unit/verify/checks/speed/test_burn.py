"""All GPUs under load: what is judged of each, and of the GPUs beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.mutations.health import healthy_gpu
from verify.checks.speed.burn import Burn, judge_burn
from verify.checks.speed.pace import RatedCard
from verify.commands.main import main, minutes, with_burn
from verify.device.telemetry import GpuState, State
from verify.model.check import NODE, UNKNOWN, Check, Context, Outcome, Status
from verify.running.runner import limit_of

NAME = "NVIDIA H100 80GB HBM3"
READING = replace(
    healthy_gpu(0), throttle_reasons=("sw_power_cap",), clock_sm_mhz=1700, power_w=690.0,
    temperature_c=71,
)  # fmt: skip
HOT = replace(READING, throttle_reasons=("hw_thermal_slowdown",), clock_sm_mhz=990)
COOLED = replace(
    READING, throttle_reasons=("sw_thermal_slowdown",), clock_sm_mhz=900, utilization_percent=99
)


def one(index: int, name: str = NAME, busy: str | None = None, **more: Any) -> Burn:
    """A GPU that held; `state`: what its readings say instead."""
    state: GpuState = replace(READING, index=index, **more.pop("state", {}))
    done = {"first": 7, "rounds": 1000, "seconds": 10.0, "ended": True, "states": [state] * 5}
    return Burn(RatedCard(index, name, state, busy=busy), **{**done, **more})


def judge(*found: Burn, after: State | None = None) -> Outcome:
    cards = tuple(replace(READING, index=burn.card.index, uuid=str(i)) for i, burn in
                  enumerate(found))  # fmt: skip
    before = State(gpus=cards, found=True)
    return judge_burn(found, before, after or before, "bf16", 1.0)


@cases(
    "found",
    ("one", [one(0)]),
    ("three", [one(0), one(1), one(2)]),
    ("other models compute other bits in their own time",
     [one(0), one(1), one(2), one(3, "NVIDIA T4", first=8, rounds=90)]),
    ("one of two is slower", [one(0), one(1, rounds=700)]),
    ("some differ a little", [one(0), one(1), one(2, rounds=860, state={"clock_sm_mhz": 1500})]),
    ("a card in use is no twin", [one(0), one(1), one(2), one(3, busy="process 7", rounds=300)]),
    ("a slice is no twin", [one(0), one(1), one(2), one(3, rounds=90, state={"mig": True})]),
    ("another power limit is no twin",
     [one(0), one(1), one(2), one(3, rounds=600, state={"power_limit_w": 350.0})]),
    ("a good chip needs less power", [one(0), one(1), one(2, state={"power_w": 500.0})]),
    ("NVML reads nothing", [one(0, states=[]), one(1, states=[]), one(2, states=[])]),
    ("a card near its target temperature",
     [one(0, state={"throttle_reasons": ("sw_thermal_slowdown",), "utilization_percent": 99})]),
    ("a brake for a moment",
     [one(0, states=[READING] * 4 + [replace(READING, throttle_reasons=("hw_slowdown",))])]),
    ("a driver that does not say what limits clocks",
     [one(0, state={"throttle_reasons": None, "clock_sm_mhz": 345})]),
    ("a laptop that is hot",
     [one(0, "NVIDIA GeForce RTX 4090 Laptop GPU", state={
         "throttle_reasons": ("hw_thermal_slowdown",), "name": "NVIDIA GeForce RTX 4090 Laptop GPU",
     })]),
    ("a power limit that was lowered", [one(0, state={"power_limit_w": 350.0, "power_w": 349.0})]),
    ("clocks that were locked",
     [one(0, state={"throttle_reasons": ("applications_clocks_setting",), "clock_sm_mhz": 345})]),
)  # fmt: skip
def test_what_holds_passes(found: list[Burn]) -> None:
    outcome = judge(*found)
    assert outcome.status is Status.PASS, outcome
    assert "all with the same bits" in outcome.message
    assert [row[0] for row in outcome.measured["tables"][0]["rows"]] == list(range(len(found)))


@cases(
    "found words",
    ("its own bits differ", [one(0), one(1, wrong=2)], "GPU 1: 2 of 1000 equal products"),
    ("its bits are those of no other", [one(0), one(1, first=8), one(2)],
     "GPU 1: its products have other bits than those of equal GPUs"),
    ("of two it is not known which", [one(0), one(1, first=8)], "GPU 0-1: its products"),
    ("of four it is not known which pair",
     [one(0), one(1, first=8), one(2), one(3, first=8)], "GPU 0-3: its products"),
    ("less work", [one(0), one(1), one(2, rounds=800)],
     "GPU 2: behind the equal GPUs: 80 % of their products a second"),
    ("a lower clock", [one(0), one(1), one(2, state={"clock_sm_mhz": 1200})],
     "GPU 2: behind the equal GPUs: 71 % of their MHz"),
    ("less power and less work", [one(0), one(1), one(2, rounds=900, state={"power_w": 400.0})],
     "GPU 2: behind the equal GPUs: 58 % of their W"),
    ("a power brake", [one(0, state={"throttle_reasons": ("hw_power_brake_slowdown",)})],
     "GPU 0: slowed down (hw_power_brake_slowdown)"),
    ("heat", [one(0, state={"throttle_reasons": ("hw_thermal_slowdown",)})],
     "GPU 0: slowed down (hw_thermal_slowdown)"),
    ("heat in a third of a long load",
     [one(0, states=[READING] * 20 + [HOT] * 10)], "GPU 0: slowed down (hw_thermal_slowdown)"),
    ("heat where the driver reports no load",
     [one(0, state={"throttle_reasons": ("sw_thermal_slowdown",), "clock_sm_mhz": 900,
                    "utilization_percent": None})], "GPU 0: slowed down (sw_thermal_slowdown)"),
    ("heat, and the last reading is of after the load",
     [one(0, states=[COOLED] * 9 + [replace(COOLED, utilization_percent=0)])],
     "GPU 0: slowed down (sw_thermal_slowdown)"),
    ("a clock without reason", [one(0, state={"throttle_reasons": (), "clock_sm_mhz": 345})],
     "GPU 0: SM clock 345 of 1980 MHz under load"),
    ("an error", [one(0), one(1, error="RuntimeError: no", rounds=0)],
     "GPU 1: failed under load"),
    ("a hang", [one(0), one(1, ended=False)], "GPU 1: its work did not end"),
    ("a hang before the load", [one(0, rounds=0), one(1, ended=False, rounds=0)],
     "GPU 1: its work did not end"),
    ("no work was done at all", [one(0, rounds=0), one(1, rounds=0)],
     "GPU 0-1: it was not ready within 90 s"),
)  # fmt: skip
def test_what_does_not_hold_is_named(found: list[Burn], words: str) -> None:
    outcome = judge(*found)
    assert outcome.status is Status.FAIL
    assert outcome.message.startswith(words)
    assert outcome.cause
    assert outcome.fix


@cases(
    "found at_fault",
    ("the only GPU", [one(0, wrong=1)], NODE),
    ("the CPU", [one(0, "CPU", wrong=1, states=[])], UNKNOWN),
    ("one of two", [one(0), one(1, wrong=1)], NODE),
    ("all of them: the image may be at fault", [one(0, wrong=1), one(1, wrong=1)], UNKNOWN),
    ("one of two fails", [one(0), one(1, error="RuntimeError: no")], NODE),
    ("all fail", [one(0, error="RuntimeError: no"), one(1, error="RuntimeError: no")], UNKNOWN),
    ("a clock that may be locked",
     [one(0, state={"throttle_reasons": (), "clock_sm_mhz": 345})], UNKNOWN),
    ("all hang", [one(0, ended=False), one(1, ended=False)], UNKNOWN),
)  # fmt: skip
def test_what_is_at_fault(found: list[Burn], at_fault: str) -> None:
    assert judge(*found).at_fault == at_fault


def test_a_gpu_that_nvml_does_not_list_is_no_cpu() -> None:
    """As on Jetson, or where NVML fails before and after."""
    silent = State()
    found = [replace(one(0, "Orin", states=[]), card=RatedCard(0, "Orin", None))]
    outcome = judge_burn(found, silent, silent, "bf16", 1.0)
    assert (outcome.status, outcome.measured["device"]) == (Status.PASS, "cuda")
    assert outcome.message.startswith("1 GPU at full load")


def test_errors_that_came_with_the_load_are_named() -> None:
    after = State(gpus=(replace(READING, uuid="0", ecc_uncorrected=1),), found=True)
    outcome = judge(one(0), after=after)
    assert outcome.message == "GPU 0: 1 more uncorrected ECC errors since the run began"


@given(st.lists(st.integers(900, 1000), min_size=3, max_size=8))
def test_equal_gpus_that_differ_by_a_tenth_pass(rounds: list[int]) -> None:
    assert judge(*(one(i, rounds=r) for i, r in enumerate(rounds))).status is Status.PASS


# The option


@cases(
    "only require burn names",
    ("not asked for", None, "gpu", None, (None, "gpu")),
    ("it is required", None, None, 5.0, (None, "health.burn")),
    ("beside others", "speed", "gpu", 5.0, ("speed,health.burn", "gpu,health.burn")),
)
def test_the_option_asks_for_its_check(
    only: str | None, require: str | None, burn: float | None, names: tuple[str | None, ...]
) -> None:
    assert with_burn(only, require, burn) == names


@pytest.mark.parametrize("text", ["0", "0.05", "-1", "nan", "inf", "20000", "soon", ""])
def test_other_times_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--burn={text}"]) == 2
    assert "--burn 30" in capsys.readouterr().err


def test_the_time_limit_grows_with_the_minutes() -> None:
    assert minutes("90") == 90
    check = Check("health.burn", "", lambda _: Outcome(Status.PASS, ""), limit_s=240, burns=True)
    assert limit_of(check, Context(burn_min=90)) == pytest.approx(240 + 90 * 60)
