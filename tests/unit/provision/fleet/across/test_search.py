"""Simulated fleets with seeded faults: what is named is what was seeded, or it is not named."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.fleet.across.search import AcrossDiagnosis, Group, GroupEnd, diagnose, most_rounds
from tests.kit.cases import cases


class Fleet:
    """Nodes of which some give wrong sums, some die in a round, some links are bad, and some groups
    do not reach each other. It holds that groups are disjoint and have at least two nodes.
    """

    def __init__(
        self,
        count: int,
        sick: Sequence[int] = (),
        links: Sequence[tuple[int, int]] = (),
        dead: dict[int, int] | None = None,
        split: int = 0,
        most: int = 0,
    ) -> None:
        self.nodes = [f"n{number:02}" for number in range(count)]
        self.sick = {self.nodes[i] for i in sick}
        self.links = {frozenset((self.nodes[i], self.nodes[j])) for i, j in links}
        self.dead = {self.nodes[i]: when for i, when in (dead or {}).items()}
        self.left = set(self.nodes[:split])
        self.most = most or count  # larger groups fail
        self.rounds = 0

    def run(self, groups: Sequence[Group]) -> list[GroupEnd]:
        self.rounds += 1
        members = [node for group in groups for node in group]
        assert len(members) == len(set(members))
        assert min(map(len, groups)) > 1
        return [self._end(set(group)) for group in groups]

    def _end(self, group: set[str]) -> GroupEnd:
        gone = {n: "gone" for n in sorted(group) if self.dead.get(n, 99) <= self.rounds}
        apart = 0 < len(group & self.left) < len(group)
        bad = any(link <= group for link in self.links)
        ok = not (gone or group & self.sick or apart or bad or len(group) > self.most)
        return GroupEnd(ok=ok, named=gone)

    def diagnose(self) -> AcrossDiagnosis:
        found = diagnose(self.nodes, self.run)
        assert found.rounds == self.rounds <= most_rounds(len(self.nodes))
        self._hold_true(found)
        return found

    def _hold_true(self, found: AcrossDiagnosis) -> None:
        """Nothing is named that is not so."""
        assert set(found.sick) <= self.sick | self._without_links(found)
        assert {frozenset(link) for link in found.links} <= self.links
        assert set(found.named) <= set(self.dead)
        for part in found.parts:
            assert self.left
            assert set(part) <= self.left or not set(part) & self.left
        if found.complete:
            assert set(found.sick) >= self.sick - set(found.named)
            near = {*self.sick, *found.named, *found.sick}
            rest = {link for link in self.links if not link & near}
            assert {frozenset(link) for link in found.links} >= rest

    def _without_links(self, found: AcrossDiagnosis) -> set[str]:
        """Nodes of which every link to a sound node is bad: that is what a sick node is."""
        sound = set(self.nodes) - self.sick - set(found.named)
        return {
            node
            for node in sound
            if all(frozenset((node, other)) in self.links for other in sound - {node})
        }


COUNTS = st.integers(2, 64)
NUMBERS = st.integers(0, 63)


@given(COUNTS)
def test_sound_nodes_need_one_round(count: int) -> None:
    found = Fleet(count).diagnose()
    assert found.sound
    assert found.rounds == 1


@given(st.integers(3, 64), NUMBERS)
def test_a_node_with_wrong_sums_is_named(count: int, number: int) -> None:
    fleet = Fleet(count, sick=[number % count])
    found = fleet.diagnose()
    assert set(found.sick) == fleet.sick
    assert found.complete
    assert (found.links, found.parts, found.suspects) == ((), (), ())


@given(st.integers(5, 64), NUMBERS, NUMBERS)
def test_two_nodes_with_wrong_sums_are_named(count: int, one: int, other: int) -> None:
    fleet = Fleet(count, sick=[one % count, other % count])
    found = fleet.diagnose()
    assert set(found.sick) == fleet.sick
    assert found.complete


@given(st.integers(3, 64), NUMBERS, NUMBERS)
def test_a_bad_link_is_named(count: int, one: int, other: int) -> None:
    first, second = one % count, other % count
    fleet = Fleet(count, links=[(first, second)] if first != second else [])
    found = fleet.diagnose()
    assert {frozenset(link) for link in found.links} == fleet.links
    assert found.complete
    assert (found.sick, found.parts, found.suspects) == ((), (), ())


@given(st.integers(4, 64), NUMBERS)
def test_a_split_network_is_told_by_its_parts(count: int, number: int) -> None:
    split = 2 + number % (count - 3)
    found = Fleet(count, split=split).diagnose()
    nodes = [f"n{i:02}" for i in range(count)]
    assert {frozenset(part) for part in found.parts} == {
        frozenset(nodes[:split]),
        frozenset(nodes[split:]),
    }
    assert found.complete


@given(st.integers(4, 64), st.lists(st.tuples(NUMBERS, st.integers(1, 12)), min_size=1, max_size=3))
def test_nodes_that_die_in_any_round_are_results(count: int, deaths: list[tuple[int, int]]) -> None:
    fleet = Fleet(count, dead={number % count: when for number, when in deaths})
    found = fleet.diagnose()
    assert set(found.named) == {n for n, when in fleet.dead.items() if when <= found.rounds}
    assert not found.suspects


@given(
    COUNTS,
    st.lists(NUMBERS, max_size=3),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=2),
    st.lists(st.tuples(NUMBERS, st.integers(1, 20)), max_size=2),
)
def test_no_wrong_name_whatever_is_broken(
    count: int, sick: list[int], links: list[tuple[int, int]], deaths: list[tuple[int, int]]
) -> None:
    fleet = Fleet(
        count,
        sick=[number % count for number in sick],
        links=[(a % count, b % count) for a, b in links if a % count != b % count],
        dead={number % count: when for number, when in deaths},
    )
    found = fleet.diagnose()
    broken = fleet.sick or fleet.links or found.named
    assert found.sound is not bool(broken)


@given(COUNTS)
def test_if_no_pair_works_nobody_is_named(count: int) -> None:
    found = Fleet(count, sick=range(count)).diagnose()
    assert found.sick == ()
    assert set(found.suspects) == {f"n{i:02}" for i in range(count)}
    assert not found.complete


@given(st.integers(5, 64))
def test_nodes_that_fail_only_all_together_are_not_named(count: int) -> None:
    found = Fleet(count, most=count - 1).diagnose()
    assert found.together
    assert not found.complete


@given(st.integers(2, 40), st.randoms(use_true_random=False), st.floats(0, 1), st.floats(0, 0.3))
def test_answers_that_contradict_each_other_end_the_search_in_time(
    count: int, chance: random.Random, works: float, dies: float
) -> None:
    nodes = [str(number) for number in range(count)]

    def run(groups: Sequence[Group]) -> list[GroupEnd]:
        assert min(map(len, groups)) > 1
        gone = [{n: "gone" for n in group if chance.random() < dies} for group in groups]
        return [GroupEnd(ok=not one and chance.random() < works, named=one) for one in gone]

    found = diagnose(nodes, run)
    assert found.rounds <= most_rounds(count)
    named = [*found.named, *found.sick, *(node for link in found.links for node in link)]
    assert set(named) <= set(nodes)
    assert not set(found.sick) & set(found.named)


def test_two_nodes_cannot_be_told_apart() -> None:
    found = Fleet(2, sick=[1]).diagnose()
    assert (found.sick, found.suspects, found.complete) == ((), ("n00", "n01"), False)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8])
def test_every_pair_of_faults_of_a_small_fleet(count: int) -> None:
    pairs = list(combinations(range(count), 2))
    for one, other in combinations(pairs, 2):
        Fleet(count, links=[one, other]).diagnose()
    for link in pairs:
        for node in range(count):
            Fleet(count, sick=[node], links=[link]).diagnose()
            for when in range(1, 8):
                Fleet(count, dead={node: when}, links=[link]).diagnose()


@pytest.mark.parametrize(("count", "rounds"), [(2, 13), (3, 16), (8, 19), (64, 28), (1024, 40)])
def test_the_bound_on_the_rounds(count: int, rounds: int) -> None:
    assert most_rounds(count) == rounds


@cases(
    "fleet rounds",
    ("a sick node", Fleet(64, sick=[17]), 9),
    ("a bad link", Fleet(64, links=[(5, 40)]), 16),
    ("a split network", Fleet(64, split=32), 10),
    ("a dead node", Fleet(64, dead={9: 1}), 2),
)
def test_rounds_that_single_faults_of_64_nodes_need(fleet: Fleet, rounds: int) -> None:
    assert fleet.diagnose().rounds <= rounds
