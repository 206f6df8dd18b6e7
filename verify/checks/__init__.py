"""Which framework has which checks, cheapest first. Each check is declared once, in its family."""

from __future__ import annotations

from typing import Dict, Sequence, Tuple

from verify.checks.collectives import sums as collectives
from verify.checks.collectives import together
from verify.checks.devices import compute, peers, placement
from verify.checks.devices import inventory as devices
from verify.checks.health import after, links
from verify.checks.health import condition as health
from verify.checks.libraries import loaded as libraries
from verify.checks.libraries import packages, versions
from verify.checks.libraries import pytorch as torch_libraries
from verify.checks.libraries import tensorflow as tensorflow_libraries
from verify.checks.loading import pipeline
from verify.checks.loading import workers as loading
from verify.checks.memory import free as memory
from verify.checks.numerics import attention, compiled, convolution, graphs, products, reruns
from verify.checks.numerics import libraries as solvers
from verify.checks.speed import burn
from verify.checks.speed import measured as speed
from verify.checks.speed import training as timed
from verify.checks.training import keras, mirrored, parallel, pmap
from verify.checks.training import loss as training
from verify.model.check import LEVELS, Check

ALL = ("pytorch", "tensorflow", "jax")
PYTORCH, TENSORFLOW, JAX, XLA = ("pytorch",), ("tensorflow",), ("jax",), ("tensorflow", "jax")
_TABLE: Tuple[Tuple[Sequence[str], Sequence[Check]], ...] = (
    (ALL, devices.WITHOUT_FRAMEWORK),
    (ALL, health.CHECKS),
    (ALL, links.CHECKS),
    (ALL, libraries.CHECKS),
    (PYTORCH, torch_libraries.CHECKS),
    (("pytorch", "tensorflow"), (libraries.NUMPY,)),
    (ALL, (libraries.FILES,)),
    (TENSORFLOW, tensorflow_libraries.CHECKS),
    (PYTORCH, versions.CHECKS),
    (ALL, packages.CHECKS),
    (ALL, (devices.COUNT,)),
    (("pytorch", "tensorflow"), (devices.CODE,)),
    (ALL, compute.CHECKS),
    (XLA, placement.CHECKS),
    (ALL, peers.CHECKS),
    (ALL, products.CHECKS),
    (ALL, convolution.CHECKS),
    (ALL, solvers.CHECKS),
    (ALL, reruns.CHECKS),
    (ALL, attention.CHECKS),
    (ALL, compiled.CHECKS),
    (PYTORCH, graphs.CHECKS),
    (ALL, training.CHECKS),
    (TENSORFLOW, keras.CHECKS),
    (PYTORCH, loading.CHECKS),
    (TENSORFLOW, pipeline.CHECKS),
    (ALL, memory.CHECKS),
    (ALL, (memory.BATCH,)),
    (PYTORCH, collectives.CHECKS),
    (ALL, together.CHECKS),
    (PYTORCH, parallel.CHECKS),
    (TENSORFLOW, mirrored.CHECKS),
    (JAX, pmap.CHECKS),
    (ALL, speed.CHECKS),
    (("pytorch", "jax"), (speed.COPIES,)),  # TensorFlow lets no program pin memory
    (ALL, timed.CHECKS),
    (ALL, burn.CHECKS),
    (ALL, after.CHECKS),
)


def _of(framework: str) -> Tuple[Check, ...]:
    """A framework's, sorted by level, and in the listed order within a level."""
    found = [check for who, checks in _TABLE if framework in who for check in checks]
    return tuple(sorted(found, key=lambda check: LEVELS.index(check.level)))


CHECKS: Dict[str, Tuple[Check, ...]] = {framework: _of(framework) for framework in ALL}
