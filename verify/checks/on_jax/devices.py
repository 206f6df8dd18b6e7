"""GPUs and JAX: whether it lists them, and whether its kernels compute correctly on each."""

from __future__ import annotations

import os
from typing import Any, Callable, List, Tuple

from verify.backends.jax import BACKEND, Place, find, find_gpus, look
from verify.checks.devices.compute import ComputeAnswer, judge_answers
from verify.checks.devices.inventory import judge_count, read_counts
from verify.checks.devices.placement import SIZE, Elsewhere, PlacedOp, judge_placement
from verify.model.check import Check, Context, Outcome

_Work = Callable[[], Tuple[int, int]]
_TWO_CPUS = "--xla_force_host_platform_device_count=2"
_ELSEWHERE = Elsewhere(
    "JAX was told to compute elsewhere, or moved the result",
    "unset JAX_PLATFORMS, JAX_PLATFORM_NAME, JAX_DEFAULT_DEVICE and CUDA_VISIBLE_DEVICES",
    "JAX does not report where it ran",
)


def check_count(context: Context) -> Outcome:
    """Query NVML, the CUDA driver and JAX."""
    seen = look(context)
    if seen.torch_cuda is None:
        return BACKEND.without_cuda(seen.measured(), {"gpus": seen.expected})
    return judge_count(read_counts(seen.usable, context.machine), seen, BACKEND.terms.title)


def check_kernel(context: Context) -> Outcome:
    """Add up, multiply and convolve on each GPU."""
    import jax

    absent, places = find_gpus(context)
    if absent:
        return absent
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003
    dtypes = ("float32",) if context.level == "quick" else ("float32", "float16", "float64")
    works: List[Tuple[str, _Work]] = [("int64 sum", _sum)]
    works += [("{} product".format(dtype), _product(dtype)) for dtype in dtypes]
    works += [("float32 convolution", _convolution)]
    answers = [_answer(place, *work) for place in places for work in works]
    capabilities = ["{}.{}".format(*(place.capability or (0, 0))) for place in places]
    return judge_answers(answers, capabilities, ["what XLA compiles for this very GPU"])


def _answer(place: Place, what: str, work: _Work) -> ComputeAnswer:
    try:
        with place.scope():
            wrong, total = work()
    except Exception as error:
        said = "{}: {}".format(type(error).__name__, error)
        return ComputeAnswer(place.index, place.card, what, error=said)
    return ComputeAnswer(place.index, place.card, what, wrong, total)


def _sum() -> Tuple[int, int]:
    """0 + 1 + ... by Gauss: the answer comes from no library."""
    import jax.numpy as jnp

    count = 1 << 20
    return int(int(jnp.arange(count, dtype="int64").sum()) != count * (count - 1) // 2), 1


def _product(dtype: str) -> _Work:
    """Small whole numbers: partial sums are exact in every type and order, in TF32 too."""

    def work() -> Tuple[int, int]:
        import jax.numpy as jnp
        import numpy as np

        rows, columns = np.arange(256)[:, None], np.arange(256)[None, :]
        left, right = (rows * 7 + columns * 3) % 5 - 2, (rows * 5 + columns * 11) % 5 - 2
        given = [jnp.asarray(side.astype(dtype)) for side in (left, right)]
        result = np.asarray(jnp.matmul(*given)).astype(np.int64)
        return int((result != left @ right).sum()), int(result.size)

    return work


def _convolution() -> Tuple[int, int]:
    """Ones by ones: an answer is the number of cells under the window, times the channels."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    size, channels = 16, 4
    image: Any = jnp.ones((1, size, size, channels), "float32")
    window: Any = jnp.ones((3, 3, channels, 8), "float32")
    kinds = ("NHWC", "HWIO", "NHWC")
    convolve = jax.lax.conv_general_dilated
    result = np.asarray(convolve(image, window, (1, 1), "SAME", dimension_numbers=kinds))[0]
    edge = np.full(size, 3)
    edge[0] = edge[-1] = 2
    known = (edge[:, None] * edge[None, :] * channels)[:, :, None]
    return int((result != known).sum()), int(result.size)


def check_placement(context: Context) -> Outcome:
    """Multiply on a chosen device, and check where the result is.

    Without a GPU the CPU is split into two devices for the same test: XLA reads that setting once,
    when it starts.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = (flags + " " + _TWO_CPUS).strip()
    broken, place = find(context)
    if broken:
        return broken
    asked = place if place.is_gpu else Place("cpu", 1)
    return judge_placement(_place_product(asked, place), place.kind, _ELSEWHERE)


def _place_product(asked: Place, usual: Place) -> PlacedOp:
    import jax
    import jax.numpy as jnp

    def twice() -> Any:
        ones: Any = jnp.ones((SIZE, SIZE), "float32")
        return jnp.matmul(ones, ones)

    held = asked.held_bytes()
    with asked.scope():
        product = twice().block_until_ready()
        grown = asked.held_bytes()
        compiled = jax.jit(twice)()
    return PlacedOp(
        asked=_name(asked.device),
        eager=_where(product),
        graph={"dot": _where(compiled)},
        unasked=_where(twice()),
        default=_name(usual.device),
        held_bytes=None if held is None or grown is None else grown - held,
    )


def _name(device: Any) -> str:
    return "{}:{}".format(str(device.platform).upper(), device.id)


def _where(array: Any) -> str:
    return ", ".join(sorted(map(_name, array.devices())))


CHECKS = (
    Check("devices.count", "NVML, CUDA and the framework see the same GPUs", check_count, gpu=True),
    Check("devices.kernel", "Kernels compute correctly", check_kernel, limit_s=120, gpu=True),
    Check("devices.placement", "Operations run on the requested device", check_placement, gpu=True),
)
