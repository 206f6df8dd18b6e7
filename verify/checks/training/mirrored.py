"""Training on several devices at once: MirroredStrategy must give the result of one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Tuple

from verify.backends.tensorflow import BACKEND, all_devices, cut_the_cpu, gpus
from verify.backends.tensorflow_training import model_of, numbers, optimiser_of, prepare
from verify.backends.trainer import RATES
from verify.checks.training import steps as same_steps
from verify.model.check import Check, Context, Outcome, Status
from verify.workloads.networks import dense

_FIX = "run with NCCL_P2P_DISABLE=1: if that fixes it, look at IOMMU and PCIe ACS settings"


def check_mirrored(context: Context) -> Outcome:
    """Train on all GPUs together and on one device alone; on a CPU, on two logical devices."""
    broken, place = BACKEND.find(context)
    if broken:
        return broken
    if place.is_gpu and len(gpus()) < 2:
        return Outcome(Status.SKIP, "one GPU: parallel training needs two devices")
    if not place.is_gpu:
        cut_the_cpu()
    devices = all_devices(place.kind)
    alone, data = same_steps.reference(place, same_steps.STEPS[context.level], len(devices))
    runs, held = _together(devices, data)
    return judge_mirrored(alone, runs, held, len(devices), place.kind)


def _step(model: Any, optimiser: Any, inputs: Any, targets: Any, ranks: int) -> Any:
    """The loss is divided by the ranks since the strategy adds their gradients up."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
        scaled = loss / ranks
    weights = model.trainable_variables
    optimiser.apply_gradients(list(zip(tape.gradient(scaled, weights), weights)))
    return loss


def _together(
    devices: List[str], data: "List[Tuple[Any, Any]]"
) -> Tuple[List[Dict[str, Any]], List[str]]:
    """Each replica's losses and weights, and the devices that hold the first weight."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(devices)
    rows, ranks = same_steps.BATCH, int(strategy.num_replicas_in_sync)
    with strategy.scope():
        model = model_of(dense(same_steps.SIZES), "float64")
        optimiser = optimiser_of("sgd", RATES["sgd"])
        prepare(optimiser, model)

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def step(inputs: Any, targets: Any) -> Any:
        return strategy.run(
            lambda x, y: _step(model, optimiser, x, y, ranks), args=(inputs, targets)
        )

    losses: List[List[float]] = [[] for _ in range(ranks)]
    for whole in data:
        mine = [_dealt(strategy, side, rows) for side in whole]
        for rank, loss in enumerate(strategy.experimental_local_results(step(*mine))):
            losses[rank].append(float(loss))
    weights = [_copies(strategy, weight) for weight in model.trainable_variables]
    own = (numbers([copies[i] for copies in weights]) for i in range(ranks))
    runs = [{"losses": losses[i], "weights": same_steps.named(one)} for i, one in enumerate(own)]
    return runs, [copy.device for copy in weights[0]]


def _dealt(strategy: Any, whole: Any, rows: int) -> Any:
    """Each replica's own rows."""

    def own(context: Any) -> Any:
        first = context.replica_id_in_sync_group * rows
        return whole[first : first + rows]

    return strategy.experimental_distribute_values_from_function(own)


def _copies(strategy: Any, weight: Any) -> Tuple[Any, ...]:
    """A weight's copy on each device; Keras 3 wraps TensorFlow's variable in one of its own."""
    import tensorflow as tf

    held = weight if isinstance(weight, tf.Variable) else weight.value
    return tuple(strategy.experimental_local_results(held))


def judge_mirrored(
    alone: Dict[str, Any], runs: List[Dict[str, Any]], held: List[str], devices: int, kind: str
) -> Outcome:
    """Whether each device has its own copy, and all equal the result of training on one."""
    measured = {"device": kind, "replicas": len(runs), "held_by": held}
    if not len(set(held)) == len(runs) == devices:
        message = "MirroredStrategy made {} replicas, held by {} of {} devices".format(
            len(runs), len(set(held)), devices
        )
        cause = "the strategy did not spread the model over the devices"
        fix = "look at devices.count and CUDA_VISIBLE_DEVICES; build the image again"
        return Outcome(Status.FAIL, message, cause, fix, measured, {"replicas": devices})
    words = "on {} {}".format(len(runs), "GPUs" if kind == "cuda" else "devices of the CPU")
    outcome = same_steps.judge("MirroredStrategy", alone, runs, measured, words)
    return outcome if outcome.status is Status.PASS else replace(outcome, fix=_FIX)


CHECKS = (
    Check("parallel.mirrored", "MirroredStrategy trains as one", check_mirrored, "standard", 120),
)
