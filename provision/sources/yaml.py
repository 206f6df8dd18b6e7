"""A YAML file as nodes with their positions: mappings, lists, texts.

The file is only parsed to a graph of nodes: tags are ignored, and an alias is another reference to
the same node, never a copy, so a file that multiplies itself stays as small as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from provision.errors import BadInputError
from provision.sources.packages import Position

_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?[^}]*\}|\$(\w+)")


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A node of the file. Accessors of another type are empty: a text has no keys and no items."""

    raw: Any

    @property
    def at(self) -> Position:
        mark = self.raw.start_mark
        return Position(mark.line + 1, mark.column + 1)

    @property
    def text(self) -> str | None:
        """A scalar with variables that have a default filled in; None: not a scalar."""
        if self.raw.id != "scalar":
            return None
        return _VARIABLE.sub(lambda m: m[0] if m[2] is None else m[2], str(self.raw.value))

    def get(self, key: str) -> YamlNode | None:
        """The value of a key, including merged ones (`<<`)."""
        return next((value for name, value in self.pairs() if name == key), None)

    def key_place(self, key: str) -> Position:
        """The position of the key itself."""
        if self.raw.id == "mapping":
            for name, _ in self.raw.value:
                if name.value == key:
                    return Position(name.start_mark.line + 1, name.start_mark.column + 1)
        return self.at

    def pairs(self) -> Iterator[tuple[str, YamlNode]]:
        """Keys with their values, its own before merged ones."""
        seen: set[int] = set()
        waiting = [self.raw]
        while waiting:
            raw = waiting.pop(0)
            if id(raw) in seen or raw.id != "mapping":
                continue
            seen.add(id(raw))  # a mapping that is merged in several times counts once
            for key, value in raw.value:
                if key.id != "scalar":
                    continue
                if key.value == "<<":
                    waiting += value.value if value.id == "sequence" else [value]
                else:
                    yield str(key.value), YamlNode(value)

    def items(self) -> Iterator[YamlNode]:
        if self.raw.id == "sequence":
            for item in self.raw.value:
                yield YamlNode(item)

    def words(self) -> tuple[str, ...]:
        """The texts of a list, or the words of a text."""
        if self.text is not None:
            return tuple(self.text.split())
        return tuple(item.text for item in self.items() if item.text is not None)


def read_yaml(path: str, text: str, *, kind: str = "compose file") -> YamlNode | None:
    """The document; None: it is empty. BadInputError: invalid YAML, or nested too deeply."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        root = YAML(typ="rt", pure=True).compose(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" on line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or "it cannot be read"
        raise BadInputError(
            f"{path} is not valid YAML{where}: {why}.", fix="Mend it: what reads it says the same."
        ) from error
    except (RecursionError, ValueError) as error:
        raise BadInputError(
            f"{path} is nested too deeply to be a {kind}.", fix="Name another file."
        ) from error
    return None if root is None else YamlNode(root)
