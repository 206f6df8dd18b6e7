"""Faults of speed: a card whose clock we hold.

The work is really done, on the CPU; what is made up is the time that it took and what NVML says.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import Any, Callable

from tests.mutations import rows
from tests.mutations.patching import backend

NAME = "NVIDIA A100-SXM4-80GB"
# what the card below does by its clock: 70 to 90 % of these
SPEC = {"memory_bandwidth_gbs": 0.5, "tflops": {"bf16": 0.25, "fp32": 0.25}}
EXPECTED = {"gpus": [{"name": NAME, "spec": SPEC}]}
DOUBTFUL = {"gpus": [{"name": NAME, "spec": {**SPEC, "sure": False}}]}
CALL_S = 0.001  # any call takes that long: 50 products make a batch, so that each is 20 us
_slower = [1.0]


def card(**changes: Any) -> Any:
    """A calm card under load."""
    from verify.device.telemetry import GpuProcess, GpuState

    calm = {
        "mig": False,
        "processes": (GpuProcess(1),),
        "temperature_c": 60,
        "power_limit_w": 400.0,
        "clock_sm_mhz": 1395,
        "clock_sm_max_mhz": 1410,
        "clock_memory_mhz": 1593,
        "clock_memory_max_mhz": 1593,
        "throttle_reasons": (),
        "pcie_generation": 3,
        "pcie_generation_max": 3,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
    return GpuState(0, NAME, "GPU-a", **{**calm, **changes})


def one_card() -> None:
    """One card of the class that the expectations give."""
    from verify.checks.speed import measured as speed
    from verify.checks.speed import rates
    from verify.checks.speed.pace import RatedCard, spec_of

    framework = backend()
    real: Any = type(framework.place("cpu"))
    there = framework.place("cpu").device

    class Held(real):  # type: ignore[misc]
        """A GPU that computes on the CPU and whose calls all take `CALL_S`."""

        device = property(lambda _: there)
        capability = property(lambda _: (7, 0))

        def seconds(
            self, work: Callable[[], object], *, repeats: int, calls: int = 1, **_: Any
        ) -> Any:
            work()
            return [CALL_S * _slower[0] / calls] * repeats

        def scope(self) -> Any:
            return real("cpu").scope()

        def release(self) -> None:
            """There is no cache to give back."""

        def cache_bytes(self) -> int:
            return 0

    place = Held("cuda")
    vars(framework).update(every=lambda _: (None, (place,)), find=lambda _: (None, place))
    vars(speed).update(
        describe=lambda context, *_: RatedCard(
            0, NAME, vars(speed)["state_now"], spec_of(NAME, None, context.expect.gpus)
        ),
        state_now=card(),
        near=lambda *_: contextlib.nullcontext(),
    )
    vars(rates).update(
        SIZES=(64, 128),
        room=lambda _: 1 << 30,
        copy_bytes=lambda *_: 4096,
        transfer_sizes=lambda _: (4096, 1 << 20),
    )
    if "torch" in sys.modules:
        import torch

        torch.Tensor.pin_memory = lambda self: self


def small_nets_only() -> None:
    """Both networks are the small one, so that the CPU needs little time for them."""
    one_card()
    from verify.checks.speed import training
    from verify.workloads import networks

    vars(networks).update(large=networks.small)
    training.BATCHES.update(small=4, large=4)


def slow_down(factor: float, **changes: Any) -> Callable[[], None]:
    """The card takes longer, and NVML says this of it."""

    def seed() -> None:
        from verify.checks.speed import measured as speed
        from verify.checks.speed import rates

        # what a batch holds was chosen at the usual pace
        right = rates.batched

        def batched(place: Any, work: Any, **more: Any) -> Any:
            return [spent * factor for spent in right(place, work, **more)]

        vars(rates).update(batched=batched)
        vars(speed).update(state_now=card(**changes))

    return seed


def a_stuck_clock() -> None:
    """A GB10 without a specification whose power supply gives it little."""
    from verify.checks.speed import measured as speed
    from verify.checks.speed.pace import RatedCard

    low = {"clock_sm_mhz": 611, "clock_sm_max_mhz": 3003, "power_w": 14.0}
    state = replace(card(**low), name="NVIDIA GB10")
    vars(speed).update(describe=lambda *_: RatedCard(0, "NVIDIA GB10", state))


def slower_than_the_cpu() -> None:
    """A step takes minutes."""
    _slower[0] = 1e5


def a_slower_twin() -> None:
    """A second card of the same name does half as much, and the figures are not known."""
    from verify.checks.speed import measured as speed
    from verify.checks.speed.pace import RatedCard

    framework = backend()
    first = framework.every(None)[1][0]
    second = type(first)("cuda", 1)
    held: Any = type(first)
    right = held.seconds

    def seconds(self: Any, *words: Any, **more: Any) -> Any:
        late = self.index == 1 and more["repeats"] > 2  # the first look at a product is of two
        return [spent * (2.0 if late else 1.0) for spent in right(self, *words, **more)]

    held.seconds = seconds
    vars(framework).update(every=lambda _: (None, (first, second)))
    vars(speed).update(
        describe=lambda _, place, *__: RatedCard(place.index, NAME, card(clock_sm_mhz=600)),
    )


HALF = "one of two cards is half as fast"
_EVERYWHERE = (
    *rows(
        "speed.gemm",
        (
            "the card slows itself down for heat",
            slow_down(3, throttle_reasons=("hw_thermal_slowdown",), temperature_c=93),
            "heat (93 degrees)",
        ),
        (
            "the clocks were set low",
            slow_down(3, throttle_reasons=("applications_clocks_setting",), clock_sm_mhz=420),
            "nvidia-smi -rac",
        ),
        (
            "the power limit is far too low",
            slow_down(9, throttle_reasons=("sw_power_cap",), power_limit_w=100.0),
            "power limit of 100 W",
        ),
        ("it is slow for no known reason", slow_down(3), "NVML gives no reason"),
        ("far below an uncertain figure", slow_down(9), "uncertain, but not", DOUBTFUL),
        ("its power supply gives little", a_stuck_clock, "unplug the power supply"),
        (HALF, a_slower_twin, "GPU 0 of the same model"),
        sound=one_card,
        expect=EXPECTED,
    ),
    *rows(
        "speed.memory",
        ("the memory's clock stays low", slow_down(3, clock_memory_mhz=405), "405 of 1593 MHz"),
        sound=one_card,
        expect=EXPECTED,
    ),
    *rows(
        "speed.training",
        ("the GPU is slower than the CPU", slower_than_the_cpu, "times as fast as the CPU"),
        sound=small_nets_only,
        expect=EXPECTED,
    ),
)
_COPIES = rows(
    "speed.copies",
    ("the link stays at its first generation", slow_down(4, pcie_generation=1), "1.0 of 3.0"),
    ("the host's memory is on another socket", slow_down(4), "another socket"),
    sound=one_card,
    expect=EXPECTED,
)
ROWS = {"pytorch": (*_EVERYWHERE, *_COPIES), "tensorflow": _EVERYWHERE}
ROWS["jax"] = ROWS["pytorch"]
