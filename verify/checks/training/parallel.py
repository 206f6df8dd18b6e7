"""Parallel training: the same steps on several devices must give the result of one device."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Optional, Sequence

from verify.backends.pytorch import Place, find_gpus
from verify.checks.collectives import ranks
from verify.checks.collectives.ranks import ONE_GPU, Rank, Team, World
from verify.checks.training import steps
from verify.model.check import Check, Context, Outcome, Status, gpus

LIMIT_S = {"gloo": 90.0, "nccl": 180.0}
CPU_STAGES = 3  # one of them has a neighbour on both sides
_WRAPPER = re.compile(r"(_fsdp_wrapped_module|_fpw_module|module)\.")
# FSDP's messages on a CPU if it supports only GPUs: all of it before torch 2.1, gloo's part after.
_LACKING = re.compile(
    r"not (currently )?(supported|implemented)|does ?n[o']t support|no support|[Uu]nsupported|"
    r"NVIDIA driver|CUDA"
)


# DataParallel


def check_data(context: Context) -> Outcome:
    """Train with one process for all GPUs: torch.nn.DataParallel."""
    absent, places = find_gpus(context)
    if absent:
        return absent
    if len(places) < 2:
        return Outcome(Status.SKIP, ONE_GPU)
    count = steps.STEPS[context.level]
    reference = steps.alone(places[0], count, len(places))
    run = _data_parallel(places, count)
    measured = {"device": "cuda", "gpus": len(places)}
    return steps.judge("DataParallel", reference, [run], measured, gpus(len(places)))


def _data_parallel(places: Sequence[Place], count: int) -> Dict[str, Any]:
    import torch

    model = steps.model(places[0])
    replicas = torch.nn.DataParallel(model, device_ids=[place.index for place in places])
    data = steps.batches(count, steps.BATCH * len(places), places[0])
    return {"losses": steps.train(replicas, data), "weights": steps.weights_of(model)}


# Ranks


def check_ddp(context: Context) -> Outcome:
    """Train with a process per GPU, each with the whole model: DistributedDataParallel."""
    return _check(context, "DistributedDataParallel", _ddp)


def _check(context: Context, what: str, work: "Callable[[Rank, int], Dict[str, Any]]") -> Outcome:
    broken, team = ranks.find_team(context)
    return broken or _train(context, what, work, team)


def _train(
    context: Context,
    what: str,
    work: "Callable[[Rank, int], Dict[str, Any]]",
    team: Team,
    layers: int = 2,
) -> Outcome:
    """Train together, and on the first rank's device alone: a model with `layers` layers."""
    count = steps.STEPS[context.level]

    def both(rank: Rank) -> Dict[str, Any]:
        rank.at("training alone")
        alone = steps.alone(rank.place, count, team.size, layers) if rank.index == 0 else None
        rank.at("training together")
        return {**work(rank, count), "reference": alone}

    return judge_ranks(what, ranks.run(team, both, LIMIT_S[team.backend]))


def judge_ranks(what: str, world: World) -> Outcome:
    """Compare the ranks with the reference, which the first rank computed.

    A rank's run may have only a part of the weights or losses ("whole": false): then the ranks'
    parts together are one run. "held" is how many of the "total" weights the rank kept.
    """
    team = world.team
    measured: Dict[str, Any] = {"device": team.kind, "ranks": team.size, "seconds": world.seconds}
    if world.lost:
        return ranks.judge_lost(world, what, measured)
    lacking = next((run["lacking"] for run in world.values if run.get("lacking")), None)
    if lacking:
        return Outcome(Status.SKIP, "{}: {}".format(what, lacking), measured=measured)
    runs: List[Dict[str, Any]] = world.values
    measured.update({"api": runs[0]["api"]} if "api" in runs[0] else {})
    unsharded = _judge_shards(what, runs, measured)
    if unsharded:
        return unsharded
    joined = runs if runs[0].get("whole", True) else [_joined(runs)]
    words = team.words + team.note
    return steps.judge(what, runs[0]["reference"], joined, measured, words)


