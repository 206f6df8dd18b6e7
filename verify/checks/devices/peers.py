"""Copies between GPUs, compared bit by bit.

On some machines with the IOMMU or PCIe ACS enabled, a GPU copies to another's memory, reports
success, and corrupts the data.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import of
from verify.checks.collectives.ranks import P2P_FIX
from verify.device import driver
from verify.model.check import NODE, Check, Context, Outcome, Status, gpus
from verify.model.measures import Table, median, of_samples, pack

ELEMENTS = {"quick": 1 << 16, "standard": 1 << 23, "full": 1 << 26}  # of 8 bytes
TURNS = {"quick": 1, "standard": 2, "full": 8}
REPEATS = 5


@dataclass(frozen=True)
class PeerCopy:
    """The result of copies from one GPU to another."""

    source: int
    target: int
    direct: Optional[bool]  # whether the driver allows P2P; else it goes through host memory
    wrong: int
    total: int
    seconds: Tuple[float, ...] = ()
    bytes: int = 0

    @property
    def gbs(self) -> float:
        """GB/s of the median timed copy."""
        return self.bytes / median(self.seconds) / 1e9 if self.seconds else 0.0


def check_copies(context: Context) -> Outcome:
    """Copy between each pair of GPUs, in both directions."""
    absent, places = of(context).find_gpus(context)
    if absent:
        return absent
    if len(places) < 2:
        return Outcome(Status.SKIP, "one GPU: there is no peer")
    copies = [
        _copies(context, source, target)
        for source in places
        for target in places
        if source != target
    ]
    return judge_copies(copies)


def _copies(context: Context, source: Any, target: Any) -> PeerCopy:
    """Each GPU makes the words itself, so the reference never crossed a link."""
    elements, turns = ELEMENTS[context.level], TURNS[context.level]
    wrong = 0
    for turn in range(turns):
        first = (turn * 64 + source.index) * 64 + target.index + 1  # no words are there already
        there = target.receive(source.block(first, elements, inverted=False))
        target.synchronize()
        wrong += target.differ(there, target.block(first, elements, inverted=False))[0]
    here = source.block(0, elements, inverted=False)
    seconds = tuple(target.seconds(lambda: target.receive(here), repeats=REPEATS))
    direct = driver.reaches(source.index, target.index, context.machine.load)
    total = elements * turns
    return PeerCopy(source.index, target.index, direct, wrong, total, seconds, elements * 8)


def judge_copies(copies: Sequence[PeerCopy]) -> Outcome:
    """Whether every copy arrived intact."""
    rows = [{**asdict(c), "seconds": median(c.seconds), "gbs": c.gbs} for c in copies if c.seconds]
    measured: Dict[str, Any] = {"device": "cuda", "copies": rows}
    expected = {"wrong": 0}
    if not copies:
        fix = "see devices.count"
        return Outcome(
            Status.FAIL, "nothing was copied", "no pair of GPUs", fix, measured, expected
        )
    measured.update(_packed(copies))
    for copy in copies:
        if copy.wrong or not copy.total:
            message = "GPU {} to GPU {}: {} of {} numbers wrong after a copy".format(
                copy.source, copy.target, copy.wrong, copy.total
            )
            fault = _cause(copy)
            return Outcome(Status.FAIL, message, *fault, measured, expected, NODE)
    direct = sum(bool(copy.direct) for copy in copies)
    slowest = min(copy.gbs for copy in copies)
    count = len({copy.source for copy in copies})
    message = "copies between {} are bit-identical, {} of {} by P2P, at least {:.3g} GB/s".format(
        gpus(count), direct, len(copies), slowest
    )
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _cause(copy: PeerCopy) -> Tuple[str, str]:
    if copy.direct is not False:
        return "P2P traffic is misrouted, most likely by the IOMMU or PCIe ACS", P2P_FIX
    cause = "data was corrupted on its way through host memory: the host's memory or PCIe"
    return cause, "look at the host's kernel log for PCIe (AER) and memory (MCE) errors"


def _packed(copies: Sequence[PeerCopy]) -> Dict[str, Any]:
    indices = sorted({copy.source for copy in copies} | {copy.target for copy in copies})
    gbs = {(copy.source, copy.target): copy.gbs for copy in copies}
    rows: List[Tuple[Any, ...]] = [
        (str(i), *("X" if i == j else gbs.get((i, j)) for j in indices)) for i in indices
    ]
    columns = ("from / to", *(str(i) for i in indices))
    table = Table("Copies between GPUs (GB/s)", columns, tuple(rows))
    metrics = [
        of_samples(
            "peer_copy",
            [copy.bytes / seconds / 1e9 for seconds in copy.seconds],
            "GB/s",
            labels={"source": str(copy.source), "target": str(copy.target)},
        )
        for copy in copies
        if copy.seconds
    ]
    return pack(metrics, [table])


CHECKS = (
    Check(
        "devices.peer-copies", "Copies between GPUs arrive intact", check_copies, "standard", 180
    ),
)
