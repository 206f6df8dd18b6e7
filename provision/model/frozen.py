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
    return {name: getattr(value, name) for name in value._names}  # noqa: SLF001  set above


class _Fields:
    """`__dataclass_fields__`, created by the standard library on first use."""

    def __get__(self, value: object, cls: Any) -> dict[str, Any]:  # noqa: ANN401
        import dataclasses

        twin = type(cls.__name__, (), {"__annotations__": cls.__annotations__, **cls._defaults})
        made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(twin)
        cls.__dataclass_fields__ = made.__dataclass_fields__
        return dict(made.__dataclass_fields__)


def _init(self: Any, **given: object) -> None:  # noqa: ANN401
    fields = {**self._defaults, **given}
    if fields.keys() != set(self._names):
        wrong = sorted(fields.keys() ^ set(self._names))
        raise TypeError(f"{type(self).__name__}() misses or does not take: {', '.join(wrong)}")
    for name, value in fields.items():
        object.__setattr__(self, name, value)


def _frozen(self: object, name: str, *_: object) -> None:
    raise AttributeError(f"cannot change {name!r} of a frozen {type(self).__name__}")


def _repr(self: Any) -> str:  # noqa: ANN401
    return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in asdict(self).items())})"


def _eq(self: Any, other: Any) -> Any:  # noqa: ANN401
    return asdict(self) == asdict(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:  # noqa: ANN401
    return hash(tuple(asdict(self).values()))


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
