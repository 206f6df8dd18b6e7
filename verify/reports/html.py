"""One self-contained HTML page: style and plots are inline, and there are no scripts.

The Content-Security-Policy forbids everything except inline style, so that text that got past the
escaping still could not load or run anything.
"""

from __future__ import annotations

import json
from typing import Dict, List, Optional, Sequence, Tuple

from verify.model.report import CheckRow, MetricRow, PlotRow, Report
from verify.reports import compare_text, formatting, style, svg, tables
from verify.reports.markup import Markup, escape, join, link, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
MOST_BARS = 32  # per chart; 8 GPUs with 6 types have more, and the table has all of them
VERDICTS = {
    "fit": ("Fit", "All required checks passed, and the GPU checks ran on a GPU."),
    "unfit": (
        "Unfit",
        "At least one check failed: this image does not work correctly on this machine.",
    ),
    "no-verdict": ("No verdict", "No check failed, but not all GPU checks ran on a GPU."),
}
# An image that was only read, not run, proves nothing about a machine, and the page says so.
READ = {
    "fit": ("Fit", "The inspection found no problem."),
    "unfit": ("Unfit", "The inspection found a problem: this image will not work correctly."),
    "no-verdict": (
        "No verdict",
        "No check failed, but the inspection could not read everything it needs.",
    ),
}
STATUS_ORDER = ("fail", "error", "skip", "pass")
MOST_PASSES = 8  # so many are shown, more are folded


def render(report: Report) -> str:
    """The page."""
    sections = [section for section in _sections(report) if section]
    body = join(
        tag("header", _banner(report), _facts(report)),
        _nav(sections),
        tag("main", *(part for _, _, part in sections)),
        tag("footer", tag("p", _provenance(report))),
    )
    page = tag("html", _head(report), tag("body", body), lang="en")
    return "<!doctype html>\n" + page + "\n"


def verdict_words(report: Report) -> Tuple[str, str]:
    """The verdict and its meaning, for a run on a machine or for an image that was only read."""
    only_read = all(str(check["id"]).startswith("inspect.") for check in report["checks"])
    word, said = (READ if only_read else VERDICTS)[report["verdict"]]
    cut = formatting.interruption(report)
    if cut:
        known = "No check had failed" if report["verdict"] == "no-verdict" else said.rstrip(".")
        said = "{}, and {}.".format(known, cut)
    return word, said


Section = Tuple[str, str, Markup]


def _sections(report: Report) -> List[Optional[Section]]:
    return [
        _section("trouble", "What failed", _troubles(report)),
        _section("comparison", "Compared with the baseline", _comparison(report)),
        _section("specification", "Compared with the GPU's specification", _of_spec(report)),
        _section("checks", "Checks", _checks(report)),
        _section("measured", "Measured", _measured(report)),
        _section("readings", "Other readings", _other_readings(report)),
        _section("environment", "Environment", [_environment(report)]),
    ]


def _section(identity: str, title: str, parts: Sequence[Markup]) -> Optional[Section]:
    if not parts:
        return None
    heading = tag("h2", title, id=identity + "-title")
    body = tag("section", heading, *parts, id=identity, aria_labelledby=identity + "-title")
    return identity, title, body


def _head(report: Report) -> Markup:
    title = "{}: {}".format(VERDICTS[report["verdict"]][0], _subject(report))
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style.sheet())),
    )


def _subject(report: Report) -> str:
    environment = report["environment"]
    where = formatting.gpu_names(environment) if environment["gpus"] else "a machine without a GPU"
    return formatting.one_line("{} on {}".format(formatting.framework_title(environment), where))


def _banner(report: Report) -> Markup:
    word, said = verdict_words(report)
    worse = report.get("comparison", {}).get("worse")
    return tag(
        "div",
        tag("p", _subject(report), class_="over quiet"),
        tag("h1", word),
        tag("p", said),
        tag("p", tag("strong", compare_text.result(report["comparison"]))) if worse else None,
        tag("p", _counts(report), class_="quiet"),
        class_="banner " + report["verdict"],
    )


def _counts(report: Report) -> str:
    names = {"pass": "passed", "fail": "failed", "error": "broke", "skip": "did not run"}
    states = [check["status"] for check in report["checks"]]
    on_cpu = sum(formatting.state(check) == "pass-on-cpu" for check in report["checks"])
    parts = ["{} {}".format(states.count(s), names[s]) for s in STATUS_ORDER if s in states]
    passed = ", ".join(parts) or "no check was requested"
    return passed + (" ({} of them only on the CPU)".format(on_cpu) if on_cpu else "") + "."


