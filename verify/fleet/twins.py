"""Finds nodes that are slower than their twins: nodes of one class, measured alike.

No datasheet is needed: the middle of the twins is the expectation. A node's number is slow if it is
worse than the twins' median by more than the largest of

    least     10 percent of the larger of the two: less than that is not worth a repair
    scatter   k * 1.4826 * MAD, the twins' own scatter around their median
    noise     what the number's own repeats explain (`compare.allowance`)

1.4826 * MAD (the median absolute deviation) estimates the standard deviation of normal samples and
is not moved by the outliers that it has to find; k = 3.5 is the usual limit (Iglewicz and Hoaglin,
1993; https://www.itl.nist.gov/div898/handbook/eda/section3/eda35h.htm). That limit is for many
samples: the MAD of four is often tiny by chance. `LIMITS` has the k that unchanged normal samples
exceed on one side once in 10,000 comparisons, from 1.6 million simulated comparisons for each
number of twins. Where there are so many comparisons that even this would name a sound node, k is
the normal quantile at which one false name is expected in 100 runs of this size.
"""

from __future__ import annotations

from collections import Counter
from statistics import NormalDist
from typing import List, NamedTuple, Optional, Sequence, Tuple

from verify.model.measures import HIGHER, median
from verify.reports.compare import change

LEAST_TWINS = 4
LEAST = 0.10
LEAST_ALIKE = 0.75  # of the machines of one model have the same number of GPUs
LIMITS = (
    (4, 62.0),
    (6, 23.3),
    (8, 14.5),
    (10, 10.5),
    (12, 8.9),
    (16, 7.1),
    (24, 5.7),
    (32, 5.1),
    (64, 4.3),
)
_PER_RUN = 0.01
_TO_SIGMA = 1.4826
_OF_MANY = 3.5


class Twins(NamedTuple):
    """One number of the nodes of a class. `spread` is 1.4826 * MAD, in the number's unit."""

    median: float
    spread: float
    slow: List[int]
    """Positions of the values that are slow."""
    bound: float
    """The value at which a node without noise of its own becomes slow."""


def factor(twins: int, comparisons: int) -> float:
    """How many spreads a value may be from the median, among so many twins, in a run with so many
    comparisons.
    """
    few = next((limit for count, limit in reversed(LIMITS) if twins >= count), LIMITS[0][1])
    many = NormalDist().inv_cdf(1.0 - _PER_RUN / max(comparisons, 1))
    return max(_OF_MANY, few, many)


def compare_twins(
    values: Sequence[float], noises: Sequence[float], better: str, comparisons: int
) -> "Twins | None":
    """The values of at least four twins, and which are slow; None: there are fewer. `noises` are
    relative (`compare.noise`).
    """
    if len(values) < LEAST_TWINS:
        return None
    middle = median(values)
    spread = _TO_SIGMA * median([abs(value - middle) for value in values])
    away = factor(len(values), comparisons) * spread
    sign = 1.0 if better == HIGHER else -1.0
    slow = [
        place
        for place, value in enumerate(values)
        if sign * (middle - value) > away
        and -sign * change(middle, value) > max(LEAST, noises[place])
    ]
    least = middle * (1.0 - LEAST) if better == HIGHER else middle / (1.0 - LEAST)
    bound = min(least, middle - away) if better == HIGHER else max(least, middle + away)
    return Twins(middle, spread, slow, bound)


def with_fewer(counts: Sequence[int]) -> Optional[Tuple[int, List[int]]]:
    """The number that nearly all machines of a model have, and the positions of those with fewer.
    None: there are fewer than four of them, or each is fitted as its owner liked.
    """
    usual, alike = Counter(counts).most_common(1)[0] if counts else (0, 0)
    if alike < LEAST_TWINS or alike < LEAST_ALIKE * len(counts):
        return None
    return usual, [place for place, count in enumerate(counts) if count < usual]
