"""Plots as inline SVG: lines over an axis, and bars. Colours are the page's, set by class.

The view box is 400 units wide, about the width of a phone: text of 13 units is readable there, and
a wide screen shows the plots side by side.
"""

from __future__ import annotations

import textwrap
from typing import List, Optional, Sequence, Tuple

from verify.model.report import MetricRow, PlotRow
from verify.reports import axes
from verify.reports.axes import Scale
from verify.reports.formatting import number, one_line, percent, quantity, varying
from verify.reports.markup import Markup, join, tag

WIDTH, HEIGHT = 400, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 28, 48
SERIES = 8  # the page's number of colours; further lines differ by their dashes
MOST_DOTS = 24  # a line with more points is drawn without dots
BAR, LETTER = 46, 8.0  # height of a bar with its label; the most width of a letter
_DASHES = (None, "6 4", "2 3", "9 3 2 3")

Point = Tuple[float, float]
Bar = Tuple[str, float, str, int]  # name, value, the value as text, colour


def lines(plot: PlotRow, identity: str) -> Markup:
    """A plot of `measures.Plot`. Lines without points are still named in the legend."""
    points = [(x, y) for line in plot["lines"] for x, y in line["points"]]
    if not points:
        return tag("p", "No data.", class_="quiet")
    log = plot["log_x"] and all(x > 0 for x, _ in points)
    across = Scale(*axes.span([x for x, _ in points], log=log), LEFT, WIDTH - RIGHT, log)
    up = Scale(*axes.span([y for _, y in points], zero=True), HEIGHT - BOTTOM, TOP)
    whole = all(x == int(x) for x, _ in points)
    drawn = [_line(line["points"], i, across, up) for i, line in enumerate(plot["lines"])]
    return _svg(
        HEIGHT,
        identity,
        plot["title"],
        _told(plot),
        join(_grid_y(up, plot["y"]), _grid_x(across, plot["x"], whole=whole), *drawn),
    )


def legend(plot: PlotRow) -> Markup:
    """The lines' names, each with a sample of its line, as a list below the plot."""
    rows = []
    for i, line in enumerate(plot["lines"]):
        piece = tag("line", x1=1, y1=6, x2=27, y2=6, class_=_series(i), stroke_dasharray=_dash(i))
        dot = tag("circle", cx=14, cy=6, r=3, class_=_series(i))
        swatch = tag(
            "svg", piece, dot, width=28, height=12, view_box="0 0 28 12", aria_hidden="true"
        )
        rows.append(tag("li", swatch, tag("span", one_line(line["name"]) or "unnamed")))
    return tag("ul", *rows, class_="legend")


def _told(plot: PlotRow) -> str:
    """The plot as text, for screen readers."""
    said = []
    for line in plot["lines"]:
        ys = [y for _, y in line["points"]]
        reach = "{} to {}".format(number(min(ys)), number(max(ys))) if ys else "no points"
        said.append("{}: {}".format(line["name"] or "unnamed", reach))
    return "{} over {}. {}.".format(plot["y"], plot["x"], "; ".join(said))


def _svg(height: float, identity: str, title: str, told: str, *drawn: Markup) -> Markup:
    return tag(
        "svg",
        tag("title", one_line(title), id=identity + "-t"),
        tag("desc", one_line(told), id=identity + "-d"),
        *drawn,
        view_box="0 0 {} {:g}".format(WIDTH, height),
        role="img",
        aria_labelledby="{0}-t {0}-d".format(identity),
        class_="plot",
    )


def _grid_y(up: Scale, title: str) -> Markup:
    rows: List[Markup] = [_text(4, 15, one_line(title), "axis-title")]
    for value, word in axes.ticks(up.low, up.high):
        y = up(value)
        rows.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        rows.append(_text(LEFT - 6, y + 4, word, "tick", "end"))
    return join(*rows)


def _grid_x(across: Scale, title: str, *, whole: bool) -> Markup:
    bottom = HEIGHT - BOTTOM
    rows: List[Markup] = []
    for value, word in _x_ticks(across, title, whole=whole):
        x = across(value)
        rows.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="edge"))
        rows.append(_text(_kept_in(x, word), bottom + 19, word, "tick", "middle"))
    rows.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="edge"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    rows.append(_text(middle, HEIGHT - 8, one_line(title), "axis-title", "middle"))
    return join(*rows)


