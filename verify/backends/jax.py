"""JAX: its devices, and what they compute."""

from __future__ import annotations

import logging
import os
import re
from importlib import metadata
from typing import Any, Callable, List, Mapping, Optional, Tuple

from verify.backends import base, jax_numbers
from verify.backends.base import DTYPES, NAMES, ODD, Terms, see
from verify.backends.sight import Sight
from verify.backends.trainer import Trainer
from verify.model.check import Context
from verify.model.measures import seconds_each
from verify.workloads.networks import Network

MAJORS = (13, 12, 11)  # of CUDA, for which there are or were plugins
SHARE = 0.75  # of a GPU that JAX takes unless told otherwise (docs.jax.dev, GPU memory allocation)
TERMS = Terms(
    "JAX",
    "jaxlib without a CUDA plugin computes on the CPU only",
    "install jax[cuda12] or jax[cuda13], the plugin of jaxlib's own version",
)


class Place(base.Place):
    """A device that JAX computes on."""

    @property
    def backend(self) -> base.Backend:
        """JAX."""
        return BACKEND

    @property
    def device(self) -> Any:
        """JAX's device."""
        import jax

        return gpus()[self.index] if self.is_gpu else jax.devices("cpu")[self.index]

    @property
    def capability(self) -> Optional[Tuple[int, int]]:
        """The compute capability; None on the CPU."""
        if not self.is_gpu:
            return None
        said = str(getattr(self.device, "compute_capability", "0.0"))
        major, _, minor = said.partition(".")
        return int(major), int(minor or 0)

    @property
    def card(self) -> str:
        """The GPU's name."""
        return str(self.device.device_kind) if self.is_gpu else "CPU"

    def scope(self) -> Any:
        """The context in which arrays are made and computed here."""
        import jax

        return jax.default_device(self.device)

    def synchronize(self) -> None:
        """Return when all work given to the device is done: a GPU does it in the order given."""
        import jax

        (jax.device_put(1.0, self.device) + 1.0).block_until_ready()

    def held_bytes(self) -> Optional[int]:
        """What JAX has taken of the GPU's memory for arrays; None on the CPU, and where it does not
        count (XLA_PYTHON_CLIENT_ALLOCATOR=platform).
        """
        return self._counted("bytes_in_use")

    def limit_bytes(self) -> Optional[int]:
        """What JAX may take of the GPU's memory at most; None as for `held_bytes`."""
        return self._counted("bytes_limit")

    def _counted(self, name: str) -> Optional[int]:
        found = (self.device.memory_stats() or {}) if self.is_gpu else {}
        value = found.get(name)
        return None if value is None else int(value)

    def seconds(
        self, work: Callable[[], Any], *, repeats: int, warm_up: int = 3, calls: int = 1
    ) -> List[float]:
        """Seconds of each call, as the mean of `calls` that are waited for together.

        The CPU's calls are waited for one by one, since it may work at several at a time.
        """
        import jax

        def several() -> None:
            for left in reversed(range(calls)):
                result = work()
                if not (self.is_gpu and left):
                    jax.block_until_ready(result)

        warm_up = warm_up if self.is_gpu else min(warm_up, 1)
        return [each / calls for each in seconds_each(several, repeats=repeats, warm_up=warm_up)]

    def lacks(self, dtype: str) -> Optional[str]:
        """Why a dtype is not tried here."""
        if not self.is_gpu and dtype == "fp16":
            return "XLA keeps a CPU's sums in fp16"
        return super().lacks(dtype)

    def cannot_mix(self, dtype: str) -> Optional[str]:
        """Why mixed precision with a dtype is not tried here."""
        return "JAX has no loss scaler of its own" if dtype == "fp16" else super().cannot_mix(dtype)

    def free_bytes(self) -> Optional[int]:
        """What JAX's own allocator may still give."""
        limit = self._counted("bytes_limit")
        return None if limit is None else limit - (self.held_bytes() or 0)

    def take(self, size: int) -> object:
        """Memory, of which nothing need be written."""
        import jax.numpy as jnp

        with self.scope():
            return jnp.zeros((size,), "uint8").block_until_ready()

    def block(self, first: int, count: int, inverted: bool) -> Any:  # noqa: FBT001
        """Compiled, so that no further block is needed."""
        import jax

        with self.scope():
            return jax.jit(_words, static_argnums=(1, 2))(
                first, count, inverted
            ).block_until_ready()

    def receive(self, block: Any) -> Any:
        """As JAX moves an array to another device."""
        import jax

        return jax.device_put(block, self.device)

    def differ(self, block: Any, right: Any) -> Tuple[int, int, int, int]:
        """How many words differ, the first of them, what it should be, and what it is."""
        import jax

        with self.scope():
            count, at, known, found = jax.jit(_compare)(block, right)
        return int(count), int(at), int(known), int(found)

    def count_up(self, count: int) -> int:
        """In int64."""
        import jax.numpy as jnp

        with self.scope():
            return int(jnp.arange(count, dtype="int64").sum())

    def product(self, dtype: str, size: int) -> Callable[[], object]:
        """Of normally distributed numbers."""
        multiply = jax_numbers.compiled_product(dtype)
        sides = [self._random(size * size, seed).reshape(size, size) for seed in (1, 2)]
        left, right = (side.astype(NAMES[dtype]) for side in sides)
        return lambda: multiply(left, right)

    def _random(self, count: int, seed: int) -> Any:
        import jax

        with self.scope():
            return jax.random.normal(jax.random.PRNGKey(seed), (count,), "float32")

    def copier(self, size: int) -> Callable[[], object]:
        """A new buffer each time: JAX hands on what is not changed."""
        import jax

        source, change = self._random(size // 4, 1), jax.jit(lambda x: x + 1)
        return lambda: change(source)

    def cannot_pin(self) -> Optional[str]:
        """JAX has it as one of a device's memories."""
        if "pinned_host" in {memory.kind for memory in self.device.addressable_memories()}:
            return None
        return "this JAX has no pinned memory of the host"

    def transfer(self, way: str, size: int) -> Callable[[], object]:
        """An array keeps its copy of NumPy's, so that a new one is made for each: at the speed of
        the GPU's memory, which is far above a link's.
        """
        import jax
        import numpy as np

        kind = jax.sharding.SingleDeviceSharding
        here, pinned = kind(self.device), kind(self.device, memory_kind="pinned_host")
        host = np.full(size, 165, np.uint8)
        source = jax.device_put(host, pinned if way == "h2d_pinned" else here)
        change = jax.jit(lambda x: x + 1)
        ways = {
            "h2d_pinned": lambda: jax.device_put(source, here),
            "d2h_pinned": lambda: jax.device_put(source, pinned),
            "h2d_pageable": lambda: jax.device_put(host, here),
            "d2h_pageable": lambda: np.asarray(change(source)),
        }
        return ways[way]

    def peak_bytes(self, work: Callable[[], object]) -> Optional[int]:
        """JAX does not reset its count: it is the work's if the work exceeds all before it."""
        import jax

        before = self._counted("peak_bytes_in_use")
        jax.block_until_ready(work())
        after = self._counted("peak_bytes_in_use")
        return after if after is not None and after > (before or 0) else None

    def put(self, values: Any, dtype: str) -> Any:
        """An array of NumPy's numbers, rounded to a dtype, on the device."""
        import jax.numpy as jnp

        with self.scope():
            return jnp.asarray(values).astype(NAMES[dtype])

    def get(self, values: Any) -> Any:
        """NumPy's float64, which knows bfloat16 by no name of its own."""
        import numpy as np

        return np.asarray(values).astype(np.float64)

    def multiply(self, left: Any, right: Any, dtype: str) -> Any:
        """The product."""
        with self.scope():
            return jax_numbers.compiled_product(dtype)(left, right)


class Jax(base.Backend):
    """JAX."""

    terms = TERMS
    numbers = jax_numbers
    attentions = ("xla", "cudnn")
    dtypes = (*DTYPES[:5], "int8")

    def place(self, kind: str, index: int = 0) -> Place:
        """A device."""
        return Place(kind, index)

    def trainer(self, place: Any, network: Network, **options: Any) -> Trainer:
        """Layers and optimisers in plain JAX."""
        from verify.backends.jax_training import JaxTrainer

        return JaxTrainer(place, network, **options)

    def takes(self) -> str:
        """By the variables that JAX reads when it starts."""
        return takes(os.environ)

    def ask_for_determinism(self) -> Optional[str]:
        """XLA reads its flags once, when it starts."""
        add_flag("--xla_gpu_deterministic_ops=true")
        return None

    def split_cpu(self) -> None:
        """Before XLA starts."""
        cut_the_cpu()

    def count(self) -> int:
        """How many GPUs JAX lists."""
        return len(gpus())

    def look(self, context: Context) -> Sight:
        """Start CUDA through JAX, with float64, which is off by default."""
        wide()
        return look(context)


BACKEND = Jax()


def _words(first: Any, count: int, inverted: bool) -> Any:  # noqa: FBT001
    import jax.numpy as jnp

    words = (jnp.arange(count, dtype="int64") + first) * ODD
    return ~words if inverted else words


def _compare(block: Any, right: Any) -> Any:
    wrong = block != right
    at = wrong.argmax()
    return wrong.sum(), at, right[at], block[at]


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


def add_flag(flag: str) -> None:
    """Add to what XLA reads when it starts."""
    os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " " + flag).strip()


