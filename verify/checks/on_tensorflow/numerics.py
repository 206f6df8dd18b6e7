"""TensorFlow's arithmetic: products and convolutions against float64, and runs that repeat."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.tensorflow import Place, find, gpus
from verify.checks.numerics import windows
from verify.checks.numerics.accuracy import (
    AccuracyReading,
    compare,
    judge_convolution,
    judge_products,
    tf32_override,
)
from verify.checks.numerics.repeats import Repeat, ResumedRun, judge_checkpoint, judge_repeats
from verify.checks.on_tensorflow.networks import (
    batches,
    network,
    numbers,
    prepare,
    stepper,
    variables,
)
from verify.model.check import Check, Context, Outcome, Status
from verify.running.children import scratch

TENSOR_CORES_TF32 = (8, 0)
_NAMES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_NAMES["fp64"] = "float64"
_CPU_LEFT_OUT = {
    "tf32": "no GPU",
    "fp16": "TensorFlow before 2.13 keeps a CPU's sums in fp16",
}
_NO_KERNEL = ("No OpKernel", "Could not find device for node")


def check_matmul(context: Context) -> Outcome:
    """Multiply random matrices in each dtype on each GPU, and compare with float64 in NumPy."""
    broken, place = find(context)
    if broken:
        return broken
    places = [Place("cuda", i) for i in range(len(gpus()))] if place.is_gpu else [place]
    shapes = _SHAPES[: context.pick(1, 2, 3)]
    sides = [_matrices(shape) for shape in shapes]
    left_out = {} if place.is_gpu else dict(_CPU_LEFT_OUT)
    readings = [
        reading
        for there in places
        for dtype in _dtypes(there)
        for shape, pair in zip(shapes, sides)
        if dtype != "tf32" or not any(size % 8 for size in shape)  # where it is sure to be used
        for reading in [_multiply(there, dtype, shape, pair)]
    ]
    with_tf32 = [p.index for p in places if (p.capability or (0, 0)) >= TENSOR_CORES_TF32]
    return judge_products(readings, left_out, with_tf32, tf32_override())


_SHAPES = ((512, 768, 384), (509, 1021, 253), (2048, 4096, 1024))


def _dtypes(place: Place) -> Tuple[str, ...]:
    if not place.is_gpu:
        return ("fp32", "bf16", "fp64")
    tf32 = ("tf32",) if (place.capability or (0, 0)) >= TENSOR_CORES_TF32 else ()
    return ("fp32", *tf32, "fp16", "bf16", "fp64")


def _matrices(shape: Tuple[int, int, int]) -> Tuple[Any, Any]:
    import numpy as np

    rows, inner, columns = shape
    source = np.random.default_rng(rows)
    return source.standard_normal((rows, inner)), source.standard_normal((inner, columns))


def _multiply(place: Place, dtype: str, shape: Tuple[int, int, int], pair: Any) -> AccuracyReading:
    import tensorflow as tf

    what = "x".join(str(size) for size in shape)
    allow_tf32(on=dtype == "tf32")
    try:
        with place.scope():
            given = [tf.cast(tf.constant(side), _NAMES[dtype]) for side in pair]
            got = tf.cast(tf.linalg.matmul(*given), tf.float64).numpy()
            left, right = (tf.cast(side, tf.float64).numpy() for side in given)
    except Exception as problem:
        raised = "{}: {}".format(type(problem).__name__, problem)
        return AccuracyReading(what, dtype, shape[1], gpu=place.gpu, raised=raised)
    error, worst = compare(got, left @ right)
    return AccuracyReading(what, dtype, shape[1], error, worst, place.gpu)


def allow_tf32(*, on: bool) -> None:
    """Whether products and convolutions of float32 may be rounded to TF32: TensorFlow's default."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(on)


# Convolutions


def check_convolution(context: Context) -> Outcome:
    """Convolve forward and back, and compare with float64 in NumPy."""
    broken, place = find(context)
    if broken:
        return broken
    allow_tf32(on=False)
    left_out = {} if place.is_gpu else {"fp16": _CPU_LEFT_OUT["fp16"]}
    count = context.pick(1, 4, 16)
    dtypes = ["fp32", "fp16", "bf16"] if place.is_gpu else ["fp32", "bf16", "fp64"]
    if not place.is_gpu and sums_in_bf16(_processors()):
        dtypes.remove("bf16")
        left_out["bf16"] = "TensorFlow sums it in bf16 on a CPU without AVX-512"
    readings: List[AccuracyReading] = []
    for dtype in dtypes:
        for size, stride in windows.CASES:
            readings += _try_convolve(place, dtype, size, stride, count)
    without = {r.dtype for r in readings if any(words in (r.raised or "") for words in _NO_KERNEL)}
    left_out.update(dict.fromkeys(without, "this TensorFlow has no kernel for it"))
    readings = [reading for reading in readings if reading.dtype not in without]
    return judge_convolution(readings, left_out, tf32_override())


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


def _try_convolve(
    place: Place, dtype: str, size: int, stride: int, count: int
) -> List[AccuracyReading]:
    try:
        return _convolve(place, dtype, size, stride, count)
    except Exception as error:
        raised = "{}: {}".format(type(error).__name__, error)
        return [AccuracyReading(windows.name(size, stride), dtype, 1, gpu=place.gpu, raised=raised)]


