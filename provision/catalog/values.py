"""Readers of single values: the JSON value of one key -> the value in the row."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from provision.model.plan import ComputeCapability

Reader = Callable[[object], object]


class WrongError(Exception):
    """A malformed value or row; the caller knows where it is."""


def text(value: object) -> str:
    """A text that is not empty."""
    if type(value) is not str or not value:
        raise WrongError("expected text")
    return value


def pattern(value: object) -> re.Pattern[str]:
    """A regular expression that must match the whole text."""
    try:
        return re.compile(rf"\b(?:{text(value)})\b", re.ASCII)
    except re.error as error:
        raise WrongError(f"expected a regular expression: {error}") from None


def flag(value: object) -> bool:
    """true or false."""
    if type(value) is not bool:
        raise WrongError("expected true or false")
    return value


def number(value: object) -> int:
    """An integer from 0 on."""
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise WrongError("expected a whole number")
    return value


def quantity(value: object) -> float:
    """A number from 0 on, integer or not."""
    if (type(value) is int or type(value) is float) and 0 <= value < 1e12:
        return value
    raise WrongError("expected a number")


def rates(value: object) -> dict[str, float | None]:
    """Peak rates by number format; each format is named."""
    if type(value) is not dict or value.keys() != _RATES:
        raise WrongError(f"expected an object of {', '.join(sorted(_RATES))}")
    for rate in value.values():
        if rate is not None:
            quantity(rate)
    return value


def brands(value: object) -> dict[int, object]:
    """Brands of GPUs by driver branch; [] if they were not read."""
    if type(value) is not dict or not all(_digits(branch) for branch in value):
        raise WrongError("expected an object of brands by driver branch")
    return {int(branch): _BRANDS_OF_ONE(brands) for branch, brands in value.items()}


def capability(value: object) -> ComputeCapability:
    """ "8.6" -> (8, 6)."""
    major, _, minor = value.partition(".") if type(value) is str else ("", "", "")
    if not (_digits(major) and _digits(minor)):
        raise WrongError('expected a compute capability such as "8.6"')
    return int(major), int(minor)


def _sm(value: object, prefix: str = "sm_") -> ComputeCapability:
    """ "sm_86" -> (8, 6), "sm_120" -> (12, 0): the last digit is the minor."""
    found = _architecture(value, prefix) if type(value) is str else None
    if found is None:
        raise WrongError(f"expected {prefix}NN")
    return found


@cache
def _architecture(text: str, prefix: str) -> ComputeCapability | None:
    number = text[len(prefix) :] if text.startswith(prefix) else ""
    return (int(number[:-1]), int(number[-1])) if len(number) > 1 and _digits(number) else None


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def sms(value: object) -> tuple[ComputeCapability, ...]:
    """["sm_80", "sm_86"] -> ((8, 0), (8, 6))."""
    if type(value) is not list or not value:
        raise WrongError("expected list of sm_NN")
    try:
        return tuple([_sm(item) for item in value])
    except WrongError:
        raise WrongError("expected list of sm_NN") from None


def ptx(value: object) -> ComputeCapability:
    """ "compute_86" -> (8, 6)."""
    return _sm(value, "compute_")


def many(item: Reader, what: str, *, empty: bool = False) -> Reader:
    """The reader of a list of items; `what` names them."""

    def read(value: object) -> object:
        if type(value) is not list or not (value or empty):
            raise WrongError(f"expected list of {what}")
        return tuple([item(entry) for entry in value])

    return read


def maybe(item: Reader, absent: object = None) -> Reader:
    """The reader of an item that may be null, which reads as `absent`."""

    def read(value: object) -> object:
        return absent if value is None else item(value)

    return read


def one_of(*words: str) -> Reader:
    """The reader of one of some words."""
    allowed = frozenset(words)

    def read(value: object) -> object:
        if type(value) is not str or value not in allowed:
            raise WrongError(f"expected one of {', '.join(words)}")
        return value

    return read


_RATES = frozenset({"fp32", "tf32", "fp16", "bf16", "fp8"})
_BRANDS_OF_ONE = many(text, "brands", empty=True)
