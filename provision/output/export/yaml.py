"""Writes YAML as people do: block style, and comments above the lines that they explain.

Only what the exporters need: mappings with plain keys, lists, strings, integers, booleans. A string
is quoted unless every reader of YAML 1.1 and 1.2 takes it for a string without quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_PLAIN = re.compile(
    r"(?:--?|\./)?[A-Za-z_/][\w./@=+-]*(?::[\w./@=+-]+)*|\./:/\w+|[0-9]+(?:Gi|Mi|gb|mb)", re.ASCII
)
# https://yaml.org/type/bool.html and null.html: other words than these have no second meaning
_SPECIAL = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Remark:
    """A value with a comment, which is written above it."""

    text: str
    value: Node


Node: TypeAlias = str | int | bool | Sequence["Node"] | Mapping[str, "Node"] | Remark


def to_yaml(value: Mapping[str, Node]) -> str:
    """One document."""
    return "".join(f"{line}\n" for line in _mapping(value, ""))


def scalar(value: str | int) -> str:
    """A string, an integer or a boolean, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lstrip("-").lower() not in _SPECIAL:
        return value
    return "".join(
        c if c.isprintable() else _escape(c) for c in json.dumps(value, ensure_ascii=False)
    )


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _mapping(value: Mapping[str, Node], pad: str) -> Iterator[str]:
    for key, item in value.items():
        if isinstance(item, Remark):
            yield from _comment(item.text, pad)
            item = item.value  # noqa: PLW2901  the same, without its comment
        if isinstance(item, (str, int)):
            yield f"{pad}{scalar(key)}: {scalar(item)}"
        else:
            yield f"{pad}{scalar(key)}:"
            yield from _nested(item, f"{pad}  ")


def _nested(value: Node, pad: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _mapping(value, pad)
        return
    assert isinstance(value, Sequence)
    for item in value:
        if isinstance(item, Remark):
            yield from _comment(item.text, pad)
            item = item.value  # noqa: PLW2901
        if isinstance(item, (str, int)):
            yield f"{pad}- {scalar(item)}"
        else:
            first, *others = _nested(item, f"{pad}  ")
            yield f"{pad}- {first.lstrip()}"
            yield from others


def _comment(text: str, pad: str) -> Iterator[str]:
    return (f"{pad}# {line}" for line in text.splitlines())
