"""Collectives of tf.distribute's MirroredStrategy: their results and their speed."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Sequence, Tuple

from verify.backends.tensorflow import all_devices, cut_the_cpu
from verify.checks.collectives import exchange
from verify.checks.collectives.ranks import Team


def collectives(team: Team) -> exchange.Collectives:
    """Every collective of the framework on the team's devices."""
    return _Collectives(_strategy(team))


def timer(team: Team) -> exchange.Timer:
    """All-reduce and all-gather on the team's devices, to be timed."""
    return _timer(_strategy(team))


def _strategy(team: Team) -> Any:
    import tensorflow as tf

    if team.kind == "cpu":
        cut_the_cpu()
    return tf.distribute.MirroredStrategy(all_devices(team.kind))


class _Collectives:
    """The collectives that users call."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    @property
    def operations(self) -> Sequence[str]:
        """All of them."""
        return ("all-reduce", "all-gather", "broadcast")

    def __call__(self, name: str, dtype: str, given: List[Any]) -> List[Any]:
        """What each device has got."""
        import numpy as np
        import tensorflow as tf

        got = self._got(name, dtype, given)
        return [tf.cast(one, tf.float64).numpy().astype(np.float64) for one in got]

    def free_bytes(self) -> None:
        """TensorFlow does not say it."""

    def wrong(self, name: str, dtype: str, elements: int) -> List[Tuple[int, int]]:
        """Each device makes its own input and expected output."""
        import tensorflow as tf

        devices = self._strategy.extended.worker_devices

        def made(of: Callable[..., Any], i: int) -> Any:
            part = exchange.parts(name, tf.range(elements), len(devices))
            return tf.cast(of(name, part, i, len(devices), lambda all_: tf.concat(all_, 0)), dtype)

        def on_each(of: Callable[..., Any]) -> Iterator[Any]:
            for i, device in enumerate(devices):
                with tf.device(device):
                    yield made(of, i)

        got = self._got(name, dtype, list(on_each(exchange.given)))
        at = [here != right for here, right in zip(got, on_each(exchange.known))]
        return [
            (int(tf.math.count_nonzero(one)), int(tf.argmax(tf.cast(one, tf.int32)))) for one in at
        ]

    def _got(self, name: str, dtype: str, given: List[Any]) -> Any:
        import tensorflow as tf

        if name == "broadcast":
            return self._broadcast(tf.cast(given[-1], dtype))
        return self._run(name, dtype, given)

    def _run(self, name: str, dtype: str, given: List[Any]) -> Any:
        import tensorflow as tf

        def own(context: Any) -> Any:
            return tf.cast(given[context.replica_id_in_sync_group], dtype)

        def work(x: Any) -> Any:
            replica = tf.distribute.get_replica_context()
            return (
                replica.all_reduce("SUM", x) if name == "all-reduce" else replica.all_gather(x, 0)
            )

        @tf.function  # type: ignore[untyped-decorator,unused-ignore]
        def step(values: Any) -> Any:
            return self._strategy.run(work, args=(values,))

        values = self._strategy.experimental_distribute_values_from_function(own)
        return self._strategy.experimental_local_results(step(values))

    def _broadcast(self, value: Any) -> Any:
        """A variable of the strategy has a copy on each device: all get what it is given."""
        import tensorflow as tf

        with self._strategy.scope():
            variable = tf.Variable(tf.zeros_like(value))
        variable.assign(value)
        return self._strategy.experimental_local_results(variable)


def _timer(strategy: Any) -> exchange.Timer:
    """Zeros: their sum stays what it is, however often it is taken."""
    import tensorflow as tf

    def timer(name: str, size: int) -> Tuple[int, exchange.Run]:
        devices, whole = int(strategy.num_replicas_in_sync), name == "all-reduce"
        count = size // 4 if whole else max(1, size // 4 // devices)

        def zeros(_: Any) -> Any:
            return tf.zeros((count,), tf.float32)

        values = strategy.experimental_distribute_values_from_function(zeros)
        step = _stepper(strategy, name, count)

        def run(calls: int) -> None:
            """Every device's last number is asked for: then all of them are there."""
            for one in strategy.experimental_local_results(step(values, tf.constant(calls))):
                float(one[-1])

        return 4 * count * (1 if whole else devices), run

    return timer


def _stepper(strategy: Any, name: str, count: int) -> Callable[..., Any]:
    """So many collectives in one program; each gives what the next one takes."""
    import tensorflow as tf

    def work(x: Any) -> Any:
        if name == "all-reduce":
            return tf.distribute.get_replica_context().all_reduce("SUM", x)
        gathered = tf.distribute.get_replica_context().all_gather(x, 0)
        return tf.ensure_shape(gathered[:count], (count,))

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def step(values: Any, calls: Any) -> Any:
        for _ in tf.range(calls):
            values = strategy.run(work, args=(values,))
        return values

    made: Callable[..., Any] = step
    return made
