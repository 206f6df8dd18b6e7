"""How a row puts something of its own in the place of a function. No rows."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

from tests.mutations import Row

ROWS: Dict[str, Tuple[Row, ...]] = {}


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
