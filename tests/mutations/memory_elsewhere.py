"""Faults of memory through TensorFlow and JAX, and of running out of it through all three."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, Tuple

from tests.mutations import Row, jax_, rows, tensorflow_
from tests.mutations.loading import put
from tests.mutations.patching import always, maker, raising, replace

GB = 1000**3
NOTHING_SAID = "INTERNAL: Failed to execute XLA runtime executable"

# What others hold


def _rooms(free: int, *holders: Any, told: bool = True) -> None:
    """One card of 80 GB, by CUDA and by NVML."""
    from verify.device import cuda_memory, state
    from verify.device.telemetry import GpuState, State

    room = cuda_memory.GpuMemory(0, "NVIDIA A100", "GPU-a", free * GB, 80 * GB)
    put(cuda_memory, "read", lambda _: [room])
    who = holders if told else None
    card = GpuState(0, uuid="GPU-a", processes=who, memory_total_bytes=80 * GB)
    put(state, "read", lambda *_: State(gpus=(card,), found=True))


def _alone(a_gpu: Callable[[], None]) -> Callable[[], None]:
    def sound() -> None:
        a_gpu()
        if a_gpu is tensorflow_.a_gpu:
            _without_settings()
        _rooms(79)

    return sound


def a_torch_gpu() -> None:
    """One GPU, by what torch says."""
    from verify.backends import pytorch

    vars(pytorch.BACKEND)["find"] = lambda _: (None, pytorch.Place("cuda"))


def _without_settings() -> None:
    """What a user may set of TensorFlow's memory: nothing is."""
    import tensorflow as tf

    replace(tf.config.experimental, "get_memory_growth", always(value=False))
    replace(tf.config, "get_logical_device_configuration", always(None))


def share_the_gpu() -> None:
    from verify.device.telemetry import GpuProcess

    _rooms(14, GpuProcess(4242, 65 * GB), GpuProcess(77, None))


def hide_who_holds_it() -> None:
    _rooms(14, told=False)


def silence_cuda() -> None:
    from verify.device import cuda_memory

    replace(cuda_memory, "read", raising(cuda_memory.CudaMemoryError("cuMemGetInfo_v2: Error 999")))


# What is written


def harm(how: Callable[[Any], None]) -> Callable[[], None]:
    """Words that `how` changes after each block was written, as an array of NumPy."""

    def seed() -> None:
        import numpy as np

        from verify.checks.memory import patterns

        back, right = maker(), patterns.keep

        def keep(kept: Any, write: Any, read: Any) -> Any:
            def harmed(*words: Any) -> Any:
                block = np.array(write(*words))
                how(block)
                return back(block)

            return right(kept, harmed, read)

        put(patterns, "keep", keep)

    return seed


def flip_a_bit(block: Any) -> None:
    block[-12345] ^= 1 << 17


def cross_addresses(block: Any) -> None:
    block[4096] = block[8192]


def stick_a_bit(block: Any) -> None:
    block[999] |= 1 << 40


# Running out


def _asks(framework: str) -> Tuple[Any, str]:
    """The function that the check asks for memory by."""
    names = {"pytorch": ("torch", "empty"), "jax": ("jax.numpy", "zeros")}
    module, name = names.get(framework, ("tensorflow", "zeros"))
    return importlib.import_module(module), name


def _multiplies(framework: str) -> Tuple[Any, str]:
    """The function that it multiplies by afterwards."""
    if framework == "tensorflow":
        return importlib.import_module("tensorflow").linalg, "matmul"
    if framework == "pytorch":
        return importlib.import_module("torch").Tensor, "__matmul__"
    return importlib.import_module("verify.backends.jax_numbers"), "compiled_product"


def refuse_without_a_word(framework: str) -> Callable[[], None]:
    """An error that does not say why."""
    return lambda: replace(*_asks(framework), raising(RuntimeError(NOTHING_SAID)))


def _after_the_refusal(framework: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Products go on by what `make` gives, once memory was asked for."""

    def of_a_dtype(real: Any) -> Any:  # JAX's is compiled once for each dtype
        return lambda dtype: make(real(dtype))

    def seed() -> None:
        owner, name = _asks(framework)
        real = getattr(owner, name)

        def ask(*words: Any, **more: Any) -> Any:
            replace(*_multiplies(framework), of_a_dtype if framework == "jax" else make)
            return real(*words, **more)

        setattr(owner, name, ask)

    return seed


def spoil_the_state(framework: str) -> Callable[[], None]:
    """Every product is off by one."""

    def make(real: Any) -> Any:
        return lambda *sides, **more: real(*sides, **more) + 1

    return _after_the_refusal(framework, make)


def break_the_device(framework: str) -> Callable[[], None]:
    """No product at all."""
    return _after_the_refusal(framework, raising(RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")))


def keep_what_was_refused(_: str) -> Callable[[], None]:
    """A count that has grown by half of what was asked for."""

    def seed() -> None:
        from verify.checks.memory import recovery

        counts = [recovery.NO_ADDRESS // 2, 0]
        real = recovery.attempt
        change = lambda size, ask, multiply, _: real(size, ask, multiply, counts.pop)  # noqa: E731
        vars(recovery)["attempt"] = change

    return seed


def _recovery(framework: str) -> Tuple[Row, ...]:
    check = "memory.recovery"
    faults = (
        (
            "the error says nothing of memory",
            refuse_without_a_word,
            "is not an out-of-memory error",
        ),
        ("products are wrong afterwards", spoil_the_state, "corrupted the device's state"),
        ("nothing computes afterwards", break_the_device, "a matrix product fails"),
        ("what was refused stays held", keep_what_was_refused, "are not freed"),
    )
    return rows(check, *((fault, seed(framework), word) for fault, seed, word in faults))


def _elsewhere(a_gpu: Callable[[], None]) -> Tuple[Row, ...]:
    """Rows that all frameworks share."""
    free = (
        ("another process holds most of the GPU", share_the_gpu, "process 4242 (65.0 GB), 77"),
        ("the GPU is full and NVML does not say of what", hide_who_holds_it, "14.0 of 80.0 GB"),
        ("CUDA does not report free memory", silence_cuda, "cuMemGetInfo_v2"),
    )
    kept = (
        ("a bit flips", flip_a_bit, "1 bit of 64 differs"),
        ("addresses cross", cross_addresses, "first at byte 32768"),
        ("a bit is stuck", stick_a_bit, "1 bit of 64 differs"),
    )
    return (
        *rows("memory.free", *free, sound=_alone(a_gpu), level="quick", status="skip"),
        *rows("memory.pattern", *((fault, harm(how), word) for fault, how, word in kept)),
    )


ROWS: Dict[str, Tuple[Row, ...]] = {
    "pytorch": (*_elsewhere(a_torch_gpu), *_recovery("pytorch")),
    "jax": (*_elsewhere(jax_.a_gpu), *_recovery("jax")),
    "tensorflow": (*_elsewhere(tensorflow_.a_gpu), *_recovery("tensorflow")),
}