def _facts(report: Report) -> Markup:
    environment = report["environment"]
    driver = environment["driver"] or "not visible"
    if environment["cuda_driver"]:
        driver += " (up to CUDA {})".format(environment["cuda_driver"])
    seconds = sum(check["seconds"] for check in report["checks"])
    machine = environment.get("machine", {"name": None, "product": None})
    rows = [
        ("Machine", " \u00b7 ".join(filter(None, (machine["name"], machine["product"])))),
        ("Framework", formatting.framework_title(environment)),
        ("GPUs", formatting.gpu_names(environment)),
        ("Driver", driver),
        ("Python", environment["python"]),
        ("Level", report["level"]),
        ("Started", formatting.local_time(environment["started"])),
        ("Checks took", formatting.number(float(seconds)) + " s"),
        ("Image", environment["image"] and formatting.short_digest(environment["image"])),
    ]
    parts = [tag("div", tag("dt", name), tag("dd", text)) for name, text in rows if text]
    return tag("dl", *parts, class_="facts")


def _nav(sections: Sequence[Section]) -> Markup:
    items = [tag("li", link(identity, title)) for identity, title, _ in sections]
    return tag("nav", tag("ul", *items), aria_label="Sections")


def _provenance(report: Report) -> str:
    said = "Generated by verify, report schema {}. Numbers are rounded to 3 significant digits."
    return said.format(report["schema"])


def _troubles(report: Report) -> List[Markup]:
    return [_trouble(check, also) for check, also in formatting.troubles(report)]


def _trouble(check: CheckRow, also: Sequence[str]) -> Markup:
    rows = [("Cause", check["cause"]), ("Fix", check["fix"])]
    rows.append(("At fault", check.get("at_fault")))
    rows.append(("Also", ", ".join(also)))
    parts = [join(tag("dt", name), tag("dd", text)) for name, text in rows if text]
    return tag(
        "article",
        tag(
            "h3",
            _status(check),
            " ",
            _name(check),
            " ",
            tag("span", check["title"], class_="quiet"),
        ),
        tag("p", check["message"]),
        tag("dl", *parts),
        class_="card trouble " + check["status"],
    )


def _status(check: CheckRow) -> Markup:
    state = formatting.state(check)
    return tag("span", check["status"], class_="status " + state)


def _name(check: CheckRow) -> Markup:
    return tag("span", check["id"], class_="id name")


def _comparison(report: Report) -> List[Markup]:
    found = report.get("comparison")
    if not found:
        return []
    parts = [tag("p", compare_text.result(found))]
    if found["unlike"]:
        parts.append(tag("p", compare_text.unlike(found)))
    parts += _listed("Worse", compare_text.worse(found)) + _listed(
        "Better", compare_text.better(found)
    )
    parts += _listed("Changes in the environment", compare_text.around(found))
    parts += _listed("Not in both", compare_text.one_sided(found))
    tone = "worse" if found["worse"] else "unlike" if found["unlike"] else "pass"
    return [tag("div", *parts, class_="card trouble " + tone)]


def _listed(title: str, rows: Sequence[str]) -> List[Markup]:
    if not rows:
        return []
    return [tag("h3", title), tag("ul", *(tag("li", row) for row in rows), class_="told")]


def _checks(report: Report) -> List[Markup]:
    """What did not pass, then what did: folded, unless it is little."""
    checks = report["checks"]
    rows = [_check_row(check, i) for i, check in enumerate(checks)]
    passed = [row for row, check in zip(rows, checks) if check["status"] == "pass"]
    others = [row for row, check in zip(rows, checks) if check["status"] != "pass"]
    if len(passed) <= MOST_PASSES:
        return [_check_table(rows, "Checks")]
    summary = tag("summary", "{} passed".format(len(passed)))
    folded = tag("details", summary, _check_table(passed, "Checks that passed"), class_="card")
    return [*([_check_table(others, "Checks that did not pass")] if others else []), folded]


def _check_table(rows: Sequence[Markup], name: str) -> Markup:
    head = tables.header([("Status", ""), ("Check", ""), ("Seconds", "number")])
    table = tag("table", head, tag("tbody", *rows), class_="checks", aria_label=name)
    return tag("div", table, class_="card")


def _check_row(check: CheckRow, i: int) -> Markup:
    place = _place(check, i)
    name = link(place, check["id"]) if place else escape(check["id"])
    on_cpu = formatting.state(check) == "pass-on-cpu"
    return tag(
        "tr",
        tag("td", _status(check), tag("div", "on the CPU", class_="quiet") if on_cpu else None),
        tag(
            "th",
            tag("span", name, class_="id name"),
            " ",
            tag("span", check["title"], class_="title quiet"),
            tag("div", check["message"]),
            scope="row",
        ),
        tag("td", "{:.1f}".format(check["seconds"]), class_="number"),
    )


def _place(check: CheckRow, i: int) -> Optional[str]:
    """The page's anchor with more about the check, if there is one."""
    if formatting.metrics_of(check) or formatting.tables_of(check) or formatting.plots_of(check):
        return "check-{}".format(i + 1)
    return "readings-{}".format(i + 1) if formatting.other_readings(check) else None


def _of_spec(report: Report) -> List[Markup]:
    figures = []
    for i, check in enumerate(report["checks"]):
        rows = svg.of_spec_rows(formatting.metrics_of(check))
        if rows:
            names = sorted({m["name"] for m in formatting.metrics_of(check) if m["spec"]})
            title = ": ".join([check["id"], *names][: 2 if len(names) == 1 else 1])
            drawn = svg.bars(title, rows[:MOST_BARS], "spec-{}".format(i + 1), 1.0)
            figures.append(_figure(title, drawn, _left_out(len(rows))))
    told_ = "Each bar shows the measured value as a share of the GPU's specification (dashed line)."
    chart = tag("div", *figures, class_="bars")
    return [tag("div", tag("p", told_, class_="quiet"), chart, class_="card")] if figures else []


