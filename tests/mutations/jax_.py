"""Faults of JAX: its parts and libraries, its way to the GPUs, arithmetic, training, devices."""

from __future__ import annotations

import contextlib
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Tuple

from tests.mutations import Row, rows
from tests.mutations.patching import always, maps_of, raising, replace

GPU: Any = {"uuid": "GPU-a", "name": "NVIDIA A100", "compute_capability": "8.0"}
NUMBERS = {
    "cuda_runtime_get_version": 12090,
    "cuda_runtime_build_version": 12090,
    "cudnn_get_version": 90800,
    "cudnn_build_version": 90800,
}

# Sound worlds


def a_plugin(**other: str) -> None:
    """The CUDA plugin of jaxlib's own version, or of another."""
    own = metadata.version("jaxlib")
    parts = {"jax-cuda12-plugin": own, "jax-cuda12-pjrt": own}
    parts.update({name.replace("_", "-"): version for name, version in other.items()})

    def make(real: Any) -> Any:
        return lambda name: parts.get(name) or real(name)

    replace(metadata, "version", make)


def libraries_by_number(**other: Any) -> None:
    """A plugin whose libraries load and tell their versions."""
    from verify.checks.libraries import jax as libraries

    a_plugin()
    said = {name: (lambda value=value: value) for name, value in {**NUMBERS, **other}.items()}
    replace(libraries, "versions", always(SimpleNamespace(**said)))


def libraries_in_place() -> None:
    """A plugin whose libraries lie where NVIDIA's wheels have them."""
    map_files()()


def a_gpu() -> None:
    """One GPU, by what NVML, the driver and JAX say; its work is the CPU's."""
    import jax

    from verify.device import driver, nvml

    a_plugin()
    card = nvml.NvmlGpu("NVIDIA A100", "GPU-a", "8.0", mig=False)
    replace(nvml, "read", always(nvml.Nvml(found=True, driver="550.54", gpus=(card,))))
    replace(driver, "read", always(driver.CudaDriver(found=True, version="12.4", count=1)))
    replace(jax, "devices", lambda real: lambda _kind=None: real("cpu"))


def a_gpu_that_multiplies() -> None:
    """The same, with a name that its figures go by, and without units for TF32, bf16 and fp16."""
    from verify.backends.jax import Place

    a_gpu()
    Place.card = property(lambda _: "NVIDIA A100")  # type: ignore[assignment,method-assign]
    Place.capability = property(lambda _: (5, 2))  # type: ignore[assignment,method-assign]


# Libraries


def lose_the_plugin() -> None:
    """jaxlib alone."""
    replace(metadata, "version", raising(metadata.PackageNotFoundError("jax-cuda12-plugin")))


def keep_an_old_plugin() -> None:
    """A plugin that jaxlib left behind."""
    a_plugin(jax_cuda12_plugin="0.9.1", jax_cuda12_pjrt="0.9.1")


def have_two_plugins() -> None:
    """Both CUDA 12 and CUDA 13."""
    a_plugin(jax_cuda13_plugin=metadata.version("jaxlib"))


def say_another_version() -> None:
    """An older release in the image."""
    import jax

    jax.__version__ = "0.9.1"


def give_numbers(**versions: int) -> Callable[[], None]:
    """Libraries of other versions."""
    return lambda: libraries_by_number(**versions)


def fail_to_load() -> None:
    """The libraries are not there."""
    from verify.checks.libraries import jax as libraries

    error = RuntimeError("cuDNN: unable to load libcudnn.so.9")
    ask = raising(error)(None)
    replace(libraries, "versions", always(SimpleNamespace(**dict.fromkeys(NUMBERS, ask))))


def map_files(*paths: str) -> Callable[[], None]:
    """Library files beside the right one."""

    def seed() -> None:
        import jaxlib  # type: ignore[import-not-found,unused-ignore]

        from verify.checks.libraries import jax as libraries

        a_plugin()
        packages = Path(jaxlib.__file__).resolve().parents[1]
        right = str(packages / "nvidia/cudnn/lib/libcudnn.so.9")
        replace(libraries, "read_maps", always(maps_of(right, *paths)))

    return seed


# Devices


def list_no_gpu() -> None:
    """JAX falls back to the CPU, though the driver has a GPU."""
    import jax

    error = RuntimeError("Unknown backend: 'gpu' requested, but no such platforms are present")
    replace(jax, "devices", raising(error))


def hide_from_the_driver() -> None:
    """NVML sees the GPU, CUDA does not start."""
    from verify.device import driver

    list_no_gpu()
    error = "Error 803: system has unsupported display driver / cuda driver combination"
    replace(driver, "read", always(driver.CudaDriver(found=True, error=error)))


