"""JSON values as a table of nodes, each different value once: equal answers share everything.

A node is a text, a number, true, false, null, or a list: the number of its shape, then the nodes
of its values. Shape 0 is a list; the others are the keys of objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Node: TypeAlias = int


class Nodes:
    """The tables, filled in the order in which values are added: the same values, the same
    tables.
    """

    def __init__(self) -> None:
        self.shapes: list[tuple[str, ...]] = [()]
        self.nodes: list[object] = []
        self._shape_of: dict[tuple[str, ...], int] = {(): 0}
        self._node_of: dict[object, Node] = {}

    def add(self, value: object) -> Node:
        """The node of a value of JSON."""
        if isinstance(value, dict):
            values = [self.add(one) for one in value.values()]
            return self.of(self.shape(tuple(value)), values)
        if isinstance(value, (list, tuple)):
            return self.of(0, [self.add(one) for one in value])
        return self._intern((type(value), value), value)

    def of(self, shape: int, children: Sequence[Node]) -> Node:
        """The node of a list (shape 0) or an object whose values have their nodes already."""
        row = (shape, *children)
        return self._intern(row, row)

    def shape(self, keys: tuple[str, ...]) -> int:
        """The number of the shape of objects with these keys; of (), that of lists."""
        if keys not in self._shape_of:
            self._shape_of[keys] = len(self.shapes)
            self.shapes.append(keys)
        return self._shape_of[keys]

    def _intern(self, key: object, value: object) -> Node:
        if key not in self._node_of:
            self._node_of[key] = len(self.nodes)
            self.nodes.append(value)
        return self._node_of[key]
