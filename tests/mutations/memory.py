"""Faults of memory."""

from __future__ import annotations

from typing import Any, List

from tests.mutations import rows
from tests.mutations.loading import put


def keep_tensors() -> None:
    """Each step's weights, in a list that nobody empties."""
    import torch

    kept: List[Any] = []
    real = torch.optim.SGD.step

    def step(optimiser: Any, *more: Any) -> Any:
        kept.extend(p.detach().clone() for group in optimiser.param_groups for p in group["params"])
        return real(optimiser, *more)

    put(torch.optim.SGD, "step", step)


def shorten() -> None:
    """The real search, with a network that needs no minute."""
    import torch

    from verify.checks.memory import free as memory

    torch.set_num_threads(1)
    put(memory, "MODEL", "small")
    put(memory, "MAXIMUM", {"cpu": 2})


def refuse_memory() -> None:
    import torch

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"
        )

    put(torch.nn.functional, "cross_entropy", refuse)


def break_the_step() -> None:
    import torch

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("could not create a primitive")

    put(torch.nn.functional, "cross_entropy", broken)


def kill_the_trial() -> None:
    """As the out-of-memory killer does, at the first batch."""
    import os
    import signal

    import torch

    put(torch.nn.functional, "cross_entropy", lambda *_: os.kill(os.getpid(), signal.SIGKILL))


ROWS = {
    "pytorch": (
        *rows("memory.leak", ("each step keeps its weights", keep_tensors, "each step")),
        *rows(
            "memory.batch",
            ("no memory for a step", refuse_memory, "not even the smallest batch"),
            ("a step raises", break_the_step, "could not create a primitive"),
            ("the kernel kills the trial", kill_the_trial, "killed by the kernel"),
            sound=shorten,
            level="full",
            on_cpu=True,
        ),
    )
}
