"""TensorFlow: its devices, and what they compute."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from verify.backends import base
from verify.backends.base import NAMES, ConvolutionCase, Terms, see
from verify.backends.sight import Sight
from verify.backends.trainer import Trainer
from verify.model.check import Context, Outcome
from verify.model.measures import seconds_each
from verify.workloads.networks import Network

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

    def convolve(
        self,
        case: ConvolutionCase,
        given: Sequence[Any],
        dtype: str,
        layout: str,  # noqa: ARG002
    ) -> Sequence[Any]:
        """The result, and the gradients by image and weight."""
        import tensorflow as tf

        allow_tf32(on=dtype == "tf32")
        image, weight, back = (self.put(numbers, dtype) for numbers in given)
        edge = [case.padding, case.padding]
        with self.scope(), tf.GradientTape() as tape:
            tape.watch([image, weight])
            padded = tf.pad(image, [[0, 0], edge, edge, [0, 0]])  # oneDNN's gradients need "VALID"
            result = tf.nn.conv2d(padded, weight, case.stride, "VALID")
        with self.scope():
            found = (result, *tape.gradient(result, [image, weight], output_gradients=back))
        return [self.get(one) for one in found]


class TensorFlow(base.Backend):
    """TensorFlow."""

    terms = TERMS
    convolves_groups = False  # its kernels for the CPU have no gradient of it

    def place(self, kind: str, index: int = 0) -> Place:
        """A device."""
        return Place(kind, index)

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


def find(context: Context) -> Tuple[Optional[Outcome], Place]:
    """As `Backend.find`."""
    return BACKEND.find(context)


def find_gpus(context: Context) -> Tuple[Optional[Outcome], Tuple[Place, ...]]:
    """As `Backend.find_gpus`."""
    return BACKEND.find_gpus(context)


def every(context: Context) -> Tuple[Optional[Outcome], Tuple[Place, ...]]:
    """As `Backend.every`."""
    return BACKEND.every(context)