def cut_the_cpu() -> None:
    """Configure XLA, which has not started yet, for two CPU devices."""
    if "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        add_flag("--xla_force_host_platform_device_count=2")


def all_devices(kind: str) -> List[Any]:
    """All GPUs, or all devices of the CPU."""
    import jax

    return list(jax.devices("gpu" if kind == "cuda" else "cpu"))


def wide() -> None:
    """Enable float64."""
    import jax

    jax.config.update("jax_enable_x64", True)  # noqa: FBT003


def plugin() -> Optional[Tuple[int, str]]:
    """The CUDA plugin that is installed: its CUDA's major version and its own version.

    Before 0.4.22 CUDA was in jaxlib itself, and its version said so: 0.4.20+cuda12.cudnn89.
    """
    for major in MAJORS:
        version = installed("jax-cuda{}-plugin".format(major))
        if version is not None:
            return major, version
    built_in = installed("jaxlib") or ""
    match = re.search(r"\+cuda(\d\d)", built_in)
    return (int(match.group(1)), built_in) if match else None


def installed(distribution: str) -> Optional[str]:
    """The version of a distribution; None if it is not there."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def gpus() -> List[Any]:
    """The GPUs that JAX itself lists, which starts CUDA."""
    import jax

    return list(jax.devices("gpu"))


class _Log(logging.Handler):
    """Keeps JAX's log messages about a plugin that does not start: it reports that only there."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: List[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info and record.exc_info[1]
        said = str(raised or record.getMessage()).strip()
        if "Falling back to cpu" not in said:
            self.reasons.append(said)


def list_gpus() -> Tuple[int, Optional[str]]:
    """How many GPUs JAX lists, or why it lists none."""
    log, logger = _Log(), logging.getLogger("jax._src.xla_bridge")
    logger.addHandler(log)
    try:
        return len(gpus()), None
    except Exception as error:  # RuntimeError: no such backend
        asked = os.environ.get("JAX_PLATFORMS")
        if asked and not {"cuda", "gpu"} & set(asked.split(",")):
            return 0, "JAX_PLATFORMS={} leaves the GPUs out".format(asked)
        reasons = log.reasons or [str(error)]
        return 0, reasons[0].partition("\n")[0]
    finally:
        logger.removeHandler(log)


def look(context: Context) -> Sight:
    """Start CUDA through JAX, in this child."""
    found = plugin()
    usable, error = list_gpus()
    return see(context, str(found[0]) if found else None, usable, error)
