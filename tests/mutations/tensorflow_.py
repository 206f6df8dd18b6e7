"""Faults of TensorFlow's libraries, of its way to the GPUs, and of their speed."""

from __future__ import annotations

import contextlib
import site
import time
from pathlib import Path
from typing import Any, Callable, Tuple

from tests.mutations import Row, rows
from tests.mutations.patching import always, maps_of, raising, replace

BUILD = {
    "is_cuda_build": True,
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
}
GPUS: Any = [{"uuid": "GPU-a", "name": "NVIDIA A100", "compute_capability": "8.0"}]
PINNED = "2.21"  # tests/frameworks/place.py


# Sound worlds


def a_cuda_build() -> None:
    """A build with CUDA, by what it says of itself."""
    import tensorflow as tf

    replace(tf.sysconfig, "get_build_info", always(dict(BUILD)))


def a_gpu() -> None:
    """One GPU, by what NVML, the driver and TensorFlow say; nothing can compute on it."""
    import tensorflow as tf

    from verify.device import driver, nvml

    a_cuda_build()
    card = nvml.NvmlGpu("NVIDIA A100", "GPU-a", "8.0", mig=False)
    replace(nvml, "read", always(nvml.Nvml(found=True, driver="550.54", gpus=(card,))))
    replace(driver, "read", always(driver.CudaDriver(found=True, version="12.4", count=1)))
    real = tf.config.list_physical_devices
    tf.config.list_physical_devices = lambda kind=None: ["GPU"] if kind == "GPU" else real(kind)
    said = {"device_name": "NVIDIA A100", "compute_capability": (8, 0)}
    replace(tf.config.experimental, "get_device_details", always(said))


def a_gpu_that_is_the_cpu() -> None:
    """One GPU whose work the CPU does: the kernels are real."""
    from verify.backends.tensorflow import Place

    a_gpu()
    Place.device = property(lambda _: "/CPU:0")  # type: ignore[assignment,method-assign]


def an_old_gpu_that_is_the_cpu() -> None:
    """The same, without units for TF32, bf16 and fp16."""
    import tensorflow as tf

    a_gpu_that_is_the_cpu()
    said = {"device_name": "NVIDIA A100", "compute_capability": (5, 2)}
    replace(tf.config.experimental, "get_device_details", always(said))


def libraries_that_open() -> None:
    """A CUDA build that asks for libraries that are on every machine: its own loader opens them."""
    from verify.checks.libraries import tensorflow as libraries

    a_cuda_build()
    replace(libraries, "sonames", always(["libm.so.6", "libdl.so.2", "libpthread.so.0"]))


def libraries_by_number() -> None:
    """A CUDA build whose libraries open and tell their versions."""
    from verify.checks.libraries import tensorflow as libraries

    libraries_that_open()
    versions = {"libcudart": 12050, "libcudnn": 90300}
    replace(libraries, "library_number", lambda _: versions.get)


def libraries_in_place() -> None:
    """A CUDA build whose libraries lie where NVIDIA's wheels have them."""
    from verify.checks.libraries import tensorflow as libraries

    libraries_that_open()
    replace(libraries, "read_maps", always(maps_of(packages() + "/nvidia/cudnn/lib/libcudnn.so.9")))


def packages() -> str:
    """The folder that TensorFlow is installed in."""
    import tensorflow as tf

    return str(Path(tf.__file__).resolve().parents[1])


# Libraries


def say_cpu_build() -> None:
    """What tensorflow-cpu says of itself."""
    import tensorflow as tf

    replace(tf.sysconfig, "get_build_info", always({"is_cuda_build": False}))


def say_another_version() -> None:
    """An older release in the image."""
    import tensorflow as tf

    tf.__version__ = "2.19.1"


def come_from_home() -> None:
    """The user's own packages are where TensorFlow is."""
    replace(site, "getusersitepackages", always(packages()))


def lose_cudnn() -> None:
    """A library that this machine does not have: the real loader fails."""
    from verify.checks.libraries import tensorflow as libraries

    replace(libraries, "sonames", always(["libm.so.6", "libcudnn.so.9"]))


