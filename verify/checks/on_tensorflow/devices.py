"""GPUs and TensorFlow: whether it lists them, has code for them, and runs work on them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from verify.backends.tensorflow import (
    BACKEND,
    Place,
    build,
    details,
    find,
    find_gpus,
    gpus,
    look,
)
from verify.checks.devices.compute import ComputeAnswer, judge_answers
from verify.checks.devices.inventory import judge_architectures, judge_count, read_counts
from verify.checks.devices.placement import SIZE, Elsewhere, PlacedOp, judge_placement
from verify.model.check import Check, Context, Outcome

_ELSEWHERE = Elsewhere(
    "this TensorFlow has no GPU kernel for it, or was told to place it elsewhere",
    "unset TF_ settings and CUDA_VISIBLE_DEVICES; see libraries.dlopen",
    "TensorFlow ran it earlier, or does not report where",
)


def check_count(context: Context) -> Outcome:
    """Query NVML, the CUDA driver and TensorFlow."""
    seen = look(context)
    if seen.torch_cuda is None:
        return BACKEND.without_cuda(seen.measured(), {"gpus": seen.expected})
    return judge_count(read_counts(len(gpus()), context.machine), seen, BACKEND.terms.title)


def check_code(context: Context) -> Outcome:
    """Compare each GPU's capability with what TensorFlow was compiled for."""
    absent, places = find_gpus(context)
    have = architectures(build())
    if absent:
        return absent
    capabilities = [place.capability for place in places]
    known = [pair for pair in capabilities if pair]
    expected = [gpu.compute_capability for gpu in context.expect.gpus or ()]
    return judge_architectures(known, have, expected, framework=BACKEND.terms.title)


def architectures(facts: Dict[str, Any]) -> List[str]:
    """As nvcc names them: a build's compute_90 is binary code for 9.0 and PTX (configure.py)."""
    found: List[str] = []
    for name in facts.get("cuda_compute_capabilities") or ():
        text = str(name)
        if text.startswith("compute_"):
            found.append("sm_" + text[len("compute_") :])
        found.append(text if "_" in text else "sm_" + text.replace(".", ""))
    return list(dict.fromkeys(found))


def check_kernel(context: Context) -> Outcome:
    """Add up, multiply and convolve on each GPU."""
    absent, places = find_gpus(context)
    if absent:
        return absent
    dtypes = ("float32",) if context.level == "quick" else ("float32", "float16", "float64")
    works: List[Tuple[str, Callable[[], Tuple[int, int]]]] = [("float64 sum", _sum)]
    works += [("{} product".format(dtype), _product(dtype)) for dtype in dtypes]
    works += [("float32 convolution", _convolution)]
    known = [details(place.index) for place in places]
    answers = [_answer(p, known[i][0], *work) for i, p in enumerate(places) for work in works]
    capabilities = ["{}.{}".format(*(pair or (0, 0))) for _, pair in known]
    return judge_answers(answers, capabilities, architectures(build()))


def _answer(
    place: Place, name: str, what: str, work: Callable[[], Tuple[int, int]]
) -> ComputeAnswer:
    try:
        with place.scope():
            wrong, total = work()
    except Exception as error:
        return ComputeAnswer(
            place.index, name, what, error="{}: {}".format(type(error).__name__, error)
        )
    return ComputeAnswer(place.index, name, what, wrong, total)


def _sum() -> Tuple[int, int]:
    """0 + 1 + ... by Gauss: every partial sum is a whole number below 2^53."""
    import numpy as np
    import tensorflow as tf

    count = 1 << 20
    total = float(tf.reduce_sum(tf.constant(np.arange(count, dtype=np.float64))).numpy())
    return int(total != count * (count - 1) // 2), 1


def _product(dtype: str) -> Callable[[], Tuple[int, int]]:
    """Small whole numbers: partial sums are exact in every type and order, in TF32 too."""

    def work() -> Tuple[int, int]:
        import numpy as np
        import tensorflow as tf

        rows, columns = np.arange(256)[:, None], np.arange(256)[None, :]
        left, right = (rows * 7 + columns * 3) % 5 - 2, (rows * 5 + columns * 11) % 5 - 2
        given = [tf.constant(side.astype(dtype)) for side in (left, right)]
        result = tf.linalg.matmul(*given).numpy().astype(np.int64)
        return int((result != left @ right).sum()), int(result.size)

    return work


def _convolution() -> Tuple[int, int]:
    """Ones by ones: an answer is the number of cells under the window, times the channels."""
    import numpy as np
    import tensorflow as tf

    size, channels = 16, 4
    image, window = tf.ones((1, size, size, channels)), tf.ones((3, 3, channels, 8))
    result = tf.nn.conv2d(image, window, 1, "SAME").numpy()[0]
    edge = np.full(size, 3)
    edge[0] = edge[-1] = 2
    known = (edge[:, None] * edge[None, :] * channels)[:, :, None]
    return int((result != known).sum()), int(result.size)


def check_placement(context: Context) -> Outcome:
    """Multiply on a chosen device, and check where it was done.

    Without a GPU a second logical CPU device is used for the same test.
    """
    broken, place = find(context)
    if broken:
        return broken
    asked = place if place.is_gpu else _second_cpu()
    return judge_placement(_place_product(asked, place), place.kind, _ELSEWHERE)


def _second_cpu() -> Place:
    import tensorflow as tf

    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    return Place("cpu", 1)


def _place_product(asked: Place, usual: Place) -> PlacedOp:
    import tensorflow as tf

    tf.config.set_soft_device_placement(False)  # else a CPU quietly does what a GPU cannot
    ones = tf.ones((SIZE, SIZE))
    held = asked.held_bytes()
    with asked.scope():
        product = tf.linalg.matmul(ones, ones)
    grown = asked.held_bytes()

    def twice() -> Any:
        with asked.scope():
            return tf.linalg.matmul(ones, ones)

    return PlacedOp(
        asked=asked.device[1:],
        eager=_short(product.device),
        graph=_run_and_look(twice),
        unasked=_short(tf.linalg.matmul(ones, ones).device),
        default=usual.device[1:],
        held_bytes=None if held is None or grown is None else grown - held,
    )


def _run_and_look(work: Callable[[], Any]) -> Dict[str, str]:
    """The devices of the graph's operations after the runtime placed and rewrote them."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    context.enable_run_metadata()  # before the first call: only that one tells the graphs
    try:
        tf.function(work)()
        graphs = context.export_run_metadata().partition_graphs
    finally:
        context.disable_run_metadata()
    nodes = [node for graph in graphs for node in graph.node]
    return {node.op: _short(node.device) for node in nodes if "MatMul" in node.op}


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


CHECKS = (
    Check("devices.count", "NVML, CUDA and the framework see the same GPUs", check_count, gpu=True),
    Check("devices.architectures", "The framework has code for the GPUs", check_code, gpu=True),
    Check("devices.kernel", "Kernels compute correctly", check_kernel, limit_s=120, gpu=True),
    Check("devices.placement", "Operations run on the requested device", check_placement, gpu=True),
)
