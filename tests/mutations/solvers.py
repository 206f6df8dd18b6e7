"""Faults of the libraries for transforms, linear systems and sparse products."""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any, Callable, Tuple

from tests.mutations import Row, rows
from tests.mutations.patching import backend, raising, replace

_MISSING = "libcusolver.so.11: cannot open shared object file: No such file or directory"


def spoil(name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Put what `make` gives in the place of the framework's function."""

    def seed() -> None:
        from verify.checks.numerics.libraries import NAMES

        module, names = NAMES[type(backend()).__name__.lower()]
        folder, _, leaf = names[name].rpartition(".")
        replace(attrgetter(folder)(importlib.import_module(module)), leaf, make)

    return seed


def off_by_a_thousandth(real: Any) -> Any:
    """Results that are a little large."""
    return lambda *given: real(*given) * 1.001


def drop_a_row() -> None:
    """A sparse product whose first row is lost."""
    import torch

    def make(real: Any) -> Any:
        def product(left: Any, right: Any) -> Any:
            found = real(left, right)
            if left.is_sparse:
                found[0] = 0
            return found

        return product

    replace(torch.Tensor, "__matmul__", make)


_SHARED: Tuple[Row, ...] = rows(
    "numerics.libraries",
    ("transforms are off", spoil("rfft", off_by_a_thousandth), "FFT, "),
    ("inverse transforms are off", spoil("irfft", off_by_a_thousandth), "FFT, inverse"),
    ("solutions are off", spoil("solve", off_by_a_thousandth), "linear system: error 0.001"),
    ("the solver's library is missing", spoil("solve", raising(OSError(_MISSING))),
     "libcusolver.so.11"),
)  # fmt: skip
_SPARSE = rows("numerics.libraries", ("a sparse product loses a row", drop_a_row, "sparse product"))
ROWS = {"pytorch": (*_SHARED, *_SPARSE), "jax": _SHARED, "tensorflow": _SHARED}
