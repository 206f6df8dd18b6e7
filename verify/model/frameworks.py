"""The frameworks that the suite can test, and how a process imports one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple


@dataclass(frozen=True)
class Framework:
    """One framework: its name, its module and its distribution."""

    name: str
    title: str
    module: str
    distributions: Tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # set before the import

    def version(self) -> Optional[str]:
        """The version from its metadata: only checks import it."""
        from importlib import metadata

        for name in self.distributions:
            for found in metadata.distributions(name=name):
                return found.version
        return None

    def load(self) -> None:
        """Import it. Variables that the user has set are kept."""
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        warnings.simplefilter("ignore")  # they would appear in every check's output
        importlib.import_module(self.module)


_ROWS = (
    Framework("pytorch", "PyTorch", "torch", ("torch",)),
    Framework(
        "tensorflow",
        "TensorFlow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tf-nightly"),
        # By default it takes nearly all of a GPU's memory and fills every check's output.
        {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_CPP_MIN_LOG_LEVEL": "1"},
    ),
    Framework(
        "jax",
        "JAX",
        "jax",
        ("jax",),
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    ),
)
FRAMEWORKS = {row.name: row for row in _ROWS}
DEFAULT = "pytorch"


def installed() -> Tuple[str, ...]:
    """The frameworks that this Python could import, in the order of the table."""
    return tuple(row.name for row in _ROWS if importlib.util.find_spec(row.module) is not None)


def choose(asked: Optional[str], expected: Optional[str]) -> str:
    """The framework to test: the requested one, else the expected one, else the first installed."""
    return asked or expected or next(iter(installed()), DEFAULT)
