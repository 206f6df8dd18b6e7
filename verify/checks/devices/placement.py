"""Where work really runs, for frameworks that move it elsewhere without an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from verify.backends.base import of
from verify.model.check import Check, Context, Outcome, Status

SIZE = 512  # of the square matrices that are multiplied, in float32


@dataclass(frozen=True)
class PlacedOp:
    """Where matrix products ran. Devices are named like the end of TensorFlow's names: "GPU:0"."""

    asked: str
    eager: str  # of an operation for the device
    graph: Dict[str, str]  # of a compiled function's operations for the device
    unasked: str  # of an operation that names no device
    default: str  # where that should be
    held_bytes: Optional[int] = None  # growth of the device's memory
    needed_bytes: int = SIZE * SIZE * 4


class Elsewhere(NamedTuple):
    """Why a framework runs work on another device, and the fix."""

    cause: str
    fix: str
    no_graph: str  # why a graph may show no product


def judge_placement(placed: PlacedOp, kind: str, elsewhere: Elsewhere) -> Outcome:
    """Whether eager work, a graph's work and work without a named device ran where they should."""
    measured = {
        "device": kind,
        "eager": placed.eager,
        "graph": dict(placed.graph),
        "unasked": placed.unasked,
        "held_bytes": placed.held_bytes,
    }
    expected = {"asked": placed.asked, "default": placed.default}
    fault = _misplaced(placed, elsewhere)
    if fault:
        return Outcome(Status.FAIL, *fault, measured, expected)
    message = "runs on the requested device, {}: eagerly and in a graph".format(placed.asked)
    if kind != "cuda":
        message += "; two devices of the CPU: no GPU visible"
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _misplaced(placed: PlacedOp, elsewhere: Elsewhere) -> Optional[Tuple[str, str, str]]:
    said = "a matrix product for {} ran on {}"
    if placed.eager != placed.asked:
        message = said.format(placed.asked, placed.eager or "no device")
        return message, elsewhere.cause, elsewhere.fix
    if not placed.graph:
        message = "the graph that ran has no matrix product"
        return message, elsewhere.no_graph, "see numerics.compile; build the image again"
    for name, device in placed.graph.items():
        if device != placed.asked:
            message = "{} in a graph".format(said.format(placed.asked, device or "no device"))
            return message, "{} was placed there: {}".format(name, elsewhere.cause), elsewhere.fix
    if placed.unasked != placed.default:
        message = "work that names no device runs on {}, not on {}".format(
            placed.unasked or "no device", placed.default
        )
        return message, "models that name no device would train there", elsewhere.fix
    if placed.held_bytes is not None and placed.held_bytes < placed.needed_bytes:
        message = "{} uses {} more bytes after a matrix product of {} bytes".format(
            placed.asked, placed.held_bytes, placed.needed_bytes
        )
        return message, "the result is in another device's memory", elsewhere.fix
    return None


def check_placement(context: Context) -> Outcome:
    """Multiply on a chosen device, and check where it was done. Without a GPU the CPU is split into
    two devices for the same test.
    """
    backend = of(context)
    if context.framework == "jax":
        backend.split_cpu()  # XLA reads that when it starts
    broken, place = backend.find(context)
    if broken:
        return broken
    asked = place
    if not place.is_gpu:
        if context.framework != "jax":
            backend.split_cpu()
        asked = backend.place("cpu", 1)
    work = _by_tensorflow if context.framework == "tensorflow" else _by_jax
    return judge_placement(work(asked, place), place.kind, _ELSEWHERE[context.framework])


_ELSEWHERE = {
    "tensorflow": Elsewhere(
        "this TensorFlow has no GPU kernel for it, or was told to place it elsewhere",
        "unset TF_ settings and CUDA_VISIBLE_DEVICES; see libraries.dlopen",
        "TensorFlow ran it earlier, or does not report where",
    ),
    "jax": Elsewhere(
        "JAX was told to compute elsewhere, or moved the result",
        "unset JAX_PLATFORMS, JAX_PLATFORM_NAME, JAX_DEFAULT_DEVICE and CUDA_VISIBLE_DEVICES",
        "JAX does not report where it ran",
    ),
}


def _by_tensorflow(asked: Any, usual: Any) -> PlacedOp:
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


def _by_jax(asked: Any, usual: Any) -> PlacedOp:
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
    Check("devices.placement", "Operations run on the requested device", check_placement, gpu=True),
)