def _joined(runs: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """The weights of all stages, and the losses of the stage that computes them."""
    weights = {name: numbers for run in runs for name, numbers in run["weights"].items()}
    return {"weights": weights, "losses": [loss for run in runs for loss in run["losses"]]}


def _judge_shards(
    what: str, runs: Sequence[Dict[str, Any]], measured: Dict[str, Any]
) -> Optional[Outcome]:
    """Whether each rank kept only its part, and all parts together are complete."""
    held = [run["held"] for run in runs if "held" in run]
    total = runs[0].get("total", 0)
    measured.update({"held": held, "weights": total} if held else {})
    if len(held) < 2 or (sum(held) >= total and max(held) < total):
        return None
    message = "{}: of {} weights the ranks hold {}".format(what, total, ", ".join(map(str, held)))
    cause = "one part of the model is on no rank" if sum(held) < total else "nothing was split"
    fix = "build the image again from its lock, or choose another torch version"
    return Outcome(Status.FAIL, message, cause, fix, measured)


def _ddp(rank: Rank, count: int) -> Dict[str, Any]:
    import torch

    model = steps.model(rank.place)
    ids = [rank.place.index] if rank.place.is_gpu else None
    together = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    losses = steps.train(together, _own(rank, count))
    return {"losses": losses, "weights": steps.weights_of(model)}


def _own(rank: Rank, count: int) -> "List[tuple[Any, Any]]":
    data = steps.batches(count, steps.BATCH * rank.team.size, rank.place)
    return [steps.share(batch, rank.index) for batch in data]


# FSDP


def check_fsdp(context: Context) -> Outcome:
    """Train with a process per GPU, each with a part of the model: fully_shard, or FSDP before."""
    try:
        import torch.distributed.fsdp  # noqa: F401  # once, before the ranks are forked
    except ImportError as error:
        return Outcome(Status.SKIP, "this torch has no FSDP: {}".format(error))
    return _check(context, "FSDP", _fsdp)


def _fsdp(rank: Rank, count: int) -> Dict[str, Any]:
    from torch.distributed import fsdp

    shard = getattr(fsdp, "fully_shard", None)
    try:
        return _fully_shard(rank, count, shard) if shard else _flat_shards(rank, count)
    except (RuntimeError, ValueError, AssertionError) as error:
        if rank.place.is_gpu or not _LACKING.search(str(error)):
            raise
        why = str(error).partition("\n")[0].partition(". ")[0][:200]
        return {"lacking": "this torch has it on GPUs only ({})".format(why)}


def _fully_shard(rank: Rank, count: int, shard: Any) -> Dict[str, Any]:
    """Since torch 2.6: each weight is a DTensor, split over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    model = steps.model(rank.place)
    total = sum(weight.numel() for weight in model.parameters())
    mesh = init_device_mesh(rank.place.kind, (rank.team.size,))
    for layer in (model[0], model[2], model):
        shard(layer, mesh=mesh)
    losses = steps.train(model, _own(rank, count))
    held = sum(weight.to_local().numel() for weight in model.parameters())
    weights = {
        name: weight.full_tensor().detach().cpu().flatten().tolist()
        for name, weight in model.named_parameters()
    }
    run = {"losses": losses, "weights": weights, "held": held, "total": total}
    return {**run, "api": "fully_shard"}


def _flat_shards(rank: Rank, count: int) -> Dict[str, Any]:
    """Before torch 2.6: FullyShardedDataParallel, which keeps all weights in one flat tensor."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = steps.model(rank.place)
    total = sum(weight.numel() for weight in model.parameters())
    device = rank.place.index if rank.place.is_gpu else torch.device("cpu")
    together = FullyShardedDataParallel(model, device_id=device)
    losses = steps.train(together, _own(rank, count))
    held = sum(weight.numel() for weight in together.parameters())
    with FullyShardedDataParallel.summon_full_params(together):
        weights = steps.weights_of(together, lambda name: _WRAPPER.sub("", name))
    run = {"losses": losses, "weights": weights, "held": held, "total": total}
    return {**run, "api": "FullyShardedDataParallel"}


# Stages


def check_stages(context: Context) -> Outcome:
    """Train a model in parts, each on its own device: activations go on, gradients come back."""
    broken, team = ranks.find_team(context)
    if broken:
        return broken
    if team.backend == "nccl" and team.size == 1:
        return Outcome(Status.SKIP, ONE_GPU, measured={"ranks": 1})
    team = team if team.backend == "nccl" else Team(team.backend, CPU_STAGES)
    return _train(context, "{} stages".format(team.size), _stage, team, layers=team.size)


def _stage(rank: Rank, count: int) -> Dict[str, Any]:
    """One linear layer of the model with the following tanh: a rank between two others receives
    from both.
    """
    import torch
    import torch.distributed as dist

    last = rank.team.size - 1
    stage = steps.model(rank.place, rank.team.size)[2 * rank.index : 2 * rank.index + 2]
    data = steps.batches(count, steps.BATCH * rank.team.size, rank.place)
    optimiser = steps.optimiser(stage.parameters())
    losses = []
    for rows, target in data:
        optimiser.zero_grad()
        inputs = rows
        if rank.index > 0:
            inputs = rows.new_empty(len(rows), steps.SIZES[1])
            dist.recv(inputs, rank.index - 1)
            inputs.requires_grad_()
        outputs = stage(inputs)
        if rank.index < last:
            dist.send(outputs.detach(), rank.index + 1)
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, rank.index + 1)
            outputs.backward(gradient)
        else:
            loss = steps.loss_of(outputs, target)
            loss.backward()
            losses.append(float(loss.item()))
        if rank.index > 0:
            dist.send(inputs.grad, rank.index - 1)
        optimiser.step()
    return {"losses": losses, "weights": steps.weights_of(stage), "whole": False}


CHECKS = (
    Check("parallel.data", "DataParallel trains as one device", check_data, "standard", 120),
    Check("parallel.ddp", "DDP trains as one device does", check_ddp, "standard", 250),
    Check("parallel.fsdp", "FSDP trains as one device does", check_fsdp, "standard", 250),
    Check("parallel.stages", "Stages train as one device", check_stages, "standard", 250),
)
