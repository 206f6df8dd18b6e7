"""Which of several alike nodes is slow: rules, false alarms in simulation, and their limits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.fleet.twins import LEAST, LIMITS, compare_twins, factor, with_fewer

QUIET = (0.0,)


def slow(values: list[float], better: str = "higher", comparisons: int = 100) -> list[int] | None:
    found = compare_twins(values, [0.0] * len(values), better, comparisons)
    return None if found is None else found.slow


@pytest.mark.parametrize(
    ("values", "better", "expected"),
    [
        pytest.param([100, 100, 100], "higher", None, id="three are too few"),
        pytest.param([100, 100, 100, 80], "higher", [3], id="four, and one is slow"),
        pytest.param([100, 100, 100, 91], "higher", [], id="less than 10 percent"),
        pytest.param([100, 100, 100, 150], "higher", [], id="faster is no fault"),
        pytest.param([10, 10, 10, 12], "lower", [3], id="a latency"),
        pytest.param([10, 10, 10, 8], "lower", [], id="a shorter latency"),
        pytest.param([100, 99, 101, 100, 100.5, 99.5, 80, 81], "higher", [6, 7], id="two of eight"),
        pytest.param([100, 60, 140, 80, 120], "higher", [], id="all are far apart"),
        pytest.param([0, 0, 0, 0], "higher", [], id="nothing was measured"),
        pytest.param([0, 0, 0, 5], "lower", [3], id="errors, which others do not have"),
        pytest.param([100, 100, 100, 0], "higher", [3], id="it stands still"),
    ],
)
def test_who_is_slow(values: list[float], better: str, expected: list[int] | None) -> None:
    assert slow(values, better) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param([8, 8, 7, 8, 8], (8, [2]), id="one of five has lost a GPU"),
        pytest.param([8] * 20 + [7, 6], (8, [20, 21]), id="two of many"),
        pytest.param([8, 8, 8, 8], (8, []), id="all have eight"),
        pytest.param([4, 4, 4, 4, 8], (4, []), id="more than usual is no fault"),
        pytest.param([8, 8, 8, 7], None, id="three alike are too few"),
        pytest.param([8, 8, 8, 8, 4, 4], None, id="a model that is sold with four or eight"),
        pytest.param([], None, id="no machine"),
    ],
)
def test_who_has_fewer_gpus(counts: list[int], expected: tuple[int, list[int]] | None) -> None:
    assert with_fewer(counts) == expected


def test_a_number_that_its_own_repeats_explain_is_not_slow() -> None:
    values = [100.0, 100.0, 100.0, 80.0]
    found = compare_twins(values, [0.0, 0.0, 0.0, 0.3], "higher", 100)
    assert found is not None
    assert found.slow == []


def test_more_comparisons_need_more_distance_and_more_twins_less() -> None:
    factors = [factor(twins, 100) for twins in (4, 7, 8, 10, 12, 16, 24, 32, 64, 10_000)]
    assert factors == sorted(factors, reverse=True)
    assert factor(10_000, 10) < factor(10_000, 10_000_000)
    assert factor(4, 1) == LIMITS[0][1]


@pytest.mark.parametrize(("twins", "scatter"), [(4, 0.05), (8, 0.1), (32, 0.2), (500, 0.3)])
def test_normal_scatter_is_no_fault(twins: int, scatter: float) -> None:
    """20,000 numbers of sound nodes: about one in 10,000 may be named."""
    chance = random.Random(twins)
    named = 0
    for _ in range(20_000 // twins):
        values = [100 * (1 + chance.gauss(0, scatter)) for _ in range(twins)]
        named += len(slow(values, comparisons=20_000) or [])
    assert named <= 6


@pytest.mark.parametrize("twins", [8, 32, 500])
def test_a_fifth_less_is_found_among_nodes_that_scatter_by_a_percent(twins: int) -> None:
    chance = random.Random(3)
    found = 0
    for _ in range(100):
        values = [100 * (1 + chance.gauss(0, 0.01)) for _ in range(twins)]
        values[0] *= 0.75
        found += slow(values, comparisons=10_000) == [0]
    assert found >= 85


FLOATS = st.floats(min_value=0, max_value=1e300, allow_nan=False)


@given(st.lists(FLOATS, min_size=4, max_size=30), st.sampled_from(["higher", "lower"]))
def test_no_more_than_half_are_slow_and_each_by_a_tenth(values: list[float], better: str) -> None:
    found = compare_twins(values, [0.0] * len(values), better, 100)
    assert found is not None
    assert len(found.slow) <= len(values) / 2
    for place in found.slow:
        low, high = sorted((values[place], found.median))
        assert high - low > LEAST * high * 0.999
        assert (values[place] < found.median) == (better == "higher")