def keep_cusolver_elsewhere() -> None:
    """A file in a folder that TensorFlow's loader does not look in: 2.21.0 with cusolver."""
    from verify.checks.libraries import tensorflow as libraries

    replace(libraries, "sonames", always(["libm.so.6", "libcusolver.so.11"]))
    replace(libraries, "_folders", always(["/opt/venv/nvidia/cusolver/lib"]))


def give_numbers(**versions: Any) -> Callable[[], None]:
    """Libraries of other versions."""

    def seed() -> None:
        from verify.checks.libraries import tensorflow as libraries

        replace(libraries, "library_number", lambda _: versions.get)

    return seed


def map_files(*paths: str) -> Callable[[], None]:
    """Other library files beside the right one."""

    def seed() -> None:
        from verify.checks.libraries import tensorflow as libraries

        right = packages() + "/nvidia/cudnn/lib/libcudnn.so.9"
        replace(libraries, "read_maps", always(maps_of(right, *paths)))

    return seed


def break_numpy() -> None:
    """NumPy's ABI is another than TensorFlow's."""
    import tensorflow as tf

    replace(tf, "constant", raising(ImportError("numpy._ARRAY_API not found")))


def change_the_array() -> None:
    """What comes back is not what was handed over."""
    import tensorflow as tf

    replace(tf, "constant", lambda real: lambda *args: real(*args) + 1)


# Devices


def list_no_gpu() -> None:
    """TensorFlow takes no GPU, though the driver has one."""
    import tensorflow as tf

    replace(tf.config, "list_physical_devices", always([]))


def hide_from_the_driver() -> None:
    """NVML sees the GPU, CUDA does not start."""
    from verify.device import driver

    list_no_gpu()
    error = "Error 802: system not yet initialized"
    replace(driver, "read", always(driver.CudaDriver(found=True, error=error)))


def be_an_old_gpu() -> None:
    """A GPU older than any code in the build."""
    import tensorflow as tf

    said = {"device_name": "GeForce GTX 980", "compute_capability": (5, 2)}
    replace(tf.config.experimental, "get_device_details", always(said))


def fail_on_the_gpu() -> None:
    """No code for this GPU after all."""
    import tensorflow as tf

    error = RuntimeError("no kernel image is available for execution on the device")
    replace(tf.linalg, "matmul", raising(error))


def lose_a_summand() -> None:
    """A sum that leaves something out."""
    import tensorflow as tf

    replace(tf, "reduce_sum", lambda real: lambda values, *args: real(values[1:], *args) - 1)


def blur_an_edge() -> None:
    """A convolution that pads wrongly."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        return lambda x, w, *more: real(tf.roll(x, 1, axis=1), w, *more)

    replace(tf.nn, "conv2d", make)


def ignore_the_device() -> None:
    """Work lands where TensorFlow pleases."""
    from verify.backends.tensorflow import Place

    replace(Place, "scope", lambda _: lambda _self: contextlib.nullcontext())


def ignore_the_device_in_graphs() -> None:
    """Eager work lands where it should, a graph's does not."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        return lambda name: real(name if tf.executing_eagerly() else "/CPU:0")

    replace(tf, "device", make)