def _x_ticks(across: Scale, title: str, *, whole: bool) -> List[Tuple[float, str]]:
    if not across.log:
        return axes.ticks(across.low, across.high, whole=whole)
    binary = "byte" in title.lower()
    found = axes.log_ticks(across.low, across.high, binary=binary)
    return found or [(value, number(value)) for value in (across.low, across.high)]


def _kept_in(x: float, word: str) -> float:
    """The middle of a label, moved so that the label stays on the page."""
    half = len(word) * LETTER / 2
    return min(max(x, half), WIDTH - half)


def _line(points: Sequence[Sequence[float]], i: int, across: Scale, up: Scale) -> Optional[Markup]:
    places = [(across(x), up(y)) for x, y in sorted(map(tuple, points))]
    path = " ".join("{:.1f},{:.1f}".format(x, y) for x, y in places)
    dots = [tag("circle", cx=x, cy=y, r=3, class_=_series(i)) for x, y in places]
    line = tag("polyline", points=path, class_=_series(i), stroke_dasharray=_dash(i))
    return join(line if len(places) > 1 else None, *(dots if len(places) <= MOST_DOTS else []))


def _series(i: int) -> str:
    return "s{}".format(i % SERIES)


def _dash(i: int) -> Optional[str]:
    """Dashes, so that lines can be told apart without colour."""
    return _DASHES[(i // SERIES + i) % len(_DASHES)]


def _text(x: float, y: float, words: str, class_: str, anchor: Optional[str] = None) -> Markup:
    room = int(WIDTH / LETTER)
    short = textwrap.shorten(words, room, placeholder=" ...") if len(words) > room else words
    return tag("text", short, x=x, y=y, class_=class_, text_anchor=anchor)


def bars(title: str, rows: Sequence[Bar], identity: str, full: Optional[float]) -> Markup:
    """Horizontal bars of (name, value, text, colour). `full` is the value of the 100 % line."""
    height = 10.0 + BAR * len(rows) + (16 if full else 0)
    top = max([value for _, value, _, _ in rows] + [full or 0.0])
    along = Scale(0.0, top * 1.04 if top > 0 else 1.0, 0, WIDTH)
    drawn = [_bar(row, i, along) for i, row in enumerate(rows)]
    if full:
        drawn.append(_full_line(along(full), len(rows), height))
    told = "; ".join("{}: {}".format(name, words) for name, _, words, _ in rows)
    return _svg(height, identity, title, told, *drawn)


def _bar(row: Bar, i: int, along: Scale) -> Markup:
    name, value, words, colour = row
    y = 10.0 + i * BAR
    room = int((WIDTH - len(words) * LETTER) / LETTER) - 2
    short = textwrap.shorten(one_line(name), max(room, 8), placeholder=" ...")
    return join(
        _text(0, y + 12, short, "bar-name"),
        _text(WIDTH, y + 12, words, "bar-value", "end"),
        tag("rect", x=0, y=y + 19, width=WIDTH, height=12, rx=2, class_="track"),
        tag(
            "rect",
            x=0,
            y=y + 19,
            width=max(along(value), 0.0),
            height=12,
            rx=2,
            class_=_series(colour),
        ),
    )


def _full_line(x: float, count: int, height: float) -> Markup:
    """The 100 % line, drawn only over the bars, since their labels would cross it."""
    tops = [10.0 + i * BAR + 16 for i in range(count)]
    pieces = [tag("line", x1=x, x2=x, y1=y, y2=y + 18, class_="full") for y in tops]
    return join(*pieces, _text(_kept_in(x, "100 %"), height - 4, "100 %", "tick", "middle"))


def of_spec_rows(metrics: Sequence[MetricRow]) -> List[Bar]:
    """The rows of a chart of shares of the card's own figure."""
    known = [metric for metric in metrics if metric["spec"] and metric["of_spec"] is not None]
    return [
        (name, metric["of_spec"] or 0.0, _by_spec(metric), 0)
        for name, metric in zip(varying(known), known)
    ]


def _by_spec(metric: MetricRow) -> str:
    return "{}, {}".format(
        quantity(metric["value"], metric["unit"]), percent(metric["of_spec"] or 0.0)
    )
