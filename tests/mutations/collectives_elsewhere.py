"""Faults of collectives between JAX's and TensorFlow's devices."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

from tests.mutations import Row, rows
from tests.mutations.collectives import fail_in_nvls
from tests.mutations.jax_ import fail_to_map, replace_in_lax
from tests.mutations.loading import put
from tests.mutations.patching import backend, raising, replace

SHORT_S = 5.0  # for a process that hangs: it gets no further however long one waits
SLOWER = 1e5
LARGE = 1 << 18  # numbers of float32 in the largest message

# Sound worlds


def _family() -> Any:
    """The collectives of the framework that is imported."""
    framework = "jax" if "jax" in sys.modules else "tensorflow"
    return importlib.import_module("verify.checks.collectives.{}".format(framework))


def two_gpus() -> None:
    """Two devices of the CPU where the code believes in two GPUs."""
    from verify.checks.collectives import operations

    put(operations, "ELEMENTS", {**operations.ELEMENTS, "nccl": operations.ELEMENTS["gloo"]})
    family = _family()
    real, cut = family.all_devices, family.cut_the_cpu

    def devices(_: str) -> Any:
        cut()
        return real("cpu")

    framework = backend()
    vars(framework).update(find=lambda _: (None, framework.place("cuda")), count=lambda: 2)
    put(family, "all_devices", devices)


def two_slow_gpus() -> None:
    """The same, joined by the slowest PCIe link there is, which a CPU outruns a hundred times."""
    two_gpus()
    from verify.checks.collectives import exchange, floors
    from verify.device import state
    from verify.device.telemetry import GpuState, Pair, State

    exchange.LARGEST["cuda"] = {"standard": 1 << 20}
    floors.LARGE = 1 << 20
    cards = [GpuState(i, pcie_generation_max=1, pcie_width=1, pcie_width_max=1) for i in (0, 1)]
    pair = Pair(0, 1, "PHB", "ok", "ok")
    put(state, "read", lambda *_: State(gpus=tuple(cards), pairs=(pair,), found=True))


def one_mebibyte() -> None:
    """The largest message of the level full."""
    from verify.checks.collectives import operations

    operations.LARGEST.update(gloo=1 << 20, nccl=1 << 20)


def one_mebibyte_on_gpus() -> None:
    two_gpus()
    one_mebibyte()


# Faults of both


def slow_down() -> None:
    """Each call takes far longer than the link needs for it."""
    from verify.checks.collectives import exchange

    replace(exchange, "_seconds", lambda real: lambda *given: [SLOWER * s for s in real(*given)])


def slow_down_without_p2p() -> None:
    slow_down()
    os.environ["NCCL_P2P_DISABLE"] = "1"


def die(*_: Any, **__: Any) -> None:
    """As the kernel's out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang(*_: Any, **__: Any) -> None:
    time.sleep(600)


def _shorten() -> None:
    from verify.checks.collectives import exchange

    exchange.LIMIT_S.update(cuda=SHORT_S, cpu=SHORT_S)


def hang_in(seed: Callable[[], None]) -> Callable[[], None]:
    """With a short limit."""

    def seed_both() -> None:
        _shorten()
        seed()

    return seed_both


# JAX


def change(name: str, how: Callable[[Any], Any]) -> Callable[[], None]:
    """What a collective of jax.lax gives is changed."""

    def seed() -> None:
        import jax

        replace(jax.lax, name, lambda real: lambda *given, **more: how(real(*given, **more)))

    return seed


