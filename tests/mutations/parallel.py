"""Faults of parallel training: gradients and shards that are lost, doubled or another's."""

from __future__ import annotations

from typing import Any, Callable, Tuple

from tests.mutations import rows
from tests.mutations.collectives import second_rank, wrap


def two_places() -> None:
    """Two places on the CPU, and DataParallel as its documentation describes it."""
    import torch

    from verify.backends.pytorch import Place
    from verify.checks.training import parallel

    places = (Place("cpu", 0), Place("cpu", 1))
    vars(parallel)["find_gpus"] = lambda _: (None, places)
    torch.nn.DataParallel = replicas(lambda outputs: outputs)


def replicas(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Split the batch by its rows, run the model on each part, put the outputs together."""
    import torch

    class Replicas(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, module: Any, device_ids: Any) -> None:
            super().__init__()
            self.module, self.count = module, len(device_ids)

        def forward(self, inputs: Any) -> Any:
            return torch.cat(change([self.module(part) for part in inputs.chunk(self.count)]))

    return Replicas


def lose_a_replica() -> None:
    import torch

    torch.nn.DataParallel = replicas(lambda outputs: [outputs[0], outputs[1].detach()])


def swap_the_replicas() -> None:
    import torch

    torch.nn.DataParallel = replicas(lambda outputs: outputs[::-1])


def average_nothing() -> None:
    """Each rank trains its own model."""
    import torch

    torch.nn.parallel.DistributedDataParallel = lambda module, **_: module


def sum_instead() -> None:
    """The ranks' gradients are added up and not divided by their number."""
    import torch
    import torch.distributed as dist

    real = torch.nn.parallel.DistributedDataParallel

    def add(_: Any, bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    add.__annotations__ = {}  # torch compares them with its own classes

    def make(module: Any, device_ids: Any) -> Any:
        together = real(module, device_ids=device_ids)
        together.register_comm_hook(None, add)
        return together

    torch.nn.parallel.DistributedDataParallel = make


def share_the_first_rows() -> None:
    """Every rank trains on the first rank's rows."""
    from verify.checks.training import steps

    share = steps.share
    steps.share = lambda batch, _: share(batch, 0)  # type: ignore[assignment]


def wrap_either(names: Tuple[str, ...], make: Callable[[Any], Callable[..., Any]]) -> None:
    """A function that went by several names in the life of torch."""
    import torch.distributed as dist

    for name in names:
        if hasattr(dist, name):
            wrap(name, make)


def lose_a_shard_of_gradients() -> None:
    """The second rank's part of the gradients is lost on its way."""

    def make(real: Any) -> Any:
        def reduce_scatter(*rest: Any, **more: Any) -> Any:
            done = real(*rest, **more)
            if second_rank():
                (rest[0] if rest else more["output"]).zero_()
            return done

        return reduce_scatter

    wrap_either(("reduce_scatter_single", "reduce_scatter_tensor"), make)


def lose_a_shard_of_weights() -> None:
    """What the second rank holds never arrives at the first one's forward pass."""

    def make(real: Any) -> Any:
        def all_gather(*rest: Any, **more: Any) -> Any:
            done = real(*rest, **more)
            if not second_rank():
                output = rest[0] if rest else next(v for k, v in more.items() if "output" in k)
                output.chunk(2)[1].zero_()
            return done

        return all_gather

    wrap_either(("all_gather_single", "all_gather_into_tensor"), make)


def drop_the_gradient() -> None:
    """What comes to the first stage comes as zeros: the second one's gradient."""

    def make(real: Any) -> Any:
        def recv(tensor: Any, source: int) -> Any:
            done = real(tensor, source)
            if not second_rank():
                tensor.zero_()
            return done

        return recv

    wrap("recv", make)


def send_an_old_activation() -> None:
    """The first stage sends what it sent first, over and over."""
    kept = []

    def make(real: Any) -> Any:
        def send(tensor: Any, target: int) -> Any:
            kept.append(tensor.clone())
            return real(tensor if second_rank() else kept[0], target)

        return send

    wrap("send", make)


def kill_the_second_sender() -> None:
    import os
    import signal

    def make(real: Any) -> Any:
        def send(tensor: Any, target: int) -> Any:
            if second_rank():
                os.kill(os.getpid(), signal.SIGKILL)
            return real(tensor, target)

        return send

    wrap("send", make)


ROWS = {
    "pytorch": (
        *rows(
            "parallel.data",
            ("one replica's gradients are lost", lose_a_replica, "combined wrongly"),
            ("the replicas' outputs are swapped", swap_the_replicas, "combined wrongly"),
            sound=two_places,
        ),
        *rows(
            "parallel.ddp",
            ("gradients are not averaged", average_nothing, "the ranks' weights differ"),
            ("gradients are summed and not averaged", sum_instead, "combined wrongly"),
            ("every rank is given the same rows", share_the_first_rows, "combined wrongly"),
        ),
        *rows(
            "parallel.fsdp",
            ("a shard's gradients are lost", lose_a_shard_of_gradients, "FSDP: after"),
            ("a shard's weights are lost", lose_a_shard_of_weights, "FSDP: "),
        ),
        *rows(
            "parallel.stages",
            ("the gradient is dropped between stages", drop_the_gradient, "never"),
            ("an old activation is sent again", send_an_old_activation, "3 stages: "),
            ("a rank is killed", kill_the_second_sender, "rank 1 of 3 killed by SIGKILL"),
        ),
    )
}
