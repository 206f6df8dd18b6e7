"""Where a TensorFlow check runs: on a GPU, or on the CPU if nothing hints at a GPU.

All differences between the two are here, so that a check's own code is the same on both.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from verify.backends.dialect import Dialect, FoundDevice, judge_absent, judge_there, see
from verify.backends.sight import Sight
from verify.model.check import Context, Outcome
from verify.model.measures import seconds_each

DIALECT = Dialect(
    "TensorFlow",
    "this TensorFlow was built without CUDA: tensorflow-cpu, or a wheel that has none",
    "install tensorflow[and-cuda] (before 2.14: tensorflow on a base image with CUDA and cuDNN)",
)


class Place(FoundDevice):
    """A device that TensorFlow computes on."""

    @property
    def device(self) -> str:
        """TensorFlow's name of it."""
        return "/{}:{}".format("GPU" if self.is_gpu else "CPU", self.index)

    @property
    def capability(self) -> Optional[Tuple[int, int]]:
        """The compute capability; None on the CPU."""
        return details(self.index)[1] if self.is_gpu else None

    @property
    def card(self) -> str:
        """The GPU's name."""
        return details(self.index)[0] if self.is_gpu else "CPU"

    def scope(self) -> Any:
        """The context in which operations are placed here."""
        import tensorflow as tf

        return tf.device(self.device)

    def synchronize(self) -> None:
        """Return when all work given to the device is done.

        A GPU has one compute stream, and a copy to the host waits for what was put there before.
        """
        import tensorflow as tf

        with self.scope():
            (tf.constant(1.0) + 1.0).numpy()

    def seconds(
        self, work: Callable[[], object], *, repeats: int, warm_up: int = 3, calls: int = 1
    ) -> List[float]:
        """Seconds of each call, as the mean of `calls` that are waited for together."""

        def several() -> None:
            for _ in range(calls):
                work()

        warm_up = warm_up if self.is_gpu else min(warm_up, 1)
        found = seconds_each(several, repeats=repeats, wait=self.synchronize, warm_up=warm_up)
        return [seconds / calls for seconds in found]

    def held_bytes(self) -> Optional[int]:
        """What TensorFlow has taken of the GPU's memory for tensors; None on the CPU."""
        import tensorflow as tf

        info = getattr(tf.config.experimental, "get_memory_info", None)
        return int(info(self.device[1:])["current"]) if self.is_gpu and info else None

    def peak_bytes(self, work: Callable[[], object]) -> Optional[int]:
        """The most memory that TensorFlow held during the work; None where it does not count."""
        import tensorflow as tf

        reset = getattr(tf.config.experimental, "reset_memory_stats", None)
        if not self.is_gpu or reset is None:
            work()
            return None
        self.synchronize()
        reset(self.device[1:])
        work()
        self.synchronize()
        return int(tf.config.experimental.get_memory_info(self.device[1:])["peak"])


def build() -> Dict[str, Any]:
    """How this TensorFlow was built."""
    import tensorflow as tf

    return dict(tf.sysconfig.get_build_info())


def cuda_version() -> Optional[str]:
    """The CUDA it was compiled for; None for a CPU build."""
    facts = build()
    return str(facts.get("cuda_version") or "unknown") if facts.get("is_cuda_build") else None


def gpus() -> List[Any]:
    """The GPUs that TensorFlow itself lists, which starts CUDA."""
    import tensorflow as tf

    return list(tf.config.list_physical_devices("GPU"))


def details(index: int) -> Tuple[str, Optional[Tuple[int, int]]]:
    """A GPU's name and compute capability."""
    import tensorflow as tf

    said = tf.config.experimental.get_device_details(gpus()[index])
    capability = said.get("compute_capability")
    return str(said.get("device_name", "GPU")), capability and (capability[0], capability[1])


def look(context: Context) -> Sight:
    """Start CUDA through TensorFlow in this child. Only its log says why it lists no GPU."""
    cuda, usable = cuda_version(), len(gpus())
    unsaid = "the driver has GPUs, but TensorFlow lists none: see libraries.dlopen"
    return see(context, cuda, usable, unsaid)


def find(context: Context) -> Tuple[Optional[Outcome], Place]:
    """The first GPU, or the CPU; or a failure if there should be a GPU and there is none."""
    seen = look(context)
    return judge_there(seen, DIALECT), Place("cuda" if seen.torch_cuda and seen.usable else "cpu")


def find_gpus(context: Context) -> Tuple[Optional[Outcome], Tuple[Place, ...]]:
    """Every GPU; or the skip or failure of a check that needs one."""
    seen = look(context)
    absent = judge_absent(seen, DIALECT)
    return absent, () if absent else tuple(Place("cuda", i) for i in range(seen.usable))


def every(context: Context) -> Tuple[Optional[Outcome], Tuple[Place, ...]]:
    """Every GPU, or the CPU if nothing hints at one."""
    broken, place = find(context)
    if broken or not place.is_gpu:
        return broken, (place,)
    return None, tuple(Place("cuda", i) for i in range(len(gpus())))
