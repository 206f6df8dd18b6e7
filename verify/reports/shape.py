"""Reads a report from a file, and refuses an invalid one.

It validates against `report.schema.json` and implements only the keywords that the schema uses,
since an image has no JSON Schema library. Names that the schema does not know are accepted: the
report of a later version may have more, which does not invalidate the rest.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from typing import Any, Callable, Dict, Iterator, Mapping, NoReturn

from verify.model.check import UsageError
from verify.model.report import Report

LIMIT_BYTES = 64 * 1024 * 1024  # a report of this suite has a few hundred kilobytes
_SCHEMA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "report.schema.json")


def read(path: str) -> Report:
    """The report in a file. Its problem, if any, is reported in one sentence."""
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise UsageError("{}: {}".format(path, error.strerror or error)) from error
    if len(data) > LIMIT_BYTES:
        raise UsageError("{}: larger than 64 MiB, the limit for a report".format(path))
    return parse(data, path)


def parse(data: bytes, name: str) -> Report:
    """The report in these bytes; `name` is their name in an error message."""
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_double)
        problem = next(problems(found, schema()), None)
    except (ValueError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError("{}: not JSON, or cut short: {}".format(name, said)) from error
    if problem:
        raise UsageError("{}: not a report of verify: {}".format(name, problem))
    report: Report = found
    return report


@functools.lru_cache(maxsize=None)
def schema() -> Dict[str, Any]:
    """The schema that ships with the suite."""
    with open(_SCHEMA, encoding="utf-8") as file:
        loaded: Dict[str, Any] = json.load(file)
    return loaded


def problems(value: Any, rule: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """The value's violations of the rule, the outermost first."""
    for keyword, told in rule.items():
        check = _KEYWORDS.get(keyword)
        if check is not None:
            yield from check(value, told, rule, where)


def _refuse(text: str) -> NoReturn:
    raise ValueError("{:.40} is not a finite number".format(text))


def _double(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _at(where: str, said: str, *values: Any) -> str:
    return "{}: {}".format(where.lstrip(".") or "the whole", said.format(*values))


def _finite(value: Any) -> bool:
    """Whether a number fits in a double, which is what JSON readers use."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


_TYPES: Dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _finite,
    "integer": lambda value: _finite(value) and value == int(value),
}


def _type(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    kinds = [told] if isinstance(told, str) else told
    if not any(_TYPES[kind](value) for kind in kinds):
        yield _at(where, "expected {}, found {}", " or ".join(kinds), _kind(value))


def _kind(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not _finite(value):
        return "a number that is not finite"
    return next(kind for kind in ("null", "boolean", *_TYPES) if _TYPES[kind](value))


def _const(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    if not _equal(value, told):
        yield _at(where, "expected {}, found {}", told, _shown(value))


def _enum(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    if not any(_equal(value, one) for one in told):
        yield _at(where, "expected one of {}, found {}", ", ".join(map(str, told)), _shown(value))


def _equal(value: Any, told: Any) -> bool:
    """Equality in JSON, where true is not 1."""
    return isinstance(value, bool) is isinstance(told, bool) and bool(value == told)


def _shown(value: Any) -> str:
    return "{!r:.40}".format(value)


def _pattern(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(told, value):
        yield _at(where, "{} does not look like {}", _shown(value), told)


def _least(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    if _finite(value) and value < told:
        yield _at(where, "{} is less than {}", value, told)


def _short(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    if isinstance(value, (str, list)) and len(value) < told:
        yield _at(where, "expected at least {}, found {}", told, len(value))


def _long(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    if isinstance(value, list) and len(value) > told:
        yield _at(where, "expected at most {}, found {}", told, len(value))


def _required(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    missing = [name for name in told if isinstance(value, dict) and name not in value]
    if missing:
        yield _at(where, "{} is missing", ", ".join(missing))


def _properties(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    for name, rule in told.items():
        if isinstance(value, dict) and name in value:
            yield from problems(value[name], rule, "{}.{}".format(where, name))


def _additional(value: Any, told: Any, rule: Mapping[str, Any], where: str) -> Iterator[str]:
    if isinstance(told, dict) and isinstance(value, dict):
        for name in value:
            if name not in rule.get("properties", {}):
                yield from problems(value[name], told, "{}.{}".format(where, _shown(name)))


def _items(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    for i, item in enumerate(value if isinstance(value, list) else ()):
        yield from problems(item, told, "{}[{}]".format(where, i))


def _ref(value: Any, told: str, _: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from problems(value, schema()["$defs"][told.rpartition("/")[2]], where)


def _if(value: Any, told: Any, rule: Mapping[str, Any], where: str) -> Iterator[str]:
    holds = next(problems(value, told), None) is None
    yield from problems(value, rule.get("then" if holds else "else", {}), where)


_KEYWORDS: Dict[str, Callable[[Any, Any, Mapping[str, Any], str], Iterator[str]]] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "pattern": _pattern,
    "minimum": _least,
    "minLength": _short,
    "minItems": _short,
    "maxItems": _long,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "$ref": _ref,
    "if": _if,
}
IGNORED = ("$schema", "$defs", "title", "description", "then", "else")
