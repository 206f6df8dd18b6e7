"""GPU memory through JAX: free memory before it starts, memory contents, and running out of it."""

from __future__ import annotations

import os
from typing import Any, Mapping

from verify.backends.jax import Place, every, find
from verify.checks.memory import free as memory
from verify.checks.memory import patterns, recovery
from verify.checks.memory.patterns import BlockDifference, KeptBlocks, judge_patterns
from verify.checks.memory.recovery import NO_ADDRESS, MemoryRequest, attempt, judge_recovery
from verify.model.check import Context, Outcome

ROWS = 256
_SIZES = (64, 256, 64)  # 130 kB: what keeps a copy each step is seen
SHARE = 0.75  # of a GPU that JAX takes unless told otherwise (docs.jax.dev, GPU memory allocation)


def check_free(context: Context) -> Outcome:
    """What each GPU has free before JAX starts, since it takes most of it then."""
    held, error = memory.read_before(context)
    broken, place = find(context)
    if broken:
        return broken
    if not place.is_gpu:
        return memory.none_visible()
    return memory.judge_before(held, error, takes(os.environ))


def takes(environ: Mapping[str, str]) -> str:
    """How much of a GPU JAX takes when it starts, from the variables that it reads."""
    allocator = environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "")
    if allocator == "platform":
        return "JAX allocates memory for each array (XLA_PYTHON_CLIENT_ALLOCATOR=platform)"
    if environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() in ("false", "0"):
        return "JAX allocates memory on demand: XLA_PYTHON_CLIENT_PREALLOCATE is off in this run"
    said = environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    if said:
        return "JAX allocates {} of it when it starts (XLA_PYTHON_CLIENT_MEM_FRACTION)".format(said)
    return "JAX allocates {:.0f} % of it when it starts".format(100 * SHARE)


# What is written is read


def check_pattern(context: Context) -> Outcome:
    """On each GPU, or in a little of the CPU's memory where nothing hints at a GPU."""
    broken, places = every(context)
    if broken:
        return broken
    share = context.pick(*patterns.SHARES)
    return judge_patterns([_keep(one, share) for one in places], places[0].kind)


def _keep(place: Place, share: float) -> KeptBlocks:
    with place.scope():
        size = int(_room(place) * share) if place.is_gpu else patterns.cpu_room()
        kept = KeptBlocks(place.index, place.card, size)
        return patterns.keep(kept, write, read)


def _room(place: Place) -> int:
    """Bytes that JAX's own allocator may still return; a fixed amount if it does not report it."""
    limit = place.limit_bytes()
    return patterns.NO_COUNT if limit is None else limit - (place.held_bytes() or 0)


def write(first: int, inverted: bool) -> Any:  # noqa: FBT001
    """A block of words, made on the device."""
    import jax

    return jax.jit(_words, static_argnums=1)(first, inverted).block_until_ready()


def _words(first: Any, inverted: bool) -> Any:  # noqa: FBT001
    import jax.numpy as jnp

    words = (jnp.arange(patterns.BLOCK, dtype="int64") + first) * patterns.ODD
    return ~words if inverted else words


def read(block: Any, first: int, inverted: bool) -> BlockDifference:  # noqa: FBT001
    """Compare a block with newly generated words."""
    import jax

    count, at, right, found = jax.jit(_compare, static_argnums=2)(block, first, inverted)
    return BlockDifference(int(count), int(at), int(right), int(found))


def _compare(block: Any, first: Any, inverted: bool) -> Any:  # noqa: FBT001
    right = _words(first, inverted)
    wrong = block != right
    at = wrong.argmax()
    return wrong.sum(), at, right[at], block[at]


# Running out


def check_recovery(context: Context) -> Outcome:
    """Request twice the first GPU's memory, or more than the CPU has addresses for."""
    broken, place = find(context)
    return broken or judge_recovery(_ask(place), place.kind)


def _ask(place: Place) -> MemoryRequest:
    import jax
    import jax.numpy as jnp

    size = recovery.TIMES * (place.limit_bytes() or 0) or NO_ADDRESS

    def ask() -> object:
        return jnp.zeros((size,), "uint8").block_until_ready()

    def multiply(left: Any, right: Any) -> Any:
        exact = jax.lax.Precision.HIGHEST
        return jnp.matmul(left.astype("float32"), right.astype("float32"), precision=exact)

    with place.scope():
        return attempt(size, ask, multiply, place.held_bytes)


CHECKS = (
    memory.FREE.read_by(check_free),
    memory.PATTERN.read_by(check_pattern),
    memory.RECOVERY.read_by(check_recovery),
)