def _convolve(
    place: Place, dtype: str, size: int, stride: int, count: int
) -> List[AccuracyReading]:
    """Forward, gradient by input and by weight, each beside its reference."""
    import tensorflow as tf

    with place.scope():
        x, w, dy = (tf.cast(side, _NAMES[dtype]) for side in windows.random(count, size, stride))
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv2d(x, w, stride, "VALID")
        got = (y, *tape.gradient(y, [x, w], output_gradients=dy))
        given = [tf.cast(side, tf.float64).numpy() for side in (x, w, dy)]
        results = [tf.cast(result, tf.float64).numpy() for result in got]
    return windows.readings(results, given, stride, dtype, place.gpu)


# Runs that repeat


def check_determinism(context: Context) -> Outcome:
    """Train twice from one seed: with the defaults, and with determinism requested."""
    import tensorflow as tf

    broken, place = find(context)
    if broken:
        return broken
    ask = getattr(tf.config.experimental, "enable_op_determinism", None)
    if ask is None:
        return Outcome(Status.SKIP, "this TensorFlow cannot be asked for determinism (2.8 can)")
    steps = context.pick(3, 20, 200)
    free = Repeat.of(_run(place, steps), _run(place, steps))
    ask()
    asked = Repeat.of(_run(place, steps), _run(place, steps))
    return judge_repeats(asked, free, place.kind, steps)


def _run(place: Place, steps: int) -> List[Any]:
    """The weights after training with noise that a seed fixes."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(3)
    with place.scope():
        model, optimiser = network(), tf.keras.optimizers.Adam(0.01)
        prepare(optimiser, model)
        step = stepper(model, optimiser)
        for inputs, targets in batches("float32", steps, 64):
            step(inputs + tf.random.normal(inputs.shape, stddev=0.1), targets)
    return numbers(model.get_weights())


class _Training:
    """A model, its optimiser and its source of noise; a checkpoint must contain all of them."""

    def __init__(self, seed: int) -> None:
        import tensorflow as tf

        self.model = network(seed=seed)
        self.optimiser = tf.keras.optimizers.Adam(0.01)
        prepare(self.optimiser, self.model)
        self.noise = tf.random.Generator.from_seed(seed)
        self._step = stepper(self.model, self.optimiser)

    def go(self, data: Sequence[Tuple[Any, Any]]) -> None:
        """Take a step for each batch."""
        for inputs, targets in data:
            self._step(inputs + self.noise.normal(inputs.shape, stddev=0.1), targets)

    def state(self) -> Dict[str, List[Any]]:
        """All of it, as arrays."""
        return {
            "model": numbers(self.model.get_weights()),
            "optimizer": numbers(variables(self.optimiser)),
            "random generator": [self.noise.state.numpy()],
        }

    def checkpoint(self) -> Any:
        """TensorFlow's own."""
        import tensorflow as tf

        return tf.train.Checkpoint(model=self.model, optimizer=self.optimiser, noise=self.noise)


def check_checkpoint(context: Context) -> Outcome:
    """Save during training, restore into new objects and continue: the bits must be the same."""
    broken, place = find(context)
    if broken:
        return broken
    import tensorflow as tf

    getattr(tf.config.experimental, "enable_op_determinism", bool)()
    folder = scratch()
    try:
        with place.scope():
            return judge_checkpoint(_resume(folder, context.pick(2, 10, 100)), place.kind)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resume(folder: str, steps: int) -> ResumedRun:
    data = batches("float32", 2 * steps, 64)
    first = _Training(7)
    first.go(data[:steps])
    saved = first.state()
    path = first.checkpoint().write(os.path.join(folder, "state"))
    kept = _through_file(first.model, folder)
    first.go(data[steps:])

    other = _Training(8)
    other.checkpoint().read(path)
    back = other.state()
    lost = [name for name in saved if not _equal(saved[name], back[name])]
    lost += [] if kept is None or _equal(saved["model"], kept) else ["Keras file"]
    other.go(data[steps:])
    ends = Repeat.of(numbers(first.model.get_weights()), numbers(other.model.get_weights()))
    moved = not _equal(numbers(first.model.get_weights()), saved["model"])
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    how = "tf.train.Checkpoint" + ("" if kept is None else " and a Keras file")
    return ResumedRun(ends, moved, tuple(lost), size, how)


def _through_file(model: Any, folder: str) -> Optional[List[Any]]:
    """The weights after saving the model to a file and loading it; None before Keras 2.12."""
    import tensorflow as tf

    path = os.path.join(folder, "model.keras")
    try:
        model.save(path)
    except (NotImplementedError, ValueError):  # older ones know no such format
        return None
    return numbers(tf.keras.models.load_model(path).get_weights())


def _equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    import numpy as np

    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other))


CHECKS = (
    Check(
        "numerics.matmul", "Matrix products are correct", check_matmul, "standard", 120, gpu=True
    ),
    Check(
        "numerics.convolution",
        "Convolutions and their gradients are correct",
        check_convolution,
        "standard",
        120,
        gpu=True,
    ),
    Check("numerics.determinism", "Training is reproducible", check_determinism, "standard", 120),
    Check(
        "numerics.checkpoint",
        "A checkpoint restores the whole state",
        check_checkpoint,
        "standard",
        120,
    ),
)
