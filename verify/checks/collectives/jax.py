"""Collectives between JAX's devices: their results and their speed."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from verify.backends.jax import all_devices, cut_the_cpu
from verify.checks.collectives import exchange
from verify.checks.collectives.ranks import Team


def collectives(team: Team) -> exchange.Collectives:
    """Every collective of the framework on the team's devices."""
    return _Collectives(_devices(team))


def timer(team: Team) -> exchange.Timer:
    """All-reduce and all-gather on the team's devices, to be timed."""
    return _timer(_devices(team))


def _devices(team: Team) -> List[Any]:
    if team.kind == "cpu":
        cut_the_cpu()
    return all_devices(team.kind)


class _Collectives:
    """The collectives of jax.lax, each compiled once for all devices."""

    def __init__(self, devices: List[Any]) -> None:
        import jax

        self._devices = devices
        self._made: Dict[str, Callable[..., Any]] = {}
        count = len(devices)
        ring = [(i, (i + 1) % count) for i in range(count)]
        self._works: Dict[str, Callable[[Any], Any]] = {
            "all-reduce": lambda x: jax.lax.psum(x, "i"),
            "all-gather": lambda x: jax.lax.all_gather(x, "i", tiled=True),
            "reduce-scatter": lambda x: jax.lax.psum_scatter(x, "i", tiled=True),
            "send and receive": lambda x: jax.lax.ppermute(x, "i", ring),
            "all-to-all": lambda x: jax.lax.all_to_all(x, "i", 0, 0, tiled=True),
        }

    @property
    def operations(self) -> Sequence[str]:
        """All of them."""
        return tuple(self._works)

    def __call__(self, name: str, dtype: str, given: List[Any]) -> List[Any]:
        """What each device has got."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        if name not in self._made:
            work = self._works[name]
            self._made[name] = jax.pmap(work, axis_name="i", devices=self._devices)
        spread = jnp.asarray(np.stack(given)).astype(dtype)
        return list(np.asarray(self._made[name](spread)).astype(np.float64))

    def free_bytes(self) -> Optional[int]:
        """The least of all devices, by JAX's allocator."""
        stats = [device.memory_stats() or {} for device in self._devices]
        if not all("bytes_limit" in one for one in stats):
            return None
        return min(int(one["bytes_limit"] - one["bytes_in_use"]) for one in stats)

    def wrong(self, name: str, dtype: str, elements: int) -> List[Tuple[int, int]]:
        """In one program."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        count = len(self._devices)

        def work(_: Any) -> Any:
            part = exchange.parts(name, jnp.arange(elements), count)
            i = jax.lax.axis_index("i")
            x = exchange.given(name, part, i, count, jnp.concatenate).astype(dtype)
            right = exchange.known(name, part, i, count, jnp.concatenate).astype(dtype)
            at = self._works[name](x) != right
            return jnp.sum(at, dtype="uint32"), jnp.argmax(at)

        program = jax.pmap(work, axis_name="i", devices=self._devices)
        sums, places = (np.asarray(found) for found in program(jnp.zeros(count)))
        return [(int(wrong), int(place)) for wrong, place in zip(sums, places)]


def _timer(devices: List[Any]) -> exchange.Timer:
    """Zeros: their sum stays what it is, however often it is taken.

    All the calls that are timed as one are in one program, so that starting it counts once.
    """
    import jax
    import jax.numpy as jnp

    def reduced(x: Any) -> Any:
        return jax.lax.psum(x, "i")

    def gathered(x: Any) -> Any:
        whole = jax.lax.all_gather(x, "i", tiled=True)
        keep = getattr(jax.lax, "optimization_barrier", lambda value: value)
        return keep(whole)[: x.shape[0]]  # as long as what was given, to be given again

    def timer(name: str, size: int) -> Tuple[int, exchange.Run]:
        whole = name == "all-reduce"
        count = size // 4 if whole else max(1, size // 4 // len(devices))
        zeros = jnp.zeros((len(devices), count), "float32")
        made: Dict[int, Any] = {}

        def run(calls: int) -> object:
            if calls not in made:
                made[calls] = _program(reduced if whole else gathered, calls, devices)
            return jax.block_until_ready(made[calls](zeros))

        return 4 * count * (1 if whole else len(devices)), run

    return timer


def _program(step: Callable[[Any], Any], calls: int, devices: List[Any]) -> Any:
    import jax

    def several(x: Any) -> Any:
        return jax.lax.fori_loop(0, calls, lambda _, y: step(y), x)

    return jax.pmap(several, axis_name="i", devices=devices)
