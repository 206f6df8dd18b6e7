"""Faults of collectives: sums, orders, stale buffers, lost ranks, slow links."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, List

from tests.mutations import rows

NCCL_WARNING = (
    "node1:85:92 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Xy3 to "
    "33030532 bytes, error: No space left on device (28)\n"
)
NVLS_WARNING = (
    "node1:85:92 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be "
    "performed in the present state'\n"
)
SHORT_S = 5.0  # for ranks that hang: they get no further however long one waits
_added_s: List[float] = []  # by `slow_down`, for a clock of its own


def wrap(name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a function of torch.distributed by what `make` makes of it."""
    import torch.distributed as dist

    setattr(dist, name, make(getattr(dist, name)))


def second_rank() -> bool:
    """Whether this process is the second rank."""
    import torch.distributed as dist

    return bool(dist.get_rank() == 1)


# Sound worlds


def two_gpus_by_gloo() -> None:
    """Two CPU processes where the code believes in two GPUs: gloo moves what NCCL would."""
    import torch
    import torch.distributed as dist

    from verify.backends.pytorch import Place
    from verify.checks.collectives import operations, ranks
    from verify.checks.collectives import sums as collectives

    operations.ELEMENTS["nccl"] = operations.ELEMENTS["gloo"]
    start = dist.init_process_group
    dist.init_process_group = lambda _, **rest: start("gloo", **rest)
    torch.cuda.set_device = lambda _: None
    collectives._look = lambda _: {"usable": 2, "absent": None}  # type: ignore[assignment]
    ranks._look = lambda _: {"broken": None, "gpus": 2}  # type: ignore[assignment]
    Place.device = property(lambda _: torch.device("cpu"))  # type: ignore[assignment]
    Place.synchronize = lambda _: None  # type: ignore[method-assign, assignment]
    Place.seconds = _by_the_clock  # type: ignore[method-assign, assignment]


def one_mebibyte() -> None:
    """The largest message of the level full, in pieces."""
    from verify.checks.collectives import messages, operations

    operations.LARGEST.update(gloo=1 << 20, nccl=1 << 20)
    messages.PIECE = 1 << 16


def one_mebibyte_on_gpus() -> None:
    two_gpus_by_gloo()
    one_mebibyte()


def _by_the_clock(_: Any, work: Any, *, repeats: int, warm_up: int) -> Any:
    from verify.model.measures import seconds_each

    return seconds_each(work, repeats=repeats, warm_up=min(warm_up, 1))


def two_slow_gpus() -> None:
    """The same, joined by the slowest PCIe link there is, which the loopback outruns."""
    two_gpus_by_gloo()
    from verify.backends.pytorch import Place
    from verify.checks.collectives import bandwidth, floors
    from verify.device import state
    from verify.device.telemetry import GpuState, Pair, State

    bandwidth.LARGEST["nccl"]["standard"] = floors.LARGE = 1 << 16
    gpu = GpuState(0, pcie_generation_max=1, pcie_width=1, pcie_width_max=1)
    pair = Pair(0, 1, "PHB", "ok", "ok")
    seen = State(gpus=(gpu, replace(gpu, index=1)), pairs=(pair,), found=True)
    state.read = lambda *_: seen
    Place.seconds = _by_a_clock_of_its_own  # type: ignore[method-assign, assignment]


def two_gpus_of_a_class() -> None:
    """The same, joined by NVLinks, of a class whose bus bandwidth is published."""
    two_slow_gpus()
    from verify.checks.collectives import floors
    from verify.device import state
    from verify.device.telemetry import GpuState, NvLink, Pair, State

    links = (NvLink(0, active=True, gbs=0.1),)
    gpus = tuple(GpuState(i, name="NVIDIA X900", nvlinks=links) for i in range(2))
    state.read = lambda *_: State(gpus=gpus, pairs=(Pair(0, 1, "NV1", "ok", "ok"),), found=True)
    row = {"class": "2 X900", "cards": "X900", "gpus": 2, "bytes": 1, "gbs": 10.0}
    floors.published = lambda: {"least_share": 0.65, "rows": [row]}  # type: ignore[assignment]


