"""The fewest sets that cover all classes: exact, with a lower bound. Pure.

A class is a number, a row is the builds that run on that class alone. One build for several classes
must run on each of them, so the sets with a common build contain every set that can have one image:
the fewest that cover all classes are a lower bound. Only the sets of such a cover are passed
to `serves`, which finds out whether they have an image. A set without one is replaced by those with
one class less, and the search is repeated. What it finds in the end are sets that have images, and
as few as the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

MOST_STEPS = 200_000
"""Sets tried in a search; the fleets in the tests need a few hundred."""
MOST_SPLITS = 200
"""Sets without an image that are replaced."""


class Cover(NamedTuple):
    """Sets of classes that together hold each class. `at_least`: no cover has fewer sets.
    `apart` are classes of which no two have a common build, as many as there are sets if that
    proves the bound, else ().
    """

    sets: tuple[frozenset[int], ...]
    at_least: int
    apart: tuple[int, ...]

    @property
    def proven(self) -> bool:
        """Whether no smaller cover exists."""
        return len(self.sets) == self.at_least


class _Stopped(Exception):  # noqa: N818  internal
    """The search took too long."""


def cover(
    rows: Sequence[frozenset[Hashable]],
    serves: Callable[[frozenset[int]], bool],
    rank: Callable[[frozenset[int]], tuple[object, ...]],
    *,
    most_steps: int = MOST_STEPS,
    most_splits: int = MOST_SPLITS,
) -> Cover:
    """The fewest sets that cover all classes; no row is empty. Of equally small covers the one
    that gives class 0 the set of the highest `rank`, then class 1, and so on.
    """
    sets = _largest(_of_builds(rows))
    bound = min(1, len(rows))
    for _ in range(most_splits):
        try:
            found = _fewest(len(rows), sets, bound, rank, most_steps)
        except _Stopped as stop:
            bound = stop.args[0]
            break
        bound = len(found)
        refused = [one for one in found if not serves(one)]
        if not refused:
            return Cover(tuple(found), bound, _apart(rows, bound))
        sets = _largest((sets - {*refused}) | {one - {x} for one in refused for x in one})
    return Cover(tuple(_greedy(len(rows), serves)), bound, ())


def _of_builds(rows: Sequence[frozenset[Hashable]]) -> set[frozenset[int]]:
    classes: dict[Hashable, set[int]] = {}
    for number, row in enumerate(rows):
        for build in row:
            classes.setdefault(build, set()).add(number)
    return {frozenset(one) for one in classes.values()}


def _largest(sets: Iterable[frozenset[int]]) -> set[frozenset[int]]:
    """Those that no other contains."""
    ordered = sorted({one for one in sets if one}, key=len, reverse=True)
    kept: list[frozenset[int]] = []
    for one in ordered:
        if not any(one <= other for other in kept):
            kept.append(one)
    return set(kept)


def _fewest(
    count: int,
    sets: Iterable[frozenset[int]],
    least: int,
    rank: Callable[[frozenset[int]], tuple[object, ...]],
    most_steps: int,
) -> list[frozenset[int]]:
    """The smallest cover by these sets. _Stopped: the size below which there is none."""
    ordered = sorted(sets, key=sorted)
    ordered.sort(key=rank, reverse=True)
    choices = [[one for one in ordered if number in one] for number in range(count)]
    steps = 0
    dead: set[tuple[frozenset[int], int]] = set()

    def search(left: frozenset[int], most: int) -> list[frozenset[int]] | None:
        nonlocal steps
        if not left:
            return []
        if most == 0 or (left, most) in dead:
            return None
        for one in choices[min(left)]:
            steps += 1
            if steps > most_steps:
                raise _Stopped
            found = search(left - one, most - 1)
            if found is not None:
                return [one, *found]
        dead.add((left, most))
        return None

    for most in range(least, count + 1):
        try:
            found = search(frozenset(range(count)), most)
        except _Stopped:
            raise _Stopped(most) from None
        if found is not None:
            return found
    return []


def _apart(rows: Sequence[frozenset[Hashable]], wanted: int) -> tuple[int, ...]:
    """That many classes of which no two have a common build; () if there are not, or if they are
    not found soon.
    """
    left = MOST_STEPS

    def grow(chosen: tuple[int, ...], others: Sequence[int]) -> Iterator[tuple[int, ...]]:
        nonlocal left
        left -= 1
        if len(chosen) == wanted:
            yield chosen
        for position, number in enumerate(others):
            if left < 0 or len(chosen) + len(others) - position < wanted:
                return
            rest = [one for one in others[position + 1 :] if not rows[one] & rows[number]]
            yield from grow((*chosen, number), rest)

    alike = list({row: number for number, row in reversed(list(enumerate(rows)))}.values())
    return next(grow((), sorted(alike)), ())


def _greedy(count: int, serves: Callable[[frozenset[int]], bool]) -> list[frozenset[int]]:
    """Each class in the first set that has room for it: a cover, but maybe not the smallest."""
    sets: list[frozenset[int]] = []
    for number in range(count):
        for position, one in enumerate(sets):
            if serves(one | {number}):
                sets[position] = one | {number}
                break
        else:
            sets.append(frozenset({number}))
    return sets
