"""Reads a report from a file, and refuses an invalid one.

It validates against `report.schema.json` and implements only the keywords that the schema uses,
since an image has no JSON Schema library. Names that the schema does not know are accepted: the
report of a later version may have more, which does not invalidate the rest.
"""

from __future__ import annotations

import functools
import json
import math
import pkgutil
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, NoReturn, Optional

from verify.model.check import UsageError
from verify.model.report import Report

LIMIT_BYTES = 64 * 1024 * 1024  # a report of this suite has a few hundred kilobytes


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
        problem = None if _whole_fits()(found) else next(problems(found, schema()), None)
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
    loaded: Dict[str, Any] = json.loads(pkgutil.get_data("verify", "report.schema.json") or b"")
    return loaded


Fits = Callable[[Any], bool]


@functools.lru_cache(maxsize=None)
def _whole_fits() -> Fits:
    return fits_rule(schema())


def fits_rule(rule: Mapping[str, Any]) -> Fits:
    """A function that says whether a value has no `problems` with this rule. It keeps no places for
    messages, which makes it ten times as fast: a fleet has thousands of reports.
    """
    tests = [_fits_keyword(keyword, told, rule) for keyword, told in rule.items()]
    found = tuple(test for test in tests if test is not None)
    if len(found) == 1:
        return found[0]
    return lambda value: all(test(value) for test in found)


def _fits_keyword(keyword: str, told: Any, rule: Mapping[str, Any]) -> Optional[Fits]:
    check = _KEYWORDS.get(keyword)
    if check is None:
        return None
    special = {
        "type": _fits_type,
        "properties": _fits_properties,
        "additionalProperties": _fits_additional,
        "items": _fits_items,
        "$ref": _fits_ref,
        "required": _fits_required,
        "minItems": _fits_least,
        "maxItems": _fits_most,
    }.get(keyword)
    if special is not None:
        return special(told, rule)
    return lambda value: next(check(value, told, rule, ""), None) is None


_EXACT = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def _fits_type(told: Any, _: Mapping[str, Any]) -> Fits:
    kinds = (told,) if isinstance(told, str) else tuple(told)
    exact = frozenset(_EXACT[kind] for kind in kinds if kind in _EXACT)
    tests = tuple(_TYPES[kind] for kind in kinds)
    if kinds == ("number",):
        return lambda value: math.isfinite(value) if type(value) is float else _finite(value)
    if len(kinds) == len(exact) == 1:
        return tests[0]
    return lambda value: type(value) in exact or any(test(value) for test in tests)


def _fits_properties(told: Any, _: Mapping[str, Any]) -> Fits:
    rules = tuple((name, fits_rule(rule)) for name, rule in told.items())

    def fits(value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        return all(test(value[name]) for name, test in rules if name in value)

    return fits


def _fits_additional(told: Any, rule: Mapping[str, Any]) -> Optional[Fits]:
    if not isinstance(told, dict):
        return None
    test, known = fits_rule(told), frozenset(rule.get("properties", {}))

    def fits(value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        return all(test(value[name]) for name in value if name not in known)

    return fits


def _fits_items(told: Any, _: Mapping[str, Any]) -> Fits:
    test = fits_rule(told)
    return lambda value: not isinstance(value, list) or all(test(item) for item in value)


def _fits_required(told: Any, _: Mapping[str, Any]) -> Fits:
    names = frozenset(told)
    return lambda value: not isinstance(value, dict) or names <= value.keys()


def _fits_least(told: Any, _: Mapping[str, Any]) -> Fits:
    return lambda value: not isinstance(value, list) or len(value) >= told


def _fits_most(told: Any, _: Mapping[str, Any]) -> Fits:
    return lambda value: not isinstance(value, list) or len(value) <= told


def _fits_ref(told: str, _: Mapping[str, Any]) -> Fits:
    kept: List[Fits] = []  # made at first use: definitions may name each other

    def fits(value: Any) -> bool:
        if not kept:
            kept.append(fits_rule(schema()["$defs"][told.rpartition("/")[2]]))
        return kept[0](value)

    return fits


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
    if isinstance(value, (str, list)) and len(value) > told:
        yield _at(where, "expected at most {}, found {}", told, len(value))


def _required(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    missing = [name for name in told if isinstance(value, dict) and name not in value]
    if missing:
        yield _at(where, "{} is missing", ", ".join(missing))


def _properties(value: Any, told: Any, _: Mapping[str, Any], where: str) -> Iterator[str]:
    for name, rule in told.items() if isinstance(value, dict) else ():
        if name in value:
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
    "maxLength": _long,
    "maxItems": _long,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "$ref": _ref,
    "if": _if,
}
IGNORED = ("$schema", "$defs", "title", "description", "then", "else")
