"""How a row puts something of its own in the place of a function. No rows."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Dict, Tuple

from tests.mutations import Row

ROWS: Dict[str, Tuple[Row, ...]] = {}


def backend() -> Any:
    """Of the framework that is imported."""
    titles = {"torch": "pytorch", "jax": "jax", "tensorflow": "tensorflow"}
    name = next(titles[module] for module in titles if module in sys.modules)
    return importlib.import_module("verify.backends." + name).BACKEND


def maker() -> Any:
    """What makes an array of the imported framework from NumPy's."""
    modules = sys.modules
    if "jax" in modules:
        return modules["jax"].numpy.asarray
    return modules["torch"].from_numpy if "torch" in modules else modules["tensorflow"].constant


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put what `make` gives in the place of a function, which it is given."""
    setattr(owner, name, make(getattr(owner, name)))


def always(value: Any) -> Callable[[Any], Any]:
    """For `replace`: a function that gives this value."""
    return lambda _: lambda *_args, **_more: value


def raising(error: Exception) -> Callable[[Any], Any]:
    """For `replace`: a function that raises."""

    def make(_: Any) -> Any:
        def function(*_args: Any, **_more: Any) -> Any:
            raise error

        return function

    return make


def maps_of(*paths: str) -> str:
    """Lines of /proc/PID/maps."""
    return "".join("7f0-7f1 r-xp 0 00:00 1 {}\n".format(path) for path in paths)