def lose_a_summand() -> None:
    """A sum that leaves something out."""
    import jax.numpy as jnp

    replace(jnp, "arange", lambda real: lambda *args, **more: real(*args, **more)[:-1])


def fail_to_multiply() -> None:
    """No code for this GPU after all."""
    import jax.numpy as jnp

    error = RuntimeError("no kernel image is available for execution on the device")
    replace(jnp, "matmul", raising(error))


def ignore_the_device() -> None:
    """Work runs where JAX pleases."""
    from verify.backends.jax import Place

    replace(Place, "scope", lambda _: lambda _self: contextlib.nullcontext())


def move_compiled_results() -> None:
    """Eager work runs where it should, a compiled function's result is moved."""
    import jax

    def make(real: Any) -> Any:
        def jit(work: Any) -> Any:
            compiled = real(work)
            return lambda *given: jax.device_put(compiled(*given), jax.devices("cpu")[0])

        return jit

    replace(jax, "jit", make)


def default_elsewhere() -> None:
    """Work that names no device runs on the second one."""
    import jax

    from verify.backends.jax import cut_the_cpu

    cut_the_cpu()
    jax.config.update("jax_default_device", jax.devices("cpu")[1])


# Compiling


def pass_xla_over() -> None:
    """JAX_DISABLE_JIT is set."""
    import jax

    jax.config.update("jax_disable_jit", True)  # noqa: FBT003


def lose_libdevice() -> None:
    """CUDA's math functions are not found."""
    import jax

    replace(jax, "jit", raising(RuntimeError("libdevice not found at ./libdevice.10.bc")))


def bend_tanh() -> None:
    """A transcendental function that is a little off."""
    import jax.numpy as jnp

    replace(jnp, "tanh", lambda real: lambda x: real(x) * 1.001)


# Arithmetic


def spoil_products(how: Callable[[Any], Any]) -> Callable[[], None]:
    """Products that `how` changes."""

    def seed() -> None:
        import jax.numpy as jnp

        replace(jnp, "matmul", lambda real: lambda *sides, **more: how(real(*sides, **more)))

    return seed


def round_like_tf32(*, always: bool = True) -> None:
    """fp32's factors lose 13 bits, as with TF32: of all products, or of those that allow it."""
    import jax
    import jax.numpy as jnp

    def short(side: Any) -> Any:
        if side.dtype != "float32":
            return side
        cast = jax.lax.bitcast_convert_type
        return cast(cast(side, "int32") & -8192, "float32")

    def make(real: Any) -> Any:
        def product(*sides: Any, **more: Any) -> Any:
            allowed = more.get("precision") == jax.lax.Precision.DEFAULT
            return real(*(map(short, sides) if always or allowed else sides), **more)

        return product

    replace(jnp, "matmul", make)


def a_gpu_with_tf32() -> None:
    """One GPU that rounds the factors of fp32 products where TF32 is allowed."""
    from verify.backends.jax import Place

    a_gpu()
    Place.capability = property(lambda _: (8, 0))  # type: ignore[assignment,method-assign]
    round_like_tf32(always=False)


def ask_for(dtype: str) -> Callable[[], None]:
    """Every product has the precision of this one."""

    def seed() -> None:
        from verify.backends import jax_numbers

        replace(jax_numbers, "precision", lambda real: lambda _: real(dtype))

    return seed


def weaken_the_gradient(index: int, of: str = "lax.conv_general_dilated") -> Callable[[], None]:
    """A function of jax whose gradient by one of its arrays is 5 % small."""

    def seed() -> None:
        import jax

        def make(real: Any) -> Any:
            @jax.custom_jvp  # type: ignore[untyped-decorator,unused-ignore]
            def weaken(side: Any) -> Any:
                return side

            weaken.defjvps(lambda tangent, _answer, _side: tangent * 0.95)

            def work(*given: Any, **more: Any) -> Any:
                changed = (weaken(one) if i == index else one for i, one in enumerate(given))
                return real(*changed, **more)

            return work

        module, name = of.split(".")
        replace(getattr(jax, module), name, make)

    return seed


def forget_the_mask() -> None:
    """Attention looks ahead."""
    import jax

    def make(real: Any) -> Any:
        return lambda *given, **more: real(*given, **{**more, "is_causal": False})

    replace(jax.nn, "dot_product_attention", make)


def drop_pixels() -> None:
    """A convolution that leaves a row of results out."""
    import jax

    def make(real: Any) -> Any:
        return lambda *args, **more: real(*args, **more).at[:, 0].set(0)

    replace(jax.lax, "conv_general_dilated", make)


