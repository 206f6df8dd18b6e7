"""Training on several devices at once: MirroredStrategy must give the result of one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Tuple

from verify.backends.tensorflow import find, gpus
from verify.checks.on_tensorflow.networks import batches, named, network, numbers, prepare
from verify.checks.training import steps as same_steps
from verify.model.check import Check, Context, Outcome, Status

STEPS = {"quick": 2, "standard": 5, "full": 50}
_FIX = "run with NCCL_P2P_DISABLE=1: if that fixes it, look at IOMMU and PCIe ACS settings"


def check_mirrored(context: Context) -> Outcome:
    """Train on all GPUs together and on one device alone; on a CPU, on two logical devices."""
    broken, place = find(context)
    if broken:
        return broken
    if place.is_gpu and len(gpus()) < 2:
        return Outcome(Status.SKIP, "one GPU: parallel training needs two devices")
    if not place.is_gpu:
        cut_the_cpu()
    devices = all_devices(place.kind)
    count = STEPS[context.level]
    runs, held = _together(devices, count)
    alone = _alone(devices[0], count, len(devices))
    return judge_mirrored(alone, runs, held, len(devices), place.kind)


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


def _alone(device: str, count: int, ranks: int) -> Dict[str, Any]:
    """One device's result for the rows of all devices."""
    import tensorflow as tf

    with tf.device(device):
        model = network("float64")
        optimiser = _optimiser()
        prepare(optimiser, model)
        before, losses = named(model), []
        for inputs, targets in batches("float64", count, same_steps.BATCH * ranks):
            losses.append(float(_step(model, optimiser, inputs, targets, 1)))
    return {"before": before, "losses": losses, "weights": named(model)}


def _optimiser() -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.SGD(0.1, momentum=0.9)


def _step(model: Any, optimiser: Any, inputs: Any, targets: Any, ranks: int) -> Any:
    """The loss is divided by the ranks since the strategy adds their gradients up."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
        scaled = loss / ranks
    weights = model.trainable_variables
    optimiser.apply_gradients(list(zip(tape.gradient(scaled, weights), weights)))
    return loss


def _together(devices: List[str], count: int) -> Tuple[List[Dict[str, Any]], List[str]]:
    """Each replica's losses and weights, and the devices that hold the first weight."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(devices)
    rows, ranks = same_steps.BATCH, int(strategy.num_replicas_in_sync)
    with strategy.scope():
        model = network("float64")
        optimiser = _optimiser()
        prepare(optimiser, model)

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def step(inputs: Any, targets: Any) -> Any:
        return strategy.run(
            lambda x, y: _step(model, optimiser, x, y, ranks), args=(inputs, targets)
        )

    losses: List[List[float]] = [[] for _ in range(ranks)]
    for whole in batches("float64", count, rows * ranks):
        mine = [_dealt(strategy, side, rows) for side in whole]
        for rank, loss in enumerate(strategy.experimental_local_results(step(*mine))):
            losses[rank].append(float(loss))
    weights = [_copies(strategy, weight) for weight in model.trainable_variables]
    runs = [{"losses": losses[i], "weights": _named_copy(weights, i)} for i in range(ranks)]
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


def _named_copy(weights: "List[Tuple[Any, ...]]", rank: int) -> Dict[str, List[float]]:
    """As `networks.named` has them."""
    rows = enumerate(numbers([copies[rank] for copies in weights]))
    return {"weight {}".format(i): row.reshape(-1).tolist() for i, row in rows}


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
