"""Which lines belong together: a symptom of several parts holds within one message.

A log of a day holds every word somewhere. That one line speaks of a failed module and another,
thousands of lines on, of NVIDIA says nothing; side by side they do.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from provision.doctor.literals import is_common
from provision.doctor.model import Hit, Symptom

# The longest thing that is one message: a traceback with the output of a build in it, the lines of
# eight ranks between one another.
MESSAGE = 60
# Parts of which one stands in any log of a machine with a GPU must be of one paragraph.
PARAGRAPH = 12


def within(symptom: Symptom) -> int:
    """How many lines the parts of a symptom may be apart."""
    if symptom.within:
        return symptom.within
    return PARAGRAPH if any(map(is_common, symptom.parts)) else MESSAGE


def spread(hits: Sequence[Hit]) -> int | None:
    """From the first of some hits to the last, in lines; None where they are of several texts."""
    if len({hit.source for hit in hits}) > 1:
        return None
    numbers = [hit.number for hit in hits]
    return max(numbers) - min(numbers)


def is_together(symptom: Symptom, hits: Sequence[Hit]) -> bool:
    """Whether the hits of a symptom's parts are near enough to one another."""
    apart = spread(hits)
    return apart is not None and apart <= within(symptom)


def is_near(one: Hit, other: Hit) -> bool:
    """Whether two lines are of one paragraph."""
    apart = spread([one, other])
    return apart is not None and apart <= PARAGRAPH


def closest(parts: Sequence[str], found: Mapping[str, Sequence[Hit]]) -> tuple[Hit, ...] | None:
    """A hit of each part, all of them as near to one another as they come in one text; `found` has
    each part's hits in the order of their lines. None where one has none.
    """
    lists = [found.get(part, ()) for part in parts]
    if not all(lists):
        return None
    numbers = [[hit.number for hit in hits] for hits in lists]
    rarest = min(range(len(lists)), key=lambda i: len(lists[i]))
    best: tuple[Hit, ...] | None = None
    for hit in lists[rarest]:
        chosen = tuple(
            hits[_nearest(places, hit.number)] for hits, places in zip(lists, numbers, strict=True)
        )
        if best is None or (spread(chosen) or 0) < (spread(best) or 0):
            best = chosen
    return best


def _nearest(numbers: Sequence[int], wanted: int) -> int:
    """The index of the number that is nearest."""
    after = bisect.bisect_left(numbers, wanted)
    around = [i for i in (after - 1, after) if 0 <= i < len(numbers)]
    return min(around, key=lambda i: abs(numbers[i] - wanted))
