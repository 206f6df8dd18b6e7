"""Faults of memory."""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, List, Tuple

from tests.mutations import Row, rows
from tests.mutations.loading import put
from tests.mutations.patching import backend, raising


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
    from verify.checks.memory import free as memory

    backend().use_one_thread(backend().place("cpu"))
    put(memory, "MODEL", "small")
    put(memory, "MAXIMUM", {"cpu": 2})


def at_each_step(work: Callable[..., Any]) -> Callable[[], None]:
    """What a trainer does in place of a step."""

    def seed() -> None:
        framework = backend()
        real = framework.trainer

        def trainer(*given: Any, **more: Any) -> Any:
            made = real(*given, **more)
            made.step = work
            return made

        vars(framework)["trainer"] = trainer

    return seed


def fail_with(text: str) -> Callable[[], None]:
    return at_each_step(raising(RuntimeError(text))(None))


def kill_the_trial(*_: Any) -> None:
    """As the out-of-memory killer does, at the first batch."""
    os.kill(os.getpid(), signal.SIGKILL)


def _batches(full: str) -> Tuple[Row, ...]:
    """A framework's words for it if memory is full."""
    return rows(
        "memory.batch",
        ("no memory for a step", fail_with(full), "not even the smallest batch"),
        ("a step raises", fail_with("could not create a primitive"), "create a primitive"),
        ("the kernel kills the trial", at_each_step(kill_the_trial), "killed by the kernel"),
        sound=shorten,
        level="full",
        on_cpu=True,
    )


ROWS = {
    "pytorch": (
        *rows("memory.leak", ("each step keeps its weights", keep_tensors, "each step")),
        *_batches("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"),
    ),
    "tensorflow": _batches("OOM when allocating tensor with shape[4096,64,112,112]"),
    "jax": _batches("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes."),
}