def swap_the_blocks() -> None:
    """Each block is added up for another device."""
    import jax
    import jax.numpy as jnp

    def make(real: Any) -> Any:
        return lambda x, *more, **most: real(jnp.roll(x, x.shape[0] // 2), *more, **most)

    replace(jax.lax, "psum_scatter", make)


def give_the_round_before() -> None:
    """A buffer that the second round's numbers do not reach."""
    import jax

    def stale(work: Any) -> Any:
        held: Dict[str, Any] = {}

        def run(x: Any) -> Any:
            return held.setdefault(str(x.dtype), work(x))

        return run

    replace(jax, "pmap", lambda real: lambda work, **more: stale(real(work, **more)))


# TensorFlow


def in_replicas(name: str, how: Callable[[Any], Any]) -> Callable[[], None]:
    """What a replica gets of a collective is changed."""

    def seed() -> None:
        import tensorflow as tf

        kind = tf.distribute.ReplicaContext
        replace(kind, name, lambda real: lambda *given: how(real(*given)))

    return seed


def instead(name: str, work: Callable[..., Any]) -> Callable[[], None]:
    """Something else in the place of a collective."""

    def seed() -> None:
        import tensorflow as tf

        replace(tf.distribute.ReplicaContext, name, lambda _: work)

    return seed


def add_one(x: Any) -> Any:
    """In one place of the largest message alone."""
    import tensorflow as tf

    if x.shape[0] != LARGE:
        return x
    return x + tf.cast(tf.equal(tf.range(LARGE), 200_000), x.dtype)


def lose_the_broadcast() -> None:
    """The second device keeps what it had."""
    from verify.checks.collectives.tensorflow import _Collectives

    def make(real: Any) -> Any:
        def broadcast(self: Any, value: Any) -> List[Any]:
            first, second = real(self, value)
            return [first, second * 0]

        return broadcast

    replace(_Collectives, "_broadcast", make)


def keep_the_round_before() -> None:
    """A buffer that the second round's numbers do not reach."""
    from verify.checks.collectives.tensorflow import _Collectives

    held: Dict[str, Any] = {}

    def make(real: Any) -> Any:
        def run(self: Any, name: str, dtype: str, given: Any) -> Any:
            return held.setdefault(name + dtype, real(self, name, dtype, given))

        return run

    replace(_Collectives, "_run", make)


NO_REDUCE = TypeError("Value has DataType float32 not in list of allowed values: none")
LINK = "messages are far slower than the link"
NO_P2P = "P2P is switched off and messages are slow"


def _bandwidth(kill: Callable[[], None]) -> Tuple[Row, ...]:
    check = "collectives.bandwidth"
    return (
        *rows(
            check,
            (LINK, slow_down, "another job uses the links"),
            (NO_P2P, slow_down_without_p2p, "NCCL_P2P_DISABLE is set"),
            sound=two_slow_gpus,
        ),
        *rows(check, ("the process is killed", kill, "killed by SIGKILL")),
    )


def _operations(*faults: Tuple[str, Callable[[], None], str]) -> Tuple[Row, ...]:
    """And the first of them once more between GPUs, where the fix is about them."""
    first = faults[0]
    there = "{}, with GPUs".format(first[0])
    check = "collectives.operations"
    return (
        *rows(check, *faults),
        *rows(check, (there, first[1], "NCCL_P2P_DISABLE"), sound=two_gpus),
    )


def _of_the_largest(seed: Callable[[], None]) -> Tuple[Row, ...]:
    check, fault = "collectives.operations", "one number of the largest sum is wrong"
    word = "has other numbers, 1 of 262144 wrong, first number 200000 of a message of 1 MiB"
    there = "{}, with GPUs".format(fault)
    return (
        *rows(check, (fault, seed, word), sound=one_mebibyte, level="full"),
        *rows(check, (there, seed, "NCCL_P2P_DISABLE"), sound=one_mebibyte_on_gpus, level="full"),
    )


ROWS: Dict[str, Tuple[Row, ...]] = {
    "jax": (
        *_operations(
            (
                "one element of the sum is wrong",
                change("psum", lambda x: x.at[-1].add(1)),
                "all-reduce of float32",
            ),
            (
                "gathered values are in another order",
                change("all_gather", lambda x: x[::-1]),
                "the right numbers in wrong places",
            ),
            ("a reduced block goes to another device", swap_the_blocks, "reduce-scatter of"),
            (
                "a message comes from another device",
                replace_in_lax("ppermute", lambda x, _axis, _ring: x),
                "send and receive of",
            ),
            (
                "an operation gives nothing",
                change("all_to_all", lambda x: x * 0),
                "all-to-all of float32",
            ),
            ("a buffer keeps what came before", give_the_round_before, "the previous call"),
            (
                "there is no all-reduce",
                replace_in_lax("psum", raising(NO_REDUCE)(None)),
                "has no all-reduce",
            ),
            ("devices do not reach each other", fail_to_map, "/dev/shm"),
            (
                "NVLink SHARP does not start",
                replace_in_lax("psum", fail_in_nvls),
                "NCCL_NVLS_ENABLE=0",
            ),
            ("the process is killed", replace_in_lax("psum", die), "at all-reduce of float32"),
            ("an operation hangs", hang_in(replace_in_lax("psum", hang)), "hang"),
        ),
        *_of_the_largest(change("psum", lambda x: x.at[200_000].add(1) if x.size == LARGE else x)),
        *_bandwidth(replace_in_lax("all_gather", die)),
    ),
    "tensorflow": (
        *_operations(
            (
                "the sum is wrong",
                in_replicas("all_reduce", lambda x: x + 1),
                "all-reduce of float32",
            ),
            (
                "gathered values are in another order",
                in_replicas("all_gather", lambda x: x[::-1]),
                "the right numbers in wrong places",
            ),
            ("a broadcast does not come", lose_the_broadcast, "broadcast of float32: rank 1"),
            ("a buffer keeps what came before", keep_the_round_before, "the previous call"),
            (
                "there is no all-reduce",
                instead("all_reduce", raising(NO_REDUCE)(None)),
                "has no all-reduce",
            ),
            (
                "NVLink SHARP does not start",
                instead("all_reduce", fail_in_nvls),
                "NCCL_NVLS_ENABLE=0",
            ),
            ("the process is killed", instead("all_reduce", die), "at all-reduce of float32"),
            ("an operation hangs", hang_in(instead("all_reduce", hang)), "hang"),
        ),
        *_of_the_largest(in_replicas("all_reduce", add_one)),
        *_bandwidth(instead("all_gather", die)),
    ),
}
