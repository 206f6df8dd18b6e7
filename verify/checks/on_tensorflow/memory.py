"""GPU memory through TensorFlow: free memory before it starts, memory contents, running out."""

from __future__ import annotations

import os
from typing import Any, List, Optional

from verify.backends.tensorflow import Place, every, find, gpus
from verify.checks.memory import free as memory
from verify.checks.memory import patterns, recovery
from verify.checks.memory.patterns import BlockDifference, KeptBlocks, judge_patterns
from verify.checks.memory.recovery import NO_ADDRESS, MemoryRequest, attempt, judge_recovery
from verify.model.check import Context, Outcome

ROWS = 32
MIB = 1 << 20


def check_free(context: Context) -> Outcome:
    """What each GPU has free before TensorFlow computes, since it takes nearly all of it then."""
    held, error = memory.read_before(context)
    broken, place = find(context)
    if broken:
        return broken
    if not place.is_gpu:
        return memory.none_visible()
    growing = [_grows(one) for one in gpus()]
    return memory.judge_before(held, error, takes(_limits(), any(growing)))


def _grows(gpu: Any) -> bool:
    """Whether set_memory_growth or TF_FORCE_GPU_ALLOW_GROWTH is in force."""
    import tensorflow as tf

    said = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower()
    return said == "true" or bool(tf.config.experimental.get_memory_growth(gpu))


def _limits() -> List[float]:
    """The MB of each logical device that has a limit."""
    import tensorflow as tf

    found = [tf.config.get_logical_device_configuration(gpu) or () for gpu in gpus()]
    limits = (getattr(one, "memory_limit", None) for some in found for one in some)
    return [float(limit) for limit in limits if limit]


def takes(limits: List[float], growing: bool) -> str:  # noqa: FBT001
    """How much TensorFlow takes of a GPU when it first computes there."""
    if limits:
        said = "TensorFlow allocates at most {:.0f} MB: the smallest limit of its logical devices"
        return said.format(min(limits))
    if growing:
        return "TensorFlow allocates memory on demand: memory growth is on in this run"
    return "TensorFlow allocates nearly all of it at its start: no memory growth, no limit is set"


# What is written is read


def check_pattern(context: Context) -> Outcome:
    """On each GPU, or in a little of the CPU's memory where nothing hints at a GPU."""
    free = {one.device: one.free for one in memory.read_before(context)[0]}
    broken, places = every(context)
    if broken:
        return broken
    share = context.pick(*patterns.SHARES)
    tested = [_keep(one, share, free.get(one.index)) for one in places]
    return judge_patterns(tested, places[0].kind)


def _keep(place: Place, share: float, free: Optional[int]) -> KeptBlocks:
    """Where CUDA does not tell what is free, a part of any GPU."""
    size = patterns.cpu_room()
    if place.is_gpu:
        size = int((patterns.NO_COUNT if free is None else free) * share)
    with place.scope():
        pattern = Pattern()
        return patterns.keep(KeptBlocks(place.index, place.card, size), pattern.write, pattern.read)


class Pattern:
    """Blocks of words that are made on the device of the scope: TensorFlow has no range of int64
    on a GPU, so that each block is the first one and a number.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        self._first = tf.constant(patterns.pattern(0, patterns.BLOCK))

    def write(self, first: int, inverted: bool) -> Any:  # noqa: FBT001
        """A block, from the word of this number on."""
        return self._words(first, inverted=inverted)

    def _words(self, first: int, *, inverted: bool) -> Any:
        import tensorflow as tf

        words = self._first + tf.constant(patterns.pattern(first, 1))
        return tf.bitwise.invert(words) if inverted else words

    def read(self, block: Any, first: int, inverted: bool) -> BlockDifference:  # noqa: FBT001
        """Compare a block with newly generated words."""
        import tensorflow as tf

        right = self._words(first, inverted=inverted)
        wrong = tf.not_equal(block, right)
        count = int(tf.math.count_nonzero(wrong))
        if not count:
            return BlockDifference(0, 0, 0, 0)
        at = int(tf.argmax(tf.cast(wrong, tf.int32)))
        return BlockDifference(count, at, int(right[at]), int(block[at]))


# Running out


def check_recovery(context: Context) -> Outcome:
    """Request twice the first GPU's memory, or more than the CPU has addresses for."""
    total = {one.device: one.total for one in memory.read_before(context)[0]}
    broken, place = find(context)
    if broken:
        return broken
    size = recovery.TIMES * total.get(0, 0) or NO_ADDRESS
    return judge_recovery(_ask(place, size), place.kind)


def _ask(place: Place, size: int) -> MemoryRequest:
    import tensorflow as tf

    def ask() -> object:
        return tf.zeros((size // MIB, MIB), tf.uint8)

    def multiply(left: Any, right: Any) -> Any:
        sides = [tf.constant(side.astype("float32")) for side in (left, right)]
        return tf.linalg.matmul(*sides).numpy()

    with place.scope():
        return attempt(size, ask, multiply, place.held_bytes)


CHECKS = (
    memory.FREE.read_by(check_free),
    memory.PATTERN.read_by(check_pattern),
    memory.RECOVERY.read_by(check_recovery),
)
