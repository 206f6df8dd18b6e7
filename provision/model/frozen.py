"""Frozen values that are cheap to declare.

`dataclasses` imports `inspect` and compiles the methods of every class: for the values that a plan
needs that takes 15 ms, a sixth of the whole (bench/plan.py). These classes behave like frozen
dataclasses that take keyword arguments only; `dataclasses.replace`, `asdict` and `fields` accept
them. Type checkers see the real decorator:

    if TYPE_CHECKING:
        from dataclasses import dataclass
    else:
        from provision.model.frozen import dataclass
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, cast

T = TypeVar("T")


def dataclass(
    *, frozen: bool, kw_only: bool, slots: bool = False, eq: bool = True
) -> Callable[[type[T]], type[T]]:
    """The decorator of the standard library, for frozen classes whose bases have no fields."""
    assert frozen
    assert kw_only

    def declare(cls: type[T]) -> type[T]:
        names = tuple(cls.__annotations__)
        defaults = {name: vars(cls)[name] for name in names if name in vars(cls)}
        left = {*defaults, "__dict__", "__weakref__"}
        body = {name: value for name, value in vars(cls).items() if name not in left}
        body.update({**_METHODS, **(_EQUALITY if eq else {})})
        body.update({"_names": names, "_defaults": defaults, "__dataclass_fields__": _Fields()})
        body["_known"] = frozenset(names)
        body["_values"] = property(attrgetter(*names) if len(names) > 1 else _few_values)
        body["__annotations__"] = dict(cls.__annotations__)
        if slots:
            body["__slots__"] = names
        else:
            # as attributes of the class, where the standard library leaves them
            body.update(defaults)
        return cast("type[T]", type(cls.__name__, cls.__bases__, body))

    return declare


def replace(value: T, **changes: object) -> T:
    """A copy with some fields changed; like `dataclasses.replace`."""
    return type(value)(**{**asdict(value), **changes})


def asdict(value: Any) -> dict[str, Any]:  # noqa: ANN401  any of these values
    """The fields by name; their values stay as they are."""
    return dict(zip(value._names, value._values))  # noqa: SLF001, B905  nodes have Python 3.8


class _Fields:
    """`__dataclass_fields__`, created by the standard library on first use."""

    def __get__(self, value: object, cls: Any) -> dict[str, Any]:  # noqa: ANN401
        import dataclasses

        twin = type(cls.__name__, (), {"__annotations__": cls.__annotations__, **cls._defaults})
        made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(twin)
        cls.__dataclass_fields__ = made.__dataclass_fields__
        return dict(made.__dataclass_fields__)


def _few_values(self: Any) -> tuple[object, ...]:  # noqa: ANN401
    """The values of a class with fewer than two fields; `attrgetter` has no tuple for them."""
    return tuple([getattr(self, name) for name in self._names])


def _init(self: Any, **given: object) -> None:  # noqa: ANN401
    fields = {**self._defaults, **given}
    if fields.keys() != self._known:
        wrong = sorted(fields.keys() ^ self._known)
        raise TypeError(f"{type(self).__name__}() misses or does not take: {', '.join(wrong)}")
    put = object.__setattr__
    for name, value in fields.items():
        put(self, name, value)


def _frozen(self: object, name: str, *_: object) -> None:
    raise AttributeError(f"cannot change {name!r} of a frozen {type(self).__name__}")


def _repr(self: Any) -> str:  # noqa: ANN401
    return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in asdict(self).items())})"


def _eq(self: Any, other: Any) -> Any:  # noqa: ANN401
    if type(other) is not type(self):
        return NotImplemented
    return self._values == other._values  # noqa: SLF001


def _hash(self: Any) -> int:  # noqa: ANN401
    return hash(self._values)


def _reduce(self: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # noqa: ANN401
    return _again, (type(self), asdict(self))


def _again(cls: type[T], fields: dict[str, Any]) -> T:
    return cls(**fields)


_METHODS = {
    "__init__": _init,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
    "__repr__": _repr,
    "__reduce__": _reduce,
}
_EQUALITY = {"__eq__": _eq, "__hash__": _hash}
