"""HTML and SVG that is safe from injection: everything that is not a `Markup` is escaped."""

from __future__ import annotations

import html
from typing import Optional, Union

from verify.reports.formatting import clean

EMPTY = ("br", "col", "meta")  # HTML elements without an end tag


class Markup(str):
    """Text that is already HTML. Only `tag`, `join` and this package's constants create it."""

    __slots__ = ()


Child = Union[str, None]
Value = Union[str, float, bool, None]


def escape(text: str) -> Markup:
    """A text as HTML, safe in an element and in a quoted attribute."""
    return Markup(html.escape(clean(text), quote=True))


def join(*children: Child) -> Markup:
    """The children one after the other."""
    parts = (child if isinstance(child, Markup) else escape(child) for child in children if child)
    return Markup("".join(parts))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element. `class_` is class, `view_box` is viewBox, other underscores are hyphens."""
    head = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in EMPTY:
        return Markup("<{}{}>".format(name, head))
    return Markup("<{}{}>{}</{}>".format(name, head, join(*children), name))


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = {"view_box": "viewBox"}.get(key, key.rstrip("_").replace("_", "-"))
    return " {}".format(name) if value is True else ' {}="{}"'.format(name, escape(_text(value)))


def _text(value: Union[str, float]) -> str:
    """The value as text. A coordinate gets one decimal: more only makes the file larger."""
    if isinstance(value, float):
        return "{:.1f}".format(value).rstrip("0").rstrip(".")
    return str(value)


def link(target: str, text: Optional[str]) -> Markup:
    """A link within the page."""
    return tag("a", text, href="#" + target)
