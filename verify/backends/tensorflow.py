"""TensorFlow: its devices, and what they compute."""

from __future__ import annotations

import functools
import os
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

from verify.backends import base, tensorflow_numbers
from verify.backends.base import NAMES, ODD, Terms, see
from verify.backends.sight import Sight
from verify.backends.trainer import Trainer
from verify.model.check import Context
from verify.model.measures import seconds_each
from verify.workloads.networks import Network

_MASK = (1 << 64) - 1
TERMS = Terms(
    "TensorFlow",
    "this TensorFlow was built without CUDA: tensorflow-cpu, or a wheel that has none",
    "install tensorflow[and-cuda] (before 2.14: tensorflow on a base image with CUDA and cuDNN)",
)


class Place(base.Place):
    """A device that TensorFlow computes on."""

    @property
    def backend(self) -> base.Backend:
        """TensorFlow."""
        return BACKEND

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

    def lacks(self, dtype: str) -> Optional[str]:
        """Why a dtype is not tried here."""
        if not self.is_gpu and dtype == "fp16":
            return "TensorFlow before 2.13 keeps a CPU's sums in fp16"
        if not self.is_gpu and dtype == "bf16" and sums_in_bf16(_processors()):
            return "TensorFlow sums convolutions of it in bf16 on a CPU without AVX-512"
        return super().lacks(dtype)

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

    def take(self, size: int) -> object:
        """Memory, of which nothing need be written."""
        import tensorflow as tf

        with self.scope():
            return tf.zeros((size >> 20, 1 << 20), tf.uint8)

    def block(self, first: int, count: int, inverted: bool) -> Any:  # noqa: FBT001
        """TensorFlow has no range of int64 on a GPU: a block is the first one and a number."""
        import tensorflow as tf

        with self.scope():
            words = _first_words(self.device, count) + tf.constant(multiples(first, 1))
            return tf.bitwise.invert(words) if inverted else words

    def receive(self, block: Any) -> Any:
        """As TensorFlow moves what another device computed."""
        import tensorflow as tf

        with self.scope():
            return tf.identity(block)

    def differ(self, block: Any, right: Any) -> Tuple[int, int, int, int]:
        """How many words differ, the first of them, what it should be, and what it is."""
        import tensorflow as tf

        with self.scope():
            wrong = tf.not_equal(block, right)
            count = int(tf.math.count_nonzero(wrong))
            at = int(tf.argmax(tf.cast(wrong, tf.int32))) if count else 0
            return count, at, int(right[at]), int(block[at])

    def count_up(self, count: int) -> int:
        """In float64, which holds every partial sum: its int64 has few kernels on a GPU."""
        import numpy as np
        import tensorflow as tf

        with self.scope():
            return int(tf.reduce_sum(tf.constant(np.arange(count, dtype=np.float64))).numpy())

    def product(self, dtype: str, size: int) -> Callable[[], object]:
        """Of normally distributed numbers."""
        import tensorflow as tf

        with self.scope():
            sides = [tf.cast(tf.random.normal((size, size)), NAMES[dtype]) for _ in "ab"]

        def work() -> object:
            with self.scope():
                return tf.linalg.matmul(*sides)

        return work

    def copier(self, size: int) -> Callable[[], object]:
        """A new buffer each time: TensorFlow's own copies within a device share memory."""
        import tensorflow as tf

        with self.scope():
            source = tf.random.normal((size // 4,))

        def work() -> object:
            with self.scope():
                return source + 1.0

        return work

    def put(self, values: Any, dtype: str) -> Any:
        """A tensor of NumPy's numbers, rounded to a dtype, on the device."""
        import tensorflow as tf

        with self.scope():
            return tf.cast(tf.constant(values), NAMES[dtype])

    def get(self, values: Any) -> Any:
        """NumPy's float64."""
        import tensorflow as tf

        with self.scope():
            return tf.cast(values, tf.float64).numpy()

    def multiply(self, left: Any, right: Any, dtype: str) -> Any:
        """The product."""
        import tensorflow as tf

        allow_tf32(on=dtype == "tf32")
        with self.scope():
            return tf.linalg.matmul(left, right)


class TensorFlow(base.Backend):
    """TensorFlow."""

    terms = TERMS
    numbers = tensorflow_numbers
    says_what_is_free = False
    convolves_groups = False  # its kernels for the CPU have no gradient of it

    def place(self, kind: str, index: int = 0) -> Place:
        """A device."""
        return Place(kind, index)

    def architectures(self) -> List[str]:
        """By what its build says."""
        return architectures(build())

    def split_cpu(self) -> None:
        """Two logical devices."""
        cut_the_cpu()

    def count(self) -> int:
        """How many GPUs TensorFlow lists."""
        return len(gpus())

    def look(self, context: Context) -> Sight:
        """Start CUDA through TensorFlow."""
        return look(context)

    def trainer(self, place: Any, network: Network, **options: Any) -> Trainer:
        """Keras's layers and optimisers."""
        from verify.backends.tensorflow_training import KerasTrainer

        return KerasTrainer(place, network, **options)

    def takes(self) -> str:
        """By the settings of memory growth and of limits."""
        return takes(_limits(), any(map(_grows, gpus())))

    def allow_tf32(self, *, on: bool) -> None:
        """TensorFlow's default is to use it."""
        allow_tf32(on=on)

    def ask_for_determinism(self) -> Optional[str]:
        """Since TensorFlow 2.8."""
        import tensorflow as tf

        ask = getattr(tf.config.experimental, "enable_op_determinism", None)
        if ask is None:
            return "this TensorFlow cannot be asked for determinism (2.8 can)"
        ask()
        return None

    def lacks_kernel(self, text: str, dtype: str, gpu: Optional[int]) -> bool:  # noqa: ARG002
        """By TensorFlow's own words for it."""
        return "No OpKernel" in text or "Could not find device for node" in text


BACKEND = TensorFlow()


def architectures(facts: Dict[str, Any]) -> List[str]:
    """As nvcc names them: a build's compute_90 is binary code for 9.0 and PTX (configure.py)."""
    found: List[str] = []
    for name in facts.get("cuda_compute_capabilities") or ():
        text = str(name)
        if text.startswith("compute_"):
            found.append("sm_" + text[len("compute_") :])
        found.append(text if "_" in text else "sm_" + text.replace(".", ""))
    return list(dict.fromkeys(found))


def cut_the_cpu() -> None:
    """Split the CPU into two logical devices, which is possible only before the first operation."""
    import tensorflow as tf

    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)


def all_devices(kind: str) -> List[str]:
    """The names of all GPUs, or of all devices of the CPU."""
    import tensorflow as tf

    found = tf.config.list_logical_devices("GPU" if kind == "cuda" else "CPU")
    return [device.name for device in found]


def multiples(first: int, count: int) -> Any:
    """`count` words of NumPy from index `first` on: the indices times `ODD`."""
    import numpy as np

    words = np.arange(first, first + count, dtype=np.uint64) * np.uint64(ODD & _MASK)
    return words.view(np.int64)


@functools.lru_cache(maxsize=2)  # of both ends of a copy
def _first_words(device: str, count: int) -> Any:  # noqa: ARG001  # one for each device
    import tensorflow as tf

    return tf.constant(multiples(0, count))


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


def allow_tf32(*, on: bool) -> None:
    """Whether products and convolutions of float32 may be rounded to TF32: TensorFlow's default."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(on)


def sums_in_bf16(processors: str) -> bool:
    """Whether the CPU sums convolutions of bf16 in bf16, by /proc/cpuinfo. oneDNN sums them in
    fp32, and TensorFlow gives it bf16 on x86 with AVX-512 or AVX-NE-CONVERT alone
    (IsBF16SupportedByOneDNNOnThisCPU in tensorflow/core/util/util.cc); Eigen does the others.
    """
    flags = re.search(r"^flags\s*:(.*)", processors, re.MULTILINE)
    return flags is not None and not {"avx512f", "avx_ne_convert"} & set(flags[1].split())


def _processors() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


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