def forget_the_seed() -> None:
    """Randomness that no seed fixes."""
    import jax
    import numpy as np

    def normal(_key: Any, shape: Any) -> Any:
        return np.random.default_rng().standard_normal(shape).astype("float32")

    replace(jax.random, "normal", lambda _: normal)


def change_gradients(how: Callable[[Any], Any]) -> Callable[[], None]:
    """Gradients that `how` changes."""

    def seed() -> None:
        import jax

        def make(real: Any) -> Any:
            def changed(value: Any) -> Any:
                plain = real(value)

                def both(*args: Any) -> Any:
                    loss, grads = plain(*args)
                    return loss, jax.tree_util.tree_map(how, grads)

                return both

            return changed

        replace(jax, "value_and_grad", make)

    return seed


def keep_results() -> None:
    """What each compiled step gave, in a list that nobody empties."""
    import jax

    kept = []

    def keeping(step: Any) -> Any:
        def run(*given: Any) -> Any:
            kept.append(step(*given))
            return kept[-1]

        return run

    replace(jax, "jit", lambda real: lambda step: keeping(real(step)))


def save_other(part: str) -> Callable[[], None]:
    """A file that keeps one part of the state with fewer bits."""

    def seed() -> None:
        import numpy as np

        def make(real: Any) -> Any:
            def save(file: Any, **parts: Any) -> None:
                real(file, **{k: v // 2 if k.startswith(part) else v for k, v in parts.items()})

            return save

        replace(np, "savez", make)

    return seed


def compute_in_fp32() -> None:
    """bf16 that is none."""
    from verify.backends import base

    base.NAMES["bf16"] = "float32"


# Several devices


def replace_in_lax(name: str, value: Callable[..., Any]) -> Callable[[], None]:
    """A collective that does something else."""

    def seed() -> None:
        import jax

        replace(jax.lax, name, lambda _: value)

    return seed


def sum_gradients() -> None:
    """Gradients added up and not averaged."""
    import jax

    replace(jax.lax, "pmean", lambda _: jax.lax.psum)


def fail_to_map() -> None:
    """Devices that do not reach each other."""
    import jax

    error = RuntimeError("NCCL WARN Error while creating shared memory segment (size 9637888)")
    replace(jax, "pmap", raising(error))


# Speed


def dawdle() -> None:
    """A card far slower than its class."""
    import jax

    def make(real: Any) -> Any:
        def jit(function: Any) -> Any:
            fast = real(function)

            def slow(*args: Any) -> Any:
                time.sleep(0.1)
                return fast(*args)

            return slow

        return jit

    replace(jax, "jit", make)


_LIBRARIES: Tuple[Row, ...] = (
    *rows(
        "libraries.framework",
        ("the CUDA plugin is missing", lose_the_plugin, "CPU build of JAX"),
        ("the plugin is of another version", keep_an_old_plugin,
         "jax-cuda12-plugin 0.9.1 beside jaxlib"),
        ("two plugins are installed", have_two_plugins, "jax-cuda13-plugin and jax-cuda12-plugin"),
        ("another version than the lock's", say_another_version,
         "0.9.1 instead of the requested 0.10", {"framework": {"name": "jax", "version": "0.10"}}),
        sound=a_plugin,
    ),
    *rows(
        "libraries.cuda",
        ("CUDA of another major version", give_numbers(cuda_runtime_get_version=11080),
         "CUDA 11.8 with a plugin for CUDA 12"),
        ("another CUDA than the lock's", give_numbers(cuda_runtime_get_version=12060),
         "CUDA 12.6 instead of the requested 12.9", {"cuda": "12.9"}),
        ("the CUDA runtime does not load", fail_to_load, "does not load"),
        sound=libraries_by_number,
    ),
    *rows(
        "libraries.cudnn",
        ("cuDNN does not load", fail_to_load, "cuDNN does not load"),
        ("cuDNN is older than JAX was built with", give_numbers(cudnn_get_version=90100),
         "cuDNN 9.1.0, compiled against 9.8.0"),
        sound=libraries_by_number,
    ),
    *rows(
        "libraries.files",
        ("cuDNN is loaded twice", map_files("/usr/local/cuda/lib64/libcudnn.so.9"),
         "outside the image's packages"),
        sound=libraries_in_place,
    ),
)  # fmt: skip
_DEVICES: Tuple[Row, ...] = (
    *rows(
        "devices.placement",
        ("work runs elsewhere", ignore_the_device, "ran on CPU:0"),
        ("a compiled result is moved", move_compiled_results, "in a graph"),
        ("work that names no device runs elsewhere", default_elsewhere, "runs on CPU:1"),
    ),
    *rows(
        "numerics.compile",
        ("XLA is passed over", pass_xla_over, "without being compiled"),
        ("libdevice is missing", lose_libdevice, "xla_gpu_cuda_data_dir"),
        ("a compiled function is off", bend_tanh, "results are off by"),
    ),
    *rows(
        "devices.count",
        ("JAX falls back to the CPU", list_no_gpu, "cannot use any"),
        ("CUDA does not start", hide_from_the_driver, "cuda-compat"),
        ("the CUDA plugin is missing", lose_the_plugin, "CPU build"),
        sound=a_gpu,
    ),
    *rows(
        "devices.kernel",
        ("a sum that is not true", lose_a_summand, "sum: 1 of 1 results wrong"),
        ("no kernel for this GPU", fail_to_multiply, "no kernel"),
        sound=a_gpu,
    ),
    *rows(
        "devices.convolution",
        ("a convolution that loses a row", drop_pixels, "float32 convolution"),
        sound=a_gpu,
    ),
)
_ARITHMETIC: Tuple[Row, ...] = (
    *rows(
        "numerics.matmul",
        ("a tile is not written", spoil_products(lambda product: product.at[:16, :16].set(0)),
         "rounding explains"),
        ("an element overflows", spoil_products(lambda product: product.at[3, 3].set(float("inf"))),
         "NaN or infinity"),
        ("TF32 where fp32 was asked for", round_like_tf32, "rounding explains"),
        ("no kernel runs", fail_to_multiply, "no kernel image"),
        ("int8 products are off by one",
         spoil_products(lambda product: product + (product.dtype == "int32")), "int8"),
    ),
    *rows(
        "numerics.matmul",
        ("TF32 is asked for and not used", ask_for("fp32"), "requested but not used"),
        ("TF32 is used though it is turned off", ask_for("tf32"), "which was turned off"),
        sound=a_gpu_with_tf32,
    ),
    *rows(
        "numerics.convolution",
        ("the gradient by weight is small", weaken_the_gradient(1), "gradient by weight"),
        ("the gradient by image is small", weaken_the_gradient(0), "gradient by image"),
        ("a row of results is missing", drop_pixels, "fp32 3x3"),
    ),
    *rows(
        "numerics.determinism",
        ("noise that no seed fixes", forget_the_seed, "from one seed differ"),
    ),
    *rows(
        "numerics.attention",
        ("the causal mask is ignored", forget_the_mask, "causal"),
        ("the gradient by key is small", weaken_the_gradient(1, "nn.dot_product_attention"),
         "gradient by key"),
    ),
    *rows(
        "numerics.checkpoint",
        ("weights come back changed", save_other("model"), "model"),
        ("the optimiser is lost", save_other("optimizer"), "optimizer"),
        ("the key is lost", save_other("random"), "random state"),
        ("gradients are lost", change_gradients(lambda grad: grad * 0),
         "did not change any weight"),
    ),
)  # fmt: skip
_TRAINING: Tuple[Row, ...] = (
    *rows(
        "training.loss",
        ("gradients are lost", change_gradients(lambda grad: grad * 0),
         "gradients or the optimiser"),
        ("gradients overflow", change_gradients(lambda grad: grad / 0), "wrong arithmetic"),
    ),
    *rows(
        "training.same",
        ("steps in fp32 are too long",
         change_gradients(lambda grad: grad * 1.01 if grad.dtype == "float32" else grad), "end"),
        ("gradients are lost", change_gradients(lambda grad: grad * 0),
         "did not change any weight"),
    ),
    *rows("memory.leak", ("each step keeps what it made", keep_results, "each step")),
    *rows(
        "training.amp",
        ("bf16 is not bf16", compute_in_fp32, "layers computed in fp32"),
        ("gradients are lost", change_gradients(lambda grad: grad * 0), "10-fold"),
    ),
)  # fmt: skip
_PARALLEL: Tuple[Row, ...] = (
    *rows(
        "parallel.pmap",
        (
            "gradients stay apart",
            replace_in_lax("pmean", lambda x, _axis: x),
            "ranks' weights differ",
        ),
        ("gradients are added up", sum_gradients, "combined wrongly"),
    ),
    *rows("speed.gemm", ("no product can be timed", fail_to_multiply, "nothing was measured")),
    *rows(
        "speed.gemm",
        ("a card far slower than its class", dawdle, "where its class does"),
        sound=a_gpu_that_multiplies,
        expect={"gpus": [{**GPU, "spec": {"tflops": {"fp32": 0.008}}}]},
    ),
)
ROWS = {"jax": (*_LIBRARIES, *_DEVICES, *_ARITHMETIC, *_TRAINING, *_PARALLEL)}
