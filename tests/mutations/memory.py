"""Faults of memory."""

from __future__ import annotations

from typing import Any, List

from tests.mutations import Row
from tests.mutations.loading import put

GB = 1000**3


def fake_gpu() -> None:
    """One card of 80 GB with nobody else on it: what torch and NVML say of it."""
    import torch

    from verify.backends.pytorch import Place
    from verify.checks.memory import free as memory
    from verify.device import same_gpu, state
    from verify.device.telemetry import GpuState, State

    places = (Place("cuda"),)
    put(memory, "find", lambda _: (None, places[0]))
    put(memory, "find_gpus", lambda _: (None, places))
    put(torch.cuda, "mem_get_info", lambda _: (79 * GB, 80 * GB))
    put(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    idle = GpuState(0, uuid="GPU-a", processes=(), memory_total_bytes=80 * GB)
    put(state, "read", lambda *_: State(gpus=(idle,), found=True))
    put(same_gpu, "find", lambda index, gpus: gpus[index])


def share_the_gpu() -> None:
    import torch

    from verify.device import state
    from verify.device.telemetry import GpuProcess, GpuState, State

    put(torch.cuda, "mem_get_info", lambda _: (14 * GB, 80 * GB))
    holders = (GpuProcess(4242, 65 * GB), GpuProcess(77, None))
    put(
        state,
        "read",
        lambda *_: State(
            gpus=(GpuState(0, processes=holders, memory_total_bytes=80 * GB),), found=True
        ),
    )


def hide_who_holds_it() -> None:
    import torch

    from verify.device import state
    from verify.device.telemetry import GpuState, State

    put(torch.cuda, "mem_get_info", lambda _: (14 * GB, 80 * GB))
    put(
        state, "read", lambda *_: State(gpus=(GpuState(0, memory_total_bytes=80 * GB),), found=True)
    )


def flip_a_bit() -> None:
    """A cell that does not keep its bit, far into the memory."""
    _after_write(lambda chunk: chunk[-12345:-12344].bitwise_xor_(1 << 17))


def cross_addresses() -> None:
    """A write that lands in two places."""

    def cross(chunk: Any) -> None:
        chunk[4096] = chunk[8192]

    _after_write(cross)


def stick_a_bit() -> None:
    """A bit that is always 1: right for half of the words in each pass."""
    _after_write(lambda chunk: chunk[999:1000].bitwise_or_(1 << 40))


def _after_write(harm: Any) -> None:
    from verify.checks.memory import patterns

    real = patterns.write

    def write(chunk: Any, first: int, *, inverted: bool) -> None:
        real(chunk, first, inverted=inverted)
        harm(chunk)

    put(patterns, "write", write)


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
        Row(
            "memory.free",
            "another process holds most of the GPU",
            share_the_gpu,
            "process 4242 (65.0 GB), 77",
            fake_gpu,
            "quick",
            status="skip",
        ),
        Row(
            "memory.free",
            "the GPU is full and NVML does not say of what",
            hide_who_holds_it,
            "14.0 of 80.0 GB",
            fake_gpu,
            "quick",
            status="skip",
        ),
        Row("memory.pattern", "a bit flips", flip_a_bit, "1 bit of 64 differs", on_cpu=True),
        Row(
            "memory.pattern", "addresses cross", cross_addresses, "first at byte 32768", on_cpu=True
        ),
        Row("memory.pattern", "a bit is stuck", stick_a_bit, "1 bit of 64 differs", on_cpu=True),
        Row("memory.leak", "each step keeps its weights", keep_tensors, "each step", on_cpu=True),
        *(
            Row("memory.batch", fault, seed, word, shorten, "full", on_cpu=True)
            for fault, seed, word in (
                ("no memory for a step", refuse_memory, "not even the smallest batch"),
                ("a step raises", break_the_step, "could not create a primitive"),
                ("the kernel kills the trial", kill_the_trial, "killed by the kernel"),
            )
        ),
    )
}
