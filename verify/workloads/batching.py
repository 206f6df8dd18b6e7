"""The search for a batch size as one pure function and its values: nothing here runs a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

# Why a search ended, for people.
BOUNDARY = "one more does not fit"
MAXIMUM = "the largest that was asked for fits"
NOTHING = "not even the smallest batch fits"


@dataclass(frozen=True)
class BatchTrial:
    """One trial of a batch size: a few whole training steps, or why there were none."""

    batch: int
    fits: bool
    samples_per_s: Optional[float] = None  # the median of the steps
    spread: float = 0.0  # the interquartile range divided by the median
    steps: int = 0
    peak_bytes: Optional[int] = None
    utilization_percent: Optional[float] = None
    reason: Optional[str] = None  # why it does not fit

    def as_dict(self) -> Dict[str, Any]:
        """As it stands in the report."""
        return dict(vars(self))


@dataclass(frozen=True)
class Search:
    """Every trial in order, and why the search stopped."""

    trials: Tuple[BatchTrial, ...]
    ended: str

    @property
    def largest(self) -> Optional[BatchTrial]:
        """The largest batch that fits."""
        fitting = [trial for trial in self.trials if trial.fits]
        return max(fitting, key=lambda trial: trial.batch, default=None)

    @property
    def fastest(self) -> Optional[BatchTrial]:
        """The batch with the most samples per second; the smaller one if two are equal."""
        timed = [trial for trial in self.trials if trial.fits and trial.samples_per_s]
        return max(timed, key=lambda t: (t.samples_per_s or 0.0, -t.batch), default=None)

    def as_dict(self) -> Dict[str, Any]:
        """As it stands in the report."""
        return {
            "ended": self.ended,
            "largest": self.largest and self.largest.batch,
            "fastest": self.fastest and self.fastest.batch,
            "trials": [trial.as_dict() for trial in self.trials],
        }


def search(
    measure: Callable[[int], BatchTrial],
    maximum: int,
    *,
    minimum: int = 1,
    stop: Callable[[int, Sequence[BatchTrial]], Optional[str]] = lambda *_: None,
    resolution: float = 0.0,
) -> Search:
    """Double the batch from `minimum` until it does not fit or is `maximum`, then bisect the gap.

    `stop` is called before each trial, with the batch and the trials so far, and ends the search if
    it returns a reason. The gap is closed to one sample, or to `resolution` times what fits. Each
    batch is tried once, none is above `maximum`, and there are at most 2 log2(maximum) + 2 trials.
    """
    trials: List[BatchTrial] = []

    def attempt(batch: int) -> Tuple[bool, Optional[str]]:
        reason = stop(batch, trials)
        if reason is not None:
            return False, reason
        trials.append(measure(batch))
        return trials[-1].fits, None

    fitting, failing, batch = 0, maximum + 1, min(minimum, maximum)
    while fitting < maximum and failing > maximum:
        fits, reason = attempt(batch)
        if reason is not None:
            return Search(tuple(trials), reason)
        if fits:
            fitting, batch = batch, min(2 * batch, maximum)
        else:
            failing = batch
    while failing <= maximum and fitting and failing - fitting > max(1.0, resolution * fitting):
        batch = (fitting + failing) // 2
        fits, reason = attempt(batch)
        if reason is not None:
            return Search(tuple(trials), reason)
        fitting, failing = (batch, failing) if fits else (fitting, batch)
    ended = BOUNDARY if failing <= maximum else MAXIMUM
    return Search(tuple(trials), ended if fitting else NOTHING)


def predicted_bytes(trials: Sequence[BatchTrial], batch: int) -> Optional[float]:
    """The peak to expect, from the line through the two largest batches that were measured.

    A single one gives an upper bound: memory that does not grow with the batch counts as if it did.
    None without a measurement.
    """
    known = sorted((t.batch, t.peak_bytes) for t in trials if t.fits and t.peak_bytes is not None)
    if not known:
        return None
    if len(known) == 1:
        return known[0][1] * batch / known[0][0]
    (near, low), (far, high) = known[-2:]
    each = max(0.0, (high - low) / (far - near))
    return high + each * (batch - far)


def predicted_seconds(trials: Sequence[BatchTrial], batch: int, steps: int) -> Optional[float]:
    """How long `steps` steps take at the pace of the largest batch so far."""
    known = [t for t in trials if t.fits and t.samples_per_s]
    if not known:
        return None
    last = max(known, key=lambda trial: trial.batch)
    return steps * batch / (last.samples_per_s or 1.0)