def default_elsewhere() -> None:
    """Work that names no device lands on the second one."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    def make(real: Any) -> Any:
        def matmul(*sides: Any) -> Any:
            if tf.executing_eagerly() and not context.context().device_name:
                with tf.device("/CPU:1"):
                    return real(*sides)
            return real(*sides)

        return matmul

    replace(tf.linalg, "matmul", make)


# Speed


def cannot_multiply() -> None:
    """No product at all."""
    import tensorflow as tf

    replace(tf.linalg, "matmul", raising(RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED")))


def dawdle() -> None:
    """A card far slower than its class."""
    import tensorflow as tf

    def make(real: Any) -> Any:
        def matmul(*sides: Any) -> Any:
            time.sleep(0.1)
            return real(*sides)

        return matmul

    replace(tf.linalg, "matmul", make)


SLOW_SPEC = {**GPUS[0], "spec": {"tflops": {"fp32": 0.008}}}


_LIBRARIES: Tuple[Row, ...] = (
    *rows(
        "libraries.framework",
        ("a CPU build", say_cpu_build, "CPU build of TensorFlow"),
        ("another version than the lock's", say_another_version,
         "2.19.1 instead of the requested 2.21",
         {"framework": {"name": "tensorflow", "version": PINNED}}),
        ("a mounted home brings TensorFlow", come_from_home, "PYTHONNOUSERSITE"),
        sound=a_cuda_build,
    ),
    *rows(
        "libraries.dlopen",
        ("cuDNN is not installed", lose_cudnn, "cannot open libcudnn.so.9"),
        ("cuSOLVER lies where TensorFlow does not look", keep_cusolver_elsewhere,
         "LD_LIBRARY_PATH=/opt/venv/nvidia/cusolver/lib"),
        sound=libraries_that_open,
    ),
    *rows(
        "libraries.cuda",
        ("an older CUDA is found first", give_numbers(libcudart=11080), "running on 11.8"),
        ("the CUDA runtime is missing", give_numbers(libcudnn=90300), "cannot open libcudart"),
        sound=libraries_by_number,
    ),
    *rows(
        "libraries.cudnn",
        ("cuDNN is missing", give_numbers(libcudart=12050), "does not load"),
        ("cuDNN is older than compiled against", give_numbers(libcudnn=8907), "compiled against 9"),
        ("another cuDNN than the lock's", give_numbers(libcudnn=90500),
         "9.5.0 instead of the requested 9.3", {"cudnn": "9.3"}),
        sound=libraries_by_number,
    ),
    *rows(
        "libraries.numpy",
        ("NumPy of another ABI", break_numpy, "do not work together"),
        ("an array comes back changed", change_the_array, "its sum is 15"),
    ),
    *rows(
        "libraries.files",
        ("cuDNN is loaded twice", map_files("/usr/local/cuda/lib64/libcudnn.so.9"),
         "outside the image's packages"),
        ("a stub is loaded", map_files("/usr/local/cuda/lib64/stubs/libcuda.so"), "stub"),
        sound=libraries_in_place,
    ),
)  # fmt: skip
_DEVICES: Tuple[Row, ...] = (
    *rows(
        "devices.count",
        ("TensorFlow uses no GPU", list_no_gpu, "libraries.dlopen"),
        ("CUDA does not start", hide_from_the_driver, "fabric"),
        ("a CPU build", say_cpu_build, "CPU build"),
        sound=a_gpu,
    ),
    *rows(
        "devices.architectures",
        ("a GPU older than the build's code", be_an_old_gpu, "no code for compute capability 5.2"),
        sound=a_gpu,
    ),
    *rows(
        "devices.kernel",
        ("no kernel for this GPU", fail_on_the_gpu, "this GPU is 8.0"),
        ("a sum that is not true", lose_a_summand, "sum: 1 of 1 results wrong"),
        sound=a_gpu_that_is_the_cpu,
    ),
    *rows(
        "devices.convolution",
        ("a convolution that pads wrongly", blur_an_edge, "float32 convolution"),
        sound=a_gpu_that_is_the_cpu,
    ),
    *rows(
        "devices.placement",
        ("work lands elsewhere", ignore_the_device, "ran on CPU:0"),
        ("a graph's work lands elsewhere", ignore_the_device_in_graphs, "in a graph"),
        ("work that names no device lands elsewhere", default_elsewhere, "runs on CPU:1"),
    ),
)
_SPEED: Tuple[Row, ...] = (
    *rows("speed.gemm", ("no product can be timed", cannot_multiply, "nothing was measured")),
    *rows(
        "speed.gemm",
        ("a card far slower than its class", dawdle, "where its class does"),
        sound=an_old_gpu_that_is_the_cpu,
        expect={"gpus": [SLOW_SPEC]},
    ),
)
ROWS = {"tensorflow": (*_LIBRARIES, *_DEVICES, *_SPEED)}
