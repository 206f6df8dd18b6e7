"""What nodes did together, as `provision fleet verify --across` has it."""

from __future__ import annotations

import json
from typing import Any

from provision.fleet.across.groups import AcrossOrder, GroupRun, RoundRun
from provision.fleet.across.result import to_json
from provision.fleet.across.search import AcrossDiagnosis
from verify.across.diagnosis import AcrossNode, _report
from verify.checks.collectives import bandwidth
from verify.checks.collectives.ranks import Team
from verify.model.check import Outcome, Status
from verify.model.measures import pack

SIZES = (65536, 1 << 20, 16 << 20, 1 << 30)
_WORKED: tuple[bool, None, str, dict[str, str]] = (True, None, "", {})
OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter")


def measured(backend: str, ranks: int) -> dict[str, Any]:
    """What a run over so many ranks measures."""
    found = [
        bandwidth.BandwidthSeries(
            operation=name,
            bytes=size,
            gbs=(40.0 + place + size / 1e9,) * 3,
            seconds=(size / 4e10,) * 3,
        )
        for place, name in enumerate(OPERATIONS)
        for size in SIZES
    ]
    team = Team(backend, ranks)
    plots = [bandwidth.plot(found)]
    return dict(pack(bandwidth.metrics(team, found), [bandwidth.table(found)], plots))


def together(
    *names: str, backend: str = "nccl", ranks: int = 8, wrong: AcrossDiagnosis | None = None
) -> dict[str, Any]:
    """The result for these nodes: what is wrong, or their speed in a run and in pairs."""
    nodes = [AcrossNode(number, "host", ranks, backend) for number in range(len(names))]
    kept = tuple(names)
    if wrong is not None:
        out = {*wrong.named, *wrong.sick, *(link[0] for link in wrong.links)}
        kept = tuple(name for name in names if name not in out)
        nodes = nodes[: len(kept)]
    outcome = Outcome(
        Status.PASS,
        f"{len(kept)} nodes: 24 collectives are right",
        measured=measured(backend, len(kept) * ranks),
    )
    whole = GroupRun(kept, *_WORKED, _report(outcome, None, nodes))
    pairs = [
        GroupRun(pair, *_WORKED, _paired(20.0 + place))
        for place, pair in enumerate(zip(kept[::2], kept[1::2], strict=False))
    ]
    rounds = [RoundRun((whole,), 3.0), RoundRun(tuple(pairs), 1.0)]
    order = AcrossOrder(image="registry.example/team/torch:1")
    found: dict[str, Any] = to_json(order, wrong or AcrossDiagnosis({}), rounds, {})
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def _paired(gbs: float) -> dict[str, Any]:
    row = {"operation": "all-reduce", "bytes": 1 << 30, "gbs": [gbs]}
    return {"measured": {"largest": [row]}, "backend": "nccl"}
