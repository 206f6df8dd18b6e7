"""Hostile texts and wrong types, put into every leaf of a document, and what no output may have."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Place = tuple[str | int, ...]

CONTROL = (
    "INJECTED\n---\nkind: INJECTED\n%post\n\r\x85\u2028\x1b[31m\x1b]0;INJECTED\x07\0\u202e\ud800"
)
"""Line ends of every kind, a YAML document, a section, escape sequences, direction, a surrogate."""
QUOTES = "'\"`$(INJECTED)${INJECTED}{{ INJECTED }} # a: b --- %post </script>]]>"
"""What ends a quotation or is expanded, all of it printable."""
LONG = "A" * 10_000_000
HUGE = "@HUGE@"  # 1e999, which json.dumps does not write
WRONG: tuple[Any, ...] = (
    *([], {}, None, True, 10**400, HUGE, math.nan, -1, "", [None], {"x": []}, 0.5, ["INJECTED"]),
)
_NEVER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]")
_MOST_OUTPUT = 300_000


class Case(NamedTuple):
    """A document with one other value, and where that is."""

    place: str
    document: Any


def cases(good: Any, *, long: Place | None = None) -> Iterator[Case]:
    """The document with each text in each leaf, and with two wrong types in each place (all of them
    in turn). Of the items of a list the first with a key stands for the others.
    """
    turn = 0
    for place, value in _places(good, (), set()):
        texts = [] if isinstance(value, (dict, list)) else [CONTROL, QUOTES]
        for other in [*texts, WRONG[turn % len(WRONG)], WRONG[(turn + 1) % len(WRONG)]]:
            yield Case(f"{place}: {other!r:.20}", _with(good, place, other))
        turn += 2
    if long is not None:
        yield Case(f"{long}: 10 MB", _with(good, long, LONG))


def _places(value: Any, at: Place, seen: set[Place]) -> Iterator[tuple[Place, Any]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        place = (*at, key)
        known = tuple(part for part in place if isinstance(part, str))
        if isinstance(inner, (dict, list)):
            if inner:
                yield from _places(inner, place, seen)
            known = (*known, "[]")
        if known not in seen:
            seen.add(known)
            yield place, inner


def _with(good: Any, place: Place, other: Any) -> Any:
    found = copy.deepcopy(good)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    return found


def to_json(document: Any) -> bytes:
    """The document as an attacker writes it: with lone surrogates, NaN, and 1e999."""
    return json.dumps(document).replace(f'"{HUGE}"', "1e999").encode()


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run(main: Callable[[list[str]], int], words: Sequence[str | Path]) -> Ran:
    """A command in this process, with streams that take what a terminal's do."""
    out, err = io.BytesIO(), io.BytesIO()
    outer = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    inner = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(outer), contextlib.redirect_stderr(inner):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return Ran(int(code), out.getvalue().decode(), err.getvalue().decode())


def problem(ran: Ran) -> str | None:
    """What is wrong with a command's ending or output, whatever it was given."""
    text = ran.out + ran.err
    if ran.code == 70 or "Traceback" in text:
        return f"exit code {ran.code}: {ran.err[-600:]}"
    if found := _NEVER.search(text):
        return f"it printed {found[0]!a}: {text[max(0, found.start() - 80) : found.end()]!a}"
    if len(text) > _MOST_OUTPUT:
        return f"it printed {len(text)} characters"
    return None


def shape(value: Any) -> Any:
    """The keys and the types of a value, without its texts and numbers."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__