def _by_a_clock_of_its_own(_: Any, work: Any, *, repeats: int, warm_up: int) -> List[float]:
    """Each call takes what a fast link needs, and what `slow_down` adds: a loaded machine does not
    count.
    """
    found = []
    for _index in range(min(warm_up, 1) + repeats):
        before = sum(_added_s)
        work()
        found.append(1e-5 + sum(_added_s) - before)
    return found[-repeats:]


# Faults


def add_one_too_many() -> None:
    def make(real: Any) -> Any:
        def all_reduce(tensor: Any, *rest: Any, **more: Any) -> Any:
            done = real(tensor, *rest, **more)
            tensor[-1] += 1
            return done

        return all_reduce

    wrap("all_reduce", make)


def add_one_in_the_largest() -> None:
    """In one place of the largest message alone, and on one rank."""

    def make(real: Any) -> Any:
        def all_reduce(tensor: Any, *rest: Any, **more: Any) -> Any:
            done = real(tensor, *rest, **more)
            if tensor.numel() == 1 << 18 and second_rank():  # of float32
                tensor[200_000] += 1
            return done

        return all_reduce

    wrap("all_reduce", make)


def swap_what_was_gathered() -> None:
    wrap("all_gather", lambda real: lambda into, part: real(into[::-1], part))


def keep_the_old_buffer() -> None:
    """The second round's data never reaches the receive buffer."""

    def make(real: Any) -> Any:
        def broadcast(tensor: Any, root: int) -> None:
            came = tensor.clone()
            real(came, root)
            if bool((tensor < 0).all()):
                tensor.copy_(came)

        return broadcast

    wrap("broadcast", make)


def write_nothing() -> None:
    wrap("all_to_all_single", lambda _: lambda *_: None)


def wait_for_nobody() -> None:
    wrap("barrier", lambda _: lambda: None)


def reduce_the_wrong_block() -> None:
    wrap("reduce_scatter", lambda real: lambda into, parts: real(into, parts[::-1]))


def receive_from_elsewhere() -> None:
    """What is received is one's own message."""
    import torch.distributed as dist

    class Done:
        def wait(self) -> None:
            pass

    def exchange(ways: Any) -> Any:
        sent = next(way.tensor for way in ways if way.op is dist.isend)
        next(way.tensor for way in ways if way.op is dist.irecv).copy_(sent)
        return [Done()]

    wrap("batch_isend_irecv", lambda _: exchange)


def refuse_to_reduce() -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("ProcessGroup does not support allreduce")

    wrap("all_reduce", lambda _: refuse)


def kill_the_second() -> None:
    """As the kernel's out-of-memory killer does."""

    def make(real: Any) -> Any:
        def all_reduce(tensor: Any, *rest: Any, **more: Any) -> Any:
            if second_rank():
                os.kill(os.getpid(), signal.SIGKILL)
            return real(tensor, *rest, **more)

        return all_reduce

    wrap("all_reduce", make)


def hang_the_second_early() -> None:
    """It never comes to the collective."""
    _shorten()
    import torch

    real = torch.full

    def full(*rest: Any, **more: Any) -> Any:
        if second_rank():
            time.sleep(600)
        return real(*rest, **more)

    torch.full = full


def _shorten() -> None:
    from verify.checks.collectives import bandwidth, operations
    from verify.checks.collectives import sums as collectives
    from verify.checks.training import parallel

    for module in (bandwidth, collectives, operations, parallel):
        module.LIMIT_S.update(gloo=SHORT_S, nccl=SHORT_S)


def hang_the_second() -> None:
    _shorten()

    def make(real: Any) -> Any:
        def all_reduce(tensor: Any, *rest: Any, **more: Any) -> Any:
            if second_rank():
                time.sleep(600)
            return real(tensor, *rest, **more)

        return all_reduce

    wrap("all_reduce", make)


def run_out_of_shared_memory() -> None:
    """NCCL writes its warning into its log and comes no further."""
    _shorten()

    def make(_: Any) -> Any:
        def all_reduce(*_: Any, **__: Any) -> None:
            Path(os.environ["NCCL_DEBUG_FILE"]).write_text(NCCL_WARNING, encoding="utf-8")
            time.sleep(600)

        return all_reduce

    wrap("all_reduce", make)


