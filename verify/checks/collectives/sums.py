"""Collectives: sums across GPUs (NCCL) and across CPU processes (gloo)."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from verify.backends.sight import judge_absent, look
from verify.checks.collectives import operations, ranks
from verify.checks.collectives.ranks import Rank, Team, Trace, World
from verify.model.check import Check, Context, Outcome, Status
from verify.running.children import Child, Ending

LIMIT_S = {"gloo": 60.0, "nccl": 120.0}
_ELEMENTS = 1 << 20  # other sizes: collectives.operations


def check_gloo(_: Context) -> Outcome:
    """Run two processes on the CPU: this tests torch.distributed, the loopback and the store."""
    return _check(Team("gloo", 2))


def check_nccl(context: Context) -> Outcome:
    """Run a process per GPU. This process forks them, so it must not start CUDA itself."""
    looked = Child(lambda: _look(context)).wait(LIMIT_S["nccl"])
    if not looked.returned:
        return judge_ranks([looked], "nccl")
    if looked.value["absent"]:
        return Outcome.from_dict(looked.value["absent"])
    return _check(Team("nccl", looked.value["usable"]))


def _look(context: Context) -> Dict[str, Any]:
    sight = look(context)
    absent = judge_absent(sight)
    return {"usable": sight.usable, "absent": absent and absent.as_dict()}


def _check(team: Team) -> Outcome:
    world = ranks.run(team, _all_reduce, LIMIT_S[team.backend])
    return judge_ranks(world.endings, team.backend, world.traces)


def _all_reduce(rank: Rank) -> Dict[str, Any]:
    """Each rank contributes rank + 1; each must get world * (world + 1) / 2 everywhere."""
    import torch
    import torch.distributed as dist

    size = rank.team.size
    numbers = torch.full((_ELEMENTS,), float(rank.index + 1), device=rank.place.device)
    rank.at("all-reduce")
    dist.all_reduce(numbers)
    wrong = int((numbers != size * (size + 1) / 2).sum().item())
    return {"wrong": wrong, "device": rank.place.kind}


def judge_ranks(endings: Sequence[Ending], backend: str, traces: Sequence[Trace] = ()) -> Outcome:
    """Whether every rank returned the known sum."""
    world = World(Team(backend, len(endings)), tuple(endings), tuple(traces))
    size = len(endings)
    measured = {"backend": backend, "ranks": size, "bytes": _ELEMENTS * 4, "seconds": world.seconds}
    expected = {"sum": size * (size + 1) // 2, "wrong": 0}
    if endings and world.lost:
        return ranks.judge_lost(world, backend, measured, expected)
    wrong = {rank: e.value["wrong"] for rank, e in enumerate(endings) if e.value["wrong"]}
    if wrong or not endings:
        message = "{} all-reduce over {} ranks gave a wrong sum on rank {}".format(
            backend, size, ", ".join(map(str, wrong)) or "none"
        )
        return operations.wrong_answer(message, backend, measured, expected)
    message = "{} all-reduce over {} ranks, known sum".format(backend, size)
    note = "; one GPU: no transfer between GPUs" if backend == "nccl" and size == 1 else ""
    note = "; on the CPU, NCCL not tested" if backend == "gloo" else note
    return Outcome(Status.PASS, message + note, measured=measured, expected=expected)


CHECKS = (
    Check("collectives.gloo", "Two processes all-reduce", check_gloo, "standard", 90),
    Check("collectives.nccl", "GPUs all-reduce", check_nccl, "standard", 250, gpu=True),
)
