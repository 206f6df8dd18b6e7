"""tf.data: every sample must come once, whole and in order; rates by number of parallel calls."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.model.check import Check, Context, Outcome, Status
from verify.model.measures import Cell, Metric, Plot, Table, median, of_samples, pack

BATCH, PIXELS, KINDS = 32, 160, 8
_ENOUGH = 0.95  # of the best rate: more parallel calls than this needs gain nothing
_FIX = "look at the container's memory and CPU limits; build the image again from its lock"


@dataclass(frozen=True)
class PipelineRun:
    """What one setting of the pipeline delivered."""

    parallel: int  # calls at a time; AUTOTUNE is -1
    numbers: Tuple[int, ...]  # of the samples of one epoch, as they came
    damaged: int = 0  # samples with wrong pixels
    rates: Tuple[float, ...] = ()  # samples/s of each epoch
    error: Optional[str] = None

    @property
    def name(self) -> str:
        """For messages."""
        return "AUTOTUNE" if self.parallel < 0 else str(self.parallel)


def check_pipeline(context: Context) -> Outcome:
    """Decode JPEGs with 1, 2, 4 parallel calls and with as many as tf.data finds best."""
    count, epochs = context.pick(128, 384, 4096), context.pick(1, 3, 5)
    encoded, sums = _jpegs()
    found = [_pipe(p, encoded, sums, count, epochs) for p in (1, 2, 4, -1)]
    return judge_pipeline(found, count)


def _jpegs() -> Tuple[List[bytes], List[int]]:
    """Some encoded pictures, and the sum of each one's pixels."""
    import numpy as np
    import tensorflow as tf

    source = np.random.default_rng(1)
    with tf.device("/CPU:0"):
        pictures = source.integers(0, 256, (KINDS, PIXELS, PIXELS, 3), np.uint8)
        encoded = [tf.io.encode_jpeg(picture).numpy() for picture in pictures]
        sums = [int(tf.io.decode_jpeg(one).numpy().astype(np.int64).sum()) for one in encoded]
    return encoded, sums


def _pipe(
    parallel: int, encoded: Sequence[bytes], sums: Sequence[int], count: int, epochs: int
) -> PipelineRun:
    import tensorflow as tf

    def decode(index: Any) -> Any:
        picture = tf.io.decode_jpeg(tf.gather(list(encoded), index % KINDS), channels=3)
        total = tf.reduce_sum(tf.cast(picture, tf.int64))
        return index, total, tf.image.resize(tf.cast(picture, tf.float32), (64, 64))

    calls = tf.data.AUTOTUNE if parallel < 0 else parallel
    data = tf.data.Dataset.range(count).map(decode, num_parallel_calls=calls, deterministic=True)
    data = data.batch(BATCH).prefetch(2)
    rates: List[float] = []
    numbers: List[int] = []
    damaged = 0
    try:
        for _ in range(epochs):
            start, numbers, damaged = time.perf_counter(), [], 0
            for some, totals, _ in data:
                pairs = list(zip(some.numpy().tolist(), totals.numpy().tolist()))
                numbers += [number for number, _ in pairs]
                damaged += sum(total != sums[number % KINDS] for number, total in pairs)
            rates.append(len(numbers) / (time.perf_counter() - start))
    except Exception as error:
        said = "{}: {}".format(type(error).__name__, error)
        return PipelineRun(parallel, tuple(numbers), damaged, tuple(rates), said)
    return PipelineRun(parallel, tuple(numbers), damaged, tuple(rates))


def judge_pipeline(found: Sequence[PipelineRun], count: int) -> Outcome:
    """Each sample once, whole and in order, at every setting."""
    measured: Dict[str, Any] = {"samples": count, **_numbers(found)}
    expected = {"samples": count, "damaged": 0}
    for one in found:
        fault = _fault(one, count)
        if fault:
            message = "tf.data with {} parallel calls: {}".format(one.name, fault[0])
            return Outcome(Status.FAIL, message, fault[1], _FIX, measured, expected)
    if not found:
        cause = "no setting was tried"
        return Outcome(Status.FAIL, "no sample was loaded", cause, _FIX, measured, expected)
    best = max(found, key=lambda one: median(one.rates))
    fewest = recommend(found)
    message = "{:.0f} samples/s by {} parallel calls".format(median(fewest.rates), fewest.name)
    note = "" if best is fewest else ", {:.0f} by {}".format(median(best.rates), best.name)
    note += "; every sample once and in order"
    return Outcome(Status.PASS, message + note, measured=measured, expected=expected)


def recommend(found: Sequence[PipelineRun]) -> PipelineRun:
    """The fewest parallel calls that come within 5 % of the best rate, AUTOTUNE last."""
    best = max(median(one.rates) for one in found)
    fit = [one for one in found if median(one.rates) >= _ENOUGH * best]
    return min(fit, key=lambda one: (one.parallel < 0, one.parallel))


def _fault(one: PipelineRun, count: int) -> Optional[Tuple[str, str]]:
    if one.error is not None:
        line = one.error.partition("\n")[0]
        return line, "an operation of the pipeline failed: {}".format(line)
    missing = count - len(set(one.numbers))
    if missing:
        return "{} of {} samples are missing".format(missing, count), "the pipeline dropped them"
    if len(one.numbers) > count:
        twice = len(one.numbers) - count
        return "{} samples were repeated".format(twice), "the pipeline repeated them"
    if list(one.numbers) != sorted(one.numbers):
        return "the samples came in a different order", "deterministic=True had no effect"
    if one.damaged:
        said = "{} of {} samples have wrong pixels".format(one.damaged, count)
        return said, "a decoder is broken, or memory was corrupted"
    return None


def _numbers(found: Sequence[PipelineRun]) -> Dict[str, Any]:
    timed = [one for one in found if one.rates]
    rows: Tuple[Tuple[Cell, ...], ...] = tuple((one.name, median(one.rates)) for one in timed)
    points = tuple((float(one.parallel), median(one.rates)) for one in timed if one.parallel > 0)
    metrics = [_metric(one) for one in timed]
    tables = [Table("tf.data, JPEG decoding", ("parallel calls", "samples/s"), rows)]
    plots = [Plot("tf.data", "parallel calls", "samples/s", (("JPEG decoding", points),))]
    return pack(metrics, tables, plots) if timed else {}


def _metric(one: PipelineRun) -> Metric:
    labels = {"parallel": one.name.lower()}
    return of_samples("pipeline", one.rates, "samples/s", labels=labels)


CHECKS = (
    Check(
        "loading.pipeline", "tf.data delivers every sample once", check_pipeline, "standard", 120
    ),
)
