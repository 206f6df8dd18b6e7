"""Finds the nodes and links that spoil a run over all nodes, in few rounds of smaller groups.

A round runs disjoint groups at the same time. After the run over all nodes, pairs connect the nodes
that work together, as Boruvka's algorithm builds a spanning tree: each round halves the number of
parts, and a node that works with nobody stays alone. If all are connected and the whole still
fails, the nodes are split by each bit of their numbers: which halves fail says in which bits the
ends of a bad link are equal, and the links that are left are disjoint, so one round tries all.

What is named is proven by runs: a node by failures with three nodes (or all) that work with others,
a link by a failure of two nodes that work with others, a split by three failures between two parts.
What the rounds do not tell apart is not named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

Group = tuple[str, ...]
Pair = tuple[str, str]


class GroupEnd(NamedTuple):
    """How the run of one group ended. `named`: nodes that it shows to be at fault by themselves,
    and why: one that is gone, or whose process died.
    """

    ok: bool
    named: Mapping[str, str] = {}


class AcrossDiagnosis(NamedTuple):
    """What is wrong. All fields are empty for sound nodes.

    `named`: nodes at fault by themselves, with the reason. `sick`: nodes that fail with partners
    that work with others. `links`: pairs that fail although both work with others. `parts`: groups
    that work within and not with each other. `suspects`: nodes of which some are at fault, which
    the rounds do not tell apart. `together`: every pair that was tried works, all together do not.
    `complete`: what was not named was run together without these, and worked.
    """

    named: Mapping[str, str]
    sick: tuple[str, ...] = ()
    links: tuple[Pair, ...] = ()
    parts: tuple[Group, ...] = ()
    suspects: tuple[str, ...] = ()
    together: bool = False
    complete: bool = True
    rounds: int = 0

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.named or self.sick or self.links or self.parts or self.suspects
        return not (wrong or self.together)


Run = Callable[[Sequence[Group]], Sequence[GroupEnd]]


def most_rounds(nodes: int) -> int:
    """An upper bound on the rounds for so many nodes."""
    return _WHOLES + _pair_rounds(nodes) + _bits(nodes) + 1 + 2 * _CONFIRMATIONS


_WHOLES = 3
_CONFIRMATIONS = 2
_FAILURES = 3  # of a node with nodes that work, to name it; two may be two bad links
_IN_VAIN, _FEW = 4, 8  # rounds in which no pair works, of more nodes than these


def _bits(nodes: int) -> int:
    return max(1, (nodes - 1).bit_length())


def _pair_rounds(nodes: int) -> int:
    return 2 * _bits(nodes) + 2


def diagnose(nodes: Sequence[str], run: Run) -> AcrossDiagnosis:
    """What is wrong with these nodes, two or more. `run` is called once a round."""
    return _Search(tuple(nodes), run).find()


class _Search:
    def __init__(self, nodes: Group, run: Run) -> None:
        self.alive = list(nodes)
        self.named: dict[str, str] = {}
        self.works: set[frozenset[str]] = set()
        self.fails: set[frozenset[str]] = set()
        self.rounds = 0
        self._run = run

    def find(self) -> AcrossDiagnosis:
        if self._whole():
            return self._answer(complete=len(self.alive) > 1)  # one alone was not tried
        if len(self.alive) < 3:
            return self._answer(suspects=tuple(self.alive), complete=False)
        self._pairs()
        parts = self._parts()
        large = [part for part in parts if len(part) > 1]
        if not large:
            return self._answer(suspects=tuple(self.alive), complete=False)
        sick, unsure = self._alone(parts)
        if len(large) > 1:
            return self._apart(large, sick, unsure)
        links = self._links()
        if not (links or sick or unsure):
            links = self._by_bits()
        return self._connected(sick, links, unsure)

    # What a round is

    def _round(self, groups: Sequence[Group]) -> list[bool]:
        """Run disjoint groups. Nodes that are shown to be at fault take no further part."""
        self.rounds += 1
        ends = self._run(groups)
        for group, end in zip(groups, ends, strict=True):
            for node, why in end.named.items():
                self.named.setdefault(node, why)
            if len(group) == 2 and (end.ok or not set(end.named) & set(group)):
                (self.works if end.ok else self.fails).add(frozenset(group))
        self.alive = [node for node in self.alive if node not in self.named]
        return [end.ok for end in ends]

    def _whole(self) -> bool:
        """Whether all nodes work together; without those that are at fault by themselves."""
        for _ in range(_WHOLES):
            before = len(self.alive)
            if before < 2 or self._round([tuple(self.alive)])[0]:
                return True
            if len(self.alive) == before:
                return False
        return len(self.alive) < 2

    def _answer(
        self,
        sick: Iterable[str] = (),
        links: Iterable[Pair] = (),
        parts: Iterable[Group] = (),
        suspects: Iterable[str] = (),
        *,
        together: bool = False,
        complete: bool = True,
    ) -> AcrossDiagnosis:
        return AcrossDiagnosis(
            dict(self.named),
            tuple(sick),
            tuple(links),
            tuple(parts),
            tuple(node for node in suspects if node not in self.named),
            together,
            complete,
            self.rounds,
        )

    # Pairs

    def _pairs(self) -> None:
        """Rounds of pairs until the parts are connected, or known not to be."""
        for number in range(_pair_rounds(len(self.alive))):
            pairs = self._next_pairs()
            if not pairs or (number >= _IN_VAIN and len(self.alive) > _FEW and not self.works):
                return
            self._round(pairs)

    def _parts(self) -> list[Group]:
        """The nodes that are connected by pairs that work, the largest first."""
        part = {node: [node] for node in self.alive}
        for one in self.works:
            first, second = sorted(one)
            if first in part and second in part and part[first] is not part[second]:
                part[first].extend(part[second])
                for node in part[second]:
                    part[node] = part[first]
        order = {node: number for number, node in enumerate(self.alive)}
        found = {id(nodes): tuple(sorted(nodes, key=order.__getitem__)) for nodes in part.values()}
        return sorted(found.values(), key=lambda nodes: (-len(nodes), order[nodes[0]]))

    def _next_pairs(self) -> list[Group]:
        """Disjoint pairs between parts about which more must be known, untried parts first."""
        parts, used, pairs = self._parts(), set[str](), list[Group]()
        failed = self._failed_between(parts)
        numbers = range(len(parts))
        todo = [pair for pair in combinations(numbers, 2) if not self._decided(parts, failed, pair)]
        # neighbours first: nodes of one rack are more likely to reach each other
        todo.sort(key=lambda pair: (len(failed.get(pair, ())), pair[1] - pair[0]))
        for first, second in todo:
            pair = self._untried(parts[first], parts[second], failed.get((first, second), []), used)
            if pair:
                used.update(pair)
                pairs.append(pair)
        return pairs

    def _untried(
        self, first: Group, second: Group, failed: Sequence[frozenset[str]], used: set[str]
    ) -> Pair | None:
        known = {node for pair in failed for node in pair}
        free = [
            sorted((node for node in part if node not in used), key=known.__contains__)
            for part in (first, second)
        ]
        for one in free[0]:
            for other in free[1]:
                if frozenset((one, other)) not in self.fails:
                    return one, other
        return None

    def _failed_between(
        self, parts: Sequence[Group]
    ) -> dict[tuple[int, int], list[frozenset[str]]]:
        """Pairs that failed, by the numbers of the two parts."""
        part_of = {node: number for number, part in enumerate(parts) for node in part}
        found: dict[tuple[int, int], list[frozenset[str]]] = {}
        for pair in sorted(self.fails, key=sorted):
            if pair <= part_of.keys():
                first, second = sorted(part_of[node] for node in pair)
                found.setdefault((first, second), []).append(pair)
        return found

    @staticmethod
    def _decided(
        parts: Sequence[Group],
        failed: Mapping[tuple[int, int], Sequence[frozenset[str]]],
        pair: tuple[int, int],
    ) -> bool:
        """Whether enough pairs of the two failed. Of two parts, also two pairs without a common
        node: failures of one node say nothing of the others.
        """
        first, second = (parts[number] for number in pair)
        found = failed.get(pair, ())
        if min(len(first), len(second)) > 1:
            apart = any(not one & other for one, other in combinations(found, 2))
            return apart and len(found) >= _FAILURES
        return len(found) >= min(_FAILURES, max(len(first), len(second)))

    def _alone(self, parts: Sequence[Group]) -> tuple[list[str], list[str]]:
        """Nodes that work with nobody: those that failed often enough with nodes that do work, and
        those about which that is not known.
        """
        alone = [part[0] for part in parts if len(part) == 1]
        good = {node for part in parts if len(part) > 1 for node in part}
        needed = min(_FAILURES, max(len(part) for part in parts))
        failed = [next(iter(pair - good)) for pair in self.fails if len(pair & good) == 1]
        sick = [node for node in alone if failed.count(node) >= needed]
        return sick, [node for node in alone if node not in sick]

    def _links(self) -> list[Pair]:
        """Pairs that failed, whose nodes are connected otherwise."""
        found = []
        for part in self._parts():
            inside = set(part)
            found += [_sorted(pair) for pair in self.fails if pair <= inside]
        return sorted(found)

    # Halves

    def _by_bits(self) -> list[Pair]:
        """Bad links that no pair has shown yet, if the halves leave few enough."""
        nodes = list(self.alive)
        left = set(combinations(range(len(nodes)), 2))
        for bit in range(_bits(len(nodes))):
            numbers = [[i for i in range(len(nodes)) if i >> bit & 1 == side] for side in (0, 1)]
            groups = [tuple(nodes[i] for i in side) for side in numbers if len(side) > 1]
            ends = self._round(groups) if groups else []
            failed = {
                nodes.index(group[0]) >> bit & 1
                for group, ok in zip(groups, ends, strict=True)
                if not ok
            }
            if len(failed) == 2 or len(self.alive) < len(nodes):
                return []
            left = {pair for pair in left if _sides(pair, bit) == failed}
        tried = self.works | self.fails
        pairs = [(nodes[i], nodes[j]) for i, j in sorted(left)]
        new = [pair for pair in _disjoint(pairs) if frozenset(pair) not in tried]
        if new:
            self._round(new)
        return self._links()

    # Whether that is all

    def _confirmed(self, groups: Sequence[Group]) -> bool:
        """Whether these groups work; once more if a node failed by itself meanwhile."""
        for _ in range(_CONFIRMATIONS):
            now = [tuple(n for n in group if n not in self.named) for group in groups]
            now = [group for group in now if len(group) > 1]
            before = len(self.named)
            if not now or all(self._round(now)):
                return True
            if len(self.named) == before:
                return False
        return False

    def _apart(self, large: Sequence[Group], sick: list[str], unsure: list[str]) -> AcrossDiagnosis:
        complete = self._confirmed(large) and not unsure and not self._links()
        failed = self._failed_between(large)
        if not all(self._decided(large, failed, p) for p in combinations(range(len(large)), 2)):
            return self._answer(sick=sick, suspects=self.alive, complete=False)
        return self._answer(sick, self._links(), large, unsure, complete=complete)

    def _connected(self, sick: list[str], links: list[Pair], unsure: list[str]) -> AcrossDiagnosis:
        ends = [node for link in links for node in link]
        common = sorted({node for node in ends if ends.count(node) > 1})
        if common:  # two bad links of one node, or a node that sometimes works
            involved = dict.fromkeys([*common, *ends])
            return self._answer(sick, (), (), [*involved, *unsure], complete=False)
        rest = tuple(n for n in self.alive if n not in {*sick, *unsure})
        if not (sick or links or unsure):
            return self._answer(together=True, complete=False)
        complete = not unsure and len(links) < 2
        for side in (0, 1) if links else (0,):
            out = {link[side] for link in links}
            complete = self._confirmed([tuple(n for n in rest if n not in out)]) and complete
        return self._answer(sick, links, (), unsure, complete=complete)


def _sorted(pair: frozenset[str]) -> Pair:
    first, second = sorted(pair)
    return first, second


def _sides(pair: tuple[int, int], bit: int) -> set[int]:
    """The half that has both, if one has."""
    sides = {number >> bit & 1 for number in pair}
    return sides if len(sides) == 1 else set()


def _disjoint(pairs: Iterable[Pair]) -> Iterator[Pair]:
    used: set[str] = set()
    for pair in pairs:
        if not used & set(pair):
            used.update(pair)
            yield pair
