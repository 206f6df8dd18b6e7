"""Faults that show under the load of all GPUs: three pretended ones, of which the second is bad."""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace
from typing import Any, Callable

from tests.mutations import pretended, rows
from tests.mutations.patching import backend
from verify.model.frameworks import FRAMEWORKS


def three() -> None:
    """Three GPUs of one name, loaded for a few seconds."""
    from verify.checks.speed import burn

    pretended.pretend(
        next(name for name, one in FRAMEWORKS.items() if one.module in sys.modules), 3
    )
    burn.USUAL_MIN = 0.05


def the_cpu() -> None:
    """This machine's CPU, for a second."""
    from verify.checks.speed import burn

    burn.ON_CPU_S = 1.0


def multiplying(change: Callable[[Any], Any], index: int = 1) -> Callable[[], None]:
    """What the second card multiplies is changed. All three cards have one name."""

    def seed() -> None:
        vars(pretended).update(name_of=lambda _: pretended.NAME)
        kind: Any = type(backend().place("cpu"))
        real = kind.multiply

        def multiply(place: Any, left: Any, right: Any, dtype: str) -> Any:
            found = real(place, left, right, dtype)
            return change(found) if place.index == index else found

        kind.multiply = multiply

    return seed


def now_and_then() -> Callable[[Any], Any]:
    """Each twentieth product is doubled."""
    calls = itertools.count(1)
    return lambda found: found if next(calls) % 20 else found + found


def late(found: Any) -> Any:
    """A card that takes its time."""
    time.sleep(0.2)
    return found


def fail(_: Any) -> Any:
    """A card that fails."""
    raise RuntimeError("CUDA error: an illegal instruction was encountered")


def reading(**fields: Any) -> Callable[[], None]:
    """NVML says this of the second card while it is loaded, and afterwards."""

    def seed() -> None:
        from verify.device import state

        seen = state.read()
        bad = (seen.gpus[0], replace(seen.gpus[1], **fields), *seen.gpus[2:])
        looks = itertools.count()
        state.read = lambda *_: replace(seen, gpus=bad) if next(looks) else seen
        setattr(pretended.Live, "gpus", lambda *_: bad)  # noqa: B010

    return seed


HEAT = ("sw_thermal_slowdown",)
BRAKE = ("hw_power_brake_slowdown",)
_ROWS = (
    *rows(
        "health.burn",
        ("it flips bits now and then", multiplying(now_and_then()), "have other bits than the"),
        ("it is always wrong", multiplying(lambda found: found + found), "those of equal GPUs"),
        ("it is slow", multiplying(late), "GPU 1: behind the equal GPUs"),
        ("it fails under load", multiplying(fail), "an illegal instruction"),
        ("the power supply brakes it", reading(throttle_reasons=BRAKE), "a power brake"),
        (
            "it is hot, and its driver reports no load",
            reading(throttle_reasons=HEAT, clock_sm_mhz=600, utilization_percent=None),
            "GPU 1: slowed down (sw_thermal_slowdown)",
        ),
        ("its memory loses data", reading(ecc_uncorrected=3), "3 more uncorrected ECC errors"),
        ("it is lost", reading(failure="GPU is lost"), "GPU 1: it answered before the run"),
        (
            "its clock stays low",
            reading(throttle_reasons=(), clock_sm_mhz=300),
            "GPU 1: SM clock 300 of 1410 MHz",
        ),
        sound=three,
        level="full",
    ),
    *rows(
        "health.burn",
        ("the CPU flips bits", multiplying(now_and_then(), index=0), "silent data corruption"),
        sound=the_cpu,
        level="full",
        on_cpu=True,
    ),
)
ROWS = {"pytorch": _ROWS, "tensorflow": _ROWS, "jax": _ROWS}