def fail_in_nvls(*_: Any, **__: Any) -> None:
    """NCCL writes its warning into its log, and the call fails."""
    Path(os.environ["NCCL_DEBUG_FILE"]).write_text(NVLS_WARNING, encoding="utf-8")
    raise RuntimeError("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)")


def slow_down() -> None:
    """Each call takes what 100 KB/s would."""

    def make(real: Any) -> Any:
        def all_reduce(tensor: Any) -> None:
            real(tensor)
            _added_s.append(min(0.01, tensor.numel() * 4 / 1e5))

        return all_reduce

    wrap("all_reduce", make)


def slow_down_without_p2p() -> None:
    slow_down()
    os.environ["NCCL_P2P_DISABLE"] = "1"


ROWS = {
    "pytorch": (
        *rows(
            "collectives.gloo",
            ("one element of the sum is wrong", add_one_too_many, "wrong sum on rank 0, 1"),
            ("a rank is killed", kill_the_second, "rank 1 of 2 killed by SIGKILL"),
            ("a rank never comes to the collective", hang_the_second_early,
             "rank 1 of 2 did not finish"),
        ),
        *rows(
            "collectives.nccl",
            ("one element of the sum is wrong", add_one_too_many, "NCCL_P2P_DISABLE"),
            ("a rank is killed", kill_the_second, "rank 1 of 2 killed by SIGKILL"),
            ("a rank hangs", hang_the_second, "s, at all-reduce"),
            ("NVLink SHARP does not start", lambda: wrap("all_reduce", lambda _: fail_in_nvls),
             "NCCL_NVLS_ENABLE=0"),
            ("shared memory is too small for NCCL", run_out_of_shared_memory, "--shm-size 1g"),
            sound=two_gpus_by_gloo,
        ),
        *rows(
            "collectives.operations",
            ("one element of the sum is wrong", add_one_too_many, "all-reduce of float32"),
            ("gathered values are in another order", swap_what_was_gathered,
             "the right numbers in wrong places"),
            ("a receive buffer keeps what came before", keep_the_old_buffer,
             "the result of the previous call"),
            ("an operation writes nothing", write_nothing, "all-to-all of float32"),
            ("a reduced block goes to another rank", reduce_the_wrong_block, "reduce-scatter of"),
            ("a message comes from another rank", receive_from_elsewhere, "send and receive of"),
            ("a barrier lets ranks pass", wait_for_nobody, "before all had arrived"),
            ("there is no all-reduce", refuse_to_reduce, "has no all-reduce"),
            ("a rank is killed", kill_the_second, "at all-reduce of float32"),
            ("a rank hangs", hang_the_second, "hang"),
        ),
        *rows(
            "collectives.operations",
            ("gathered values are in another order, with GPUs", swap_what_was_gathered,
             "NCCL_P2P_DISABLE"),
            sound=two_gpus_by_gloo,
        ),
        *rows(
            "collectives.operations",
            ("one number of the largest sum is wrong", add_one_in_the_largest,
             "rank 1 has other numbers, 1 of 262144 wrong, first number 200000 of a message of"),
            sound=one_mebibyte,
            level="full",
        ),
        *rows(
            "collectives.operations",
            ("one number of the largest sum is wrong, with GPUs", add_one_in_the_largest,
             "NCCL_P2P_DISABLE"),
            sound=one_mebibyte_on_gpus,
            level="full",
        ),
        *rows(
            "collectives.bandwidth",
            ("messages are far slower than the link", slow_down, "another job uses the links"),
            ("P2P is switched off and messages are slow", slow_down_without_p2p,
             "NCCL_P2P_DISABLE is set"),
            sound=two_slow_gpus,
        ),
        *rows(
            "collectives.bandwidth",
            ("messages are far slower than on machines of the class", slow_down, "2 X900 reach 10"),
            sound=two_gpus_of_a_class,
        ),
        *rows(
            "collectives.bandwidth",
            ("a rank is killed", kill_the_second, "rank 1 of 2 killed by SIGKILL"),
        ),
    )
}  # fmt: skip
