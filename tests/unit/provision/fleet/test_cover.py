"""The cover is the smallest that there is, compared with trying every partition."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from provision.fleet.cover import Cover, cover
from tests.kit.cases import cases

Sets = frozenset[int]
ROWS = st.lists(st.frozensets(st.integers(0, 5), min_size=1), min_size=1, max_size=6)


def newest(rows: list[frozenset[int]]) -> Callable[[Sets], tuple[object, ...]]:
    return lambda found: (max(frozenset.intersection(*(rows[i] for i in found))),)


def shares(rows: list[frozenset[int]], found: Sets) -> bool:
    return bool(frozenset.intersection(*(rows[i] for i in found)))


def smallest(count: int, serves: Callable[[Sets], bool]) -> int:
    """By trying all sets that have an image, and all choices of them."""
    sizes = range(1, count + 1)
    every = [frozenset(c) for n in sizes for c in itertools.combinations(range(count), n)]
    good = [one for one in every if serves(one)]
    for most in sizes:
        for chosen in itertools.combinations(good, most):
            if len(frozenset().union(*chosen)) == count:
                return most
    raise AssertionError


def holds(found: Cover, rows: list[frozenset[int]], serves: Callable[[Sets], bool]) -> None:
    assert frozenset().union(*found.sets) == frozenset(range(len(rows)))
    assert all(serves(one) for one in found.sets)
    assert all(not rows[a] & rows[b] for a, b in itertools.combinations(found.apart, 2))
    assert len(found.apart) in {0, found.at_least}


@settings(max_examples=300)
@given(ROWS)
def test_no_smaller_cover_exists_where_a_common_build_is_enough(rows: list[frozenset[int]]) -> None:
    def serves(one: Sets) -> bool:
        return shares(rows, one)

    found = cover(rows, serves, newest(rows))
    holds(found, rows, serves)
    assert found.proven
    assert len(found.sets) == smallest(len(rows), serves)


@settings(max_examples=300)
@given(ROWS, st.sets(st.frozensets(st.integers(0, 5), min_size=2), max_size=12))
def test_no_smaller_cover_exists_where_some_sets_have_no_image(
    rows: list[frozenset[int]], refused: set[Sets]
) -> None:
    """Sets are refused though they share a build, also such whose supersets are not refused."""

    def serves(one: Sets) -> bool:
        return shares(rows, one) and one not in refused

    found = cover(rows, serves, newest(rows))
    holds(found, rows, serves)
    assert found.proven
    assert len(found.sets) == smallest(len(rows), serves)


@settings(max_examples=100)
@given(ROWS, st.sets(st.frozensets(st.integers(0, 5), min_size=2), max_size=12))
def test_a_search_that_is_cut_short_says_so(rows: list[frozenset[int]], refused: set[Sets]) -> None:
    def serves(one: Sets) -> bool:
        return shares(rows, one) and one not in refused

    best = smallest(len(rows), serves)
    for steps, splits in ((1, 200), (200_000, 1)):
        found = cover(rows, serves, newest(rows), most_steps=steps, most_splits=splits)
        holds(found, rows, serves)
        assert found.at_least <= best <= len(found.sets)


@cases(
    "rows sets apart",
    ("no class needs no image", [], 0, 0),
    ("one build for all", [{1, 2}, {2, 3}, {2}], 1, 1),
    ("three of which no two share a build", [{1}, {2}, {3}], 3, 3),
    ("each pair shares one, all three do not", [{1, 2}, {2, 3}, {3, 1}], 2, 0),
    ("the first goes with either", [{1, 2}, {1}, {2}], 2, 2),
)
def test_how_many_sets(rows: list[set[int]], sets: int, apart: int) -> None:
    frozen = [frozenset(row) for row in rows]
    found = cover(frozen, lambda one: shares(frozen, one), newest(frozen))
    assert (len(found.sets), len(found.apart), found.proven) == (sets, apart, True)


def test_the_first_class_gets_the_newest_build_that_the_fewest_sets_allow() -> None:
    rows = [frozenset({1, 2, 9}), frozenset({1}), frozenset({2})]
    found = cover(rows, lambda one: shares(rows, one), newest(rows))
    assert found.sets[0] == frozenset({0, 2})


def test_sixteen_kinds_at_their_worst_are_exact() -> None:
    """Each pair of neighbours has a build of its own: eight images, found by the search."""
    rows = [frozenset({number, (number + 1) % 16}) for number in range(16)]
    found = cover(rows, lambda one: shares(rows, one), newest(rows))
    assert (len(found.sets), found.proven) == (8, True)
