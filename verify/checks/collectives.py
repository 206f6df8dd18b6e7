"""Collectives: processes add up across GPUs (NCCL) and across plain processes (gloo)."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Callable, Dict, List, Sequence

from verify.checks.sight import judge_absent, look
from verify.children import Child, Ending, wait_all
from verify.core import Check, Context, Outcome, Status
from verify.symptoms import explain, last_words

LIMIT_S = {"gloo": 60.0, "nccl": 120.0}
_ELEMENTS = {"quick": 1 << 10, "standard": 1 << 20, "full": 1 << 26}


def check_gloo(context: Context) -> Outcome:
    """Two processes on the CPU: proves torch.distributed, the loopback and the store."""
    elements = _ELEMENTS["standard" if context.level == "full" else context.level]
    return _check("gloo", 2, elements)


def check_nccl(context: Context) -> Outcome:
    """One process for each GPU. This process forks them, so it must not start CUDA itself."""
    looked = Child(lambda: _look(context)).wait(LIMIT_S["nccl"])
    if not looked.returned:
        return judge_ranks([looked], "nccl", _ELEMENTS[context.level])
    if looked.value["absent"]:
        return Outcome.from_dict(looked.value["absent"])
    return _check("nccl", looked.value["usable"], _ELEMENTS[context.level])


def _look(context: Context) -> Dict[str, Any]:
    sight = look(context)
    absent = judge_absent(sight)
    return {"usable": sight.usable, "absent": absent and absent.as_dict()}


def _check(backend: str, world: int, elements: int) -> Outcome:
    folder = _scratch()
    try:
        store = "file://{}/store".format(folder)
        ranks = [Child(_rank_work(backend, store, rank, world, elements)) for rank in range(world)]
        endings = wait_all(ranks, LIMIT_S[backend])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return judge_ranks(endings, backend, elements)


def _scratch() -> str:
    try:
        return tempfile.mkdtemp()
    except OSError:  # a read-only container without /tmp
        return tempfile.mkdtemp(dir="/dev/shm")


def _rank_work(
    backend: str, store: str, rank: int, world: int, elements: int
) -> Callable[[], object]:
    def work() -> Dict[str, Any]:
        os.environ.setdefault("NCCL_DEBUG", "WARN")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return _all_reduce(backend, store, rank, world, elements)

    return work


def _all_reduce(backend: str, store: str, rank: int, world: int, elements: int) -> Dict[str, Any]:
    """Each rank gives rank + 1; each must get world * (world + 1) / 2 everywhere."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world)
    numbers = torch.full((elements,), float(rank + 1), device=device)
    dist.all_reduce(numbers)
    wrong = int((numbers != world * (world + 1) / 2).sum().item())
    dist.destroy_process_group()
    return {"wrong": wrong, "device": device.type}


def judge_ranks(endings: Sequence[Ending], backend: str, elements: int) -> Outcome:
    """Whether every rank came back with the known sum."""
    world = len(endings)
    measured = {
        "backend": backend,
        "ranks": world,
        "bytes": elements * 4,
        "seconds": round(max((e.seconds for e in endings), default=0.0), 3),
    }
    expected = {"sum": world * (world + 1) // 2, "wrong": 0}
    lost = [(rank, ending) for rank, ending in enumerate(endings) if not ending.returned]
    if lost:
        return _judge_lost(lost, backend, measured, expected)
    wrong = {rank: e.value["wrong"] for rank, e in enumerate(endings) if e.value["wrong"]}
    if wrong or not endings:
        message = "{} all-reduce over {} ranks gave a wrong sum on rank {}".format(
            backend, world, ", ".join(map(str, wrong)) or "none"
        )
        cause = (
            "data was damaged on its way between GPUs" if backend == "nccl" else "gloo is broken"
        )
        fix = "run with NCCL_P2P_DISABLE=1: if that mends it, look at IOMMU and PCIe ACS settings"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    message = "{} all-reduce over {} ranks, known sum".format(backend, world)
    note = "; one GPU: nothing went between GPUs" if backend == "nccl" and world == 1 else ""
    note = "; on the CPU, no proof of NCCL" if backend == "gloo" else note
    return Outcome(Status.PASS, message + note, measured=measured, expected=expected)


def _judge_lost(
    lost: "Sequence[tuple[int, Ending]]",
    backend: str,
    measured: Dict[str, Any],
    expected: Dict[str, Any],
) -> Outcome:
    """The rank that fell first tells most: the others only waited for it."""
    rank, ending = next((row for row in lost if not row[1].timed_out), lost[0])
    outputs = _outputs(lost)
    words = last_words("\n".join(outputs))
    cause, fix = explain("\n".join([ending.raised or "", *outputs]))
    if ending.timed_out:
        cause = "hang" + (": " + cause if cause else "")
    if words:
        cause = "{}; the last words: {}".format(cause or "unknown", words)
    message = "{}: rank {} of {} {}".format(backend, rank, measured["ranks"], ending.how())
    fix = fix or _default_fix(backend)
    measured = {**measured, "output": outputs[0] if outputs else ""}
    return Outcome(Status.FAIL, message, cause or ending.how(), fix, measured, expected)


def _outputs(lost: "Sequence[tuple[int, Ending]]") -> List[str]:
    return [ending.output for _, ending in lost if ending.output]


def _default_fix(backend: str) -> str:
    if backend == "gloo":
        return "see that the loopback interface is up and GLOO_SOCKET_IFNAME names it"
    return "run again with NCCL_DEBUG=INFO; try NCCL_P2P_DISABLE=1 (IOMMU, PCIe ACS) and --ipc host"


CHECKS = (
    Check("collectives.gloo", "Two processes all-reduce", check_gloo, "standard", 90),
    Check("collectives.nccl", "GPUs all-reduce", check_nccl, "standard", 250, gpu=True),
)