def _left_out(count: int) -> Optional[Markup]:
    if count <= MOST_BARS:
        return None
    return tag("p", "{} more are in the table below.".format(count - MOST_BARS), class_="quiet")


def _figure(title: str, *parts: Optional[Markup]) -> Markup:
    return tag("figure", tag("figcaption", title), *parts)


def _measured(report: Report) -> List[Markup]:
    return [part for i, check in enumerate(report["checks"]) for part in _drawn(check, i)]


def _drawn(check: CheckRow, i: int) -> List[Markup]:
    """A check's plots and tables, side by side if there is room."""
    parts = _device_bars(check, i) + _plots(check, i) + tables.metrics(check)
    parts += [tables.table(table) for table in formatting.tables_of(check)]
    if not parts:
        return []
    title = tag("h3", _name(check), " ", tag("span", check["title"], class_="quiet"))
    # The address is inside, so that a link to it unfolds it.
    body = tag("div", *parts, class_="parts", id="check-{}".format(i + 1))
    return [tag("details", tag("summary", title), body, class_="card measured")]


def _other_readings(report: Report) -> List[Markup]:
    """Readings without a plot or table, collapsed by default."""
    found = []
    for i, check in enumerate(report["checks"]):
        other = formatting.other_readings(check)
        if other:
            text = json.dumps(other, indent=2, ensure_ascii=False, sort_keys=True)
            summary = tag("summary", _name(check))
            lines = tag("pre", text, role="group", aria_label=check["id"], tabindex=0)
            place = "readings-{}".format(i + 1)
            found.append(tag("details", summary, lines, class_="raw", id=place))
    return [tag("div", *found, class_="card")] if found else []


def _plots(check: CheckRow, i: int) -> List[Markup]:
    found = []
    for number, plot in enumerate(formatting.plots_of(check)):
        identity = "plot-{}-{}".format(i + 1, number + 1)
        drawn = svg.lines(plot, identity)
        numbers = tag("details", tag("summary", "The numbers"), _points(plot))
        found.append(_figure(plot["title"], drawn, svg.legend(plot), numbers))
    return found


def _points(plot: PlotRow) -> Markup:
    """Every point of a plot as a table, one column per line."""
    lines = [{x: y for x, y in line["points"]} for line in plot["lines"]]  # noqa: C416  typed so
    rows = [
        [x, *(line.get(x) for line in lines)] for x in sorted({x for line in lines for x in line})
    ]
    columns = [plot["x"], *("{}, {}".format(line["name"], plot["y"]) for line in plot["lines"])]
    return tables.grid(plot["title"], columns, rows)


def device_groups(metrics: Sequence[MetricRow]) -> Dict[str, List[MetricRow]]:
    """Metrics that differ only in their label "device", by name: the CPU next to the GPU."""
    groups: Dict[str, List[MetricRow]] = {}
    for metric in metrics:
        if "device" in metric["labels"]:
            groups.setdefault(metric["name"], []).append(metric)
    return {
        name: rows
        for name, rows in groups.items()
        if len({row["labels"]["device"] for row in rows}) > 1
        and len({row["unit"] for row in rows}) == 1
    }


def _device_bars(check: CheckRow, i: int) -> List[Markup]:
    figures = []
    for turn, (name, metrics) in enumerate(device_groups(formatting.metrics_of(check)).items()):
        devices = sorted({metric["labels"]["device"] for metric in metrics})
        ordered = sorted(
            metrics, key=lambda m: (formatting.labels(_undeviced(m)), m["labels"]["device"])
        )
        shown = ordered[:MOST_BARS]
        rows = [_device_bar(*pair, devices) for pair in zip(formatting.varying(shown), shown)]
        better = "more" if metrics[0]["better"] == "higher" else "less"
        title = "{} by device ({} is better)".format(name, better)
        identity = "bars-{}-{}".format(i + 1, turn + 1)
        figures.append(
            _figure(title, svg.bars(title, rows, identity, None), _left_out(len(ordered)))
        )
    return figures


def _device_bar(name: str, metric: MetricRow, devices: Sequence[str]) -> svg.Bar:
    said = formatting.quantity(metric["value"], metric["unit"])
    return name, metric["value"], said, devices.index(metric["labels"]["device"])


def _undeviced(metric: MetricRow) -> Dict[str, str]:
    return {key: value for key, value in metric["labels"].items() if key != "device"}


def _environment(report: Report) -> Markup:
    rows = [[name, text] for name, text in formatting.flat(report["environment"]).items()]
    grid = tables.grid("Environment", ["Fact", "Value"], rows)
    return tag(
        "details", tag("summary", formatting.counted(len(rows), "fact")), grid, class_="card"
    )
