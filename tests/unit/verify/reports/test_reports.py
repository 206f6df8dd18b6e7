"""The reports that others read: each is read back here by a reader that is not ours."""

from __future__ import annotations

import copy
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from markdown_it import MarkdownIt
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.cases import cases
from tests.kit.reports import DATA, HOSTILE, NAMES, REPORT, SCHEMA, TEXTS, hostile, made_up, reports
from verify.commands import render
from verify.commands.main import main
from verify.commands.usage import columns, write_whole
from verify.model.check import UsageError
from verify.reports import (
    axes,
    compare,
    formatting,
    html,
    junit,
    markdown,
    prometheus,
    shape,
    style,
    svg,
    verdict,
)
from verify.reports.report import dump, table

FORMATS = {
    "junit": junit,
    "html": html,
    "markdown": markdown,
    "prometheus": prometheus,
    "verdict": verdict,
}
FEW = settings(max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))


def every_report() -> Iterator[Any]:
    for name in NAMES:
        yield pytest.param(made_up(name), id=name)
    yield pytest.param(hostile(), id="hostile")
    compared = made_up("unfit")
    compared["comparison"] = compare.compare(made_up("fit"), compared)
    yield pytest.param(compared, id="compared")
    empty = made_up("no-verdict")
    empty["checks"] = []
    yield pytest.param(empty, id="without a check")


EVERY = list(every_report())


@pytest.mark.parametrize("report", EVERY)
def test_the_samples_are_reports(report: Any) -> None:
    REPORT.validate(report)


# --- the shape


KNOWN = {*shape._KEYWORDS, *shape.IGNORED}


def keywords(rule: Any) -> Iterator[str]:
    """Every keyword of a schema, down to its leaves."""
    for name, value in rule.items():
        yield name
        if name in ("properties", "$defs"):
            for inner in value.values():
                yield from keywords(inner)
        elif isinstance(value, dict) and name != "const":
            yield from keywords(value)


def test_no_keyword_of_the_schema_is_left_unread() -> None:
    assert set(keywords(SCHEMA)) <= KNOWN


def open_schema(rule: Any) -> Any:
    """The schema without its bans of further names."""
    if isinstance(rule, dict):
        kept = {k: open_schema(v) for k, v in rule.items()}
        return {k: v for k, v in kept.items() if not (k == "additionalProperties" and v is False)}
    return [open_schema(one) for one in rule] if isinstance(rule, list) else rule


PEER = jsonschema.Draft202012Validator(open_schema(SCHEMA))
WRONG = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.0, 1.5, "", "x", "pass", "fit", [], {}, [1], {"a": 1}, "2026"]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in inner:
        yield from places(part, (*path, key))


COMPARED = EVERY[4].values[0]
PLACES = [path for path in places(COMPARED) if path]


@settings(FEW, max_examples=250)
@given(path=st.sampled_from(PLACES), wrong=WRONG, delete=st.booleans())
def test_the_shape_is_judged_as_a_json_schema_library_judges_it(
    path: tuple[Any, ...], wrong: Any, *, delete: bool
) -> None:
    report = copy.deepcopy(COMPARED)
    spot: Any = report
    for key in path[:-1]:
        spot = spot[key]
    if delete:
        del spot[path[-1]]
    else:
        spot[path[-1]] = wrong
    assert (next(shape.problems(report, SCHEMA), None) is None) is PEER.is_valid(report)


@cases(
    "text word",
    ("nothing", b"", "not JSON"),
    ("no UTF-8", b"\xff\xfe{}", "not JSON"),
    ("cut short", b'{"schema": 1, "verd', "not JSON, or cut short"),
    ("a list", b"[]", "expected object, found array"),
    ("a number", b"7", "found number"),
    ("empty", b"{}", "schema, verdict, level, environment, checks is missing"),
    ("NaN", b'{"schema": NaN}', "not a finite number"),
    ("too large for a double", b'{"schema": 1e999}', "not a finite number"),
    ("a tower of brackets", b"[" * 100_000, "nested too deeply"),
    ("foreign", b'{"version": 1, "results": []}', "not a report of verify"),
)
def test_what_is_no_report_is_refused(text: bytes, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        shape.parse(text, "r.json")
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_later_schema_is_refused_and_a_further_name_is_not() -> None:
    report = made_up("fit")
    report["environment"]["rack"] = "B7"
    report["checks"][0]["tags"] = ["new"]
    assert shape.parse(json.dumps(report).encode(), "r") == report
    report["schema"] = 2
    with pytest.raises(UsageError, match="schema: expected 1, found 2"):
        shape.parse(json.dumps(report).encode(), "r")


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(UsageError, match="the limit for a report"):
        shape.read("/dev/zero")


# --- every format


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("report", EVERY)
def test_the_same_report_gives_the_same_text(report: Any, name: str) -> None:
    again = json.loads(json.dumps(report))
    before = copy.deepcopy(report)
    assert FORMATS[name].render(report) == FORMATS[name].render(again)
    assert report == before


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("report", EVERY)
def test_every_check_is_in_every_format(report: Any, name: str) -> None:
    text = FORMATS[name].render(report).replace("\\", "")
    assert all(check["id"] in text for check in report["checks"])


@FEW
@given(reports())
def test_any_report_can_be_rendered(report: Any) -> None:
    PEER.validate(report)
    families(report)
    report["comparison"] = compare.compare(made_up("fit"), report)
    PEER.validate(report)
    for module in FORMATS.values():
        module.render(report).encode()
    wide = [line for line in table(report).splitlines() if len(line) > 80]
    assert [line for line in wide if max(map(len, line.split())) < 40] == []  # words are whole


# --- JUnit


def suite(report: Any) -> Any:
    (found,) = JUnitXml.fromstring(junit.render(report).encode())
    assert isinstance(found, TestSuite)
    return found


@pytest.mark.parametrize("report", EVERY)
def test_a_junit_reader_counts_as_we_do(report: Any) -> None:
    found = suite(report)
    statuses = Counter(check["status"] for check in report["checks"])
    regressions = int(report.get("comparison", {}).get("worse", False))
    assert found.tests == len(report["checks"]) + ("comparison" in report)
    assert found.failures == statuses["fail"] + regressions
    assert (found.errors, found.skipped) == (statuses["error"], statuses["skip"])
    found.update_statistics()
    assert found.tests == len(report["checks"]) + ("comparison" in report)
    assert found.failures == statuses["fail"] + regressions


def test_a_failure_says_what_is_at_fault() -> None:
    report = made_up("unfit")
    for check in report["checks"]:
        if check["status"] == "fail":
            check["at_fault"] = "configuration"
    shown = {"table": table(report), **{name: FORMATS[name].render(report) for name in FORMATS}}
    lacking = [name for name, text in shown.items() if "configuration" not in text]
    assert lacking == ["prometheus"], "which has numbers"


def test_a_failure_has_its_cause_and_its_fix() -> None:
    report = made_up("unfit")
    cases = {case.name: case for case in suite(report)}
    assert isinstance(cases["libraries.cudnn"], TestCase)
    for check in report["checks"]:
        case = cases[check["id"]]
        assert case.classname == check["id"].split(".")[0]
        assert case.time == pytest.approx(check["seconds"], abs=1e-3)
        kinds = {"fail": [Failure], "error": [Error], "skip": [Skipped], "pass": []}
        assert [type(one) for one in case.result] == kinds[check["status"]]
        for one in case.result:
            assert one.message == check["message"]
            assert all(text in one.text for text in (check["cause"], check["fix"]) if text)


def test_the_suite_has_the_environment_as_properties() -> None:
    found = {one.name: one.value for one in suite(made_up("fit")).properties()}
    assert found["verdict"] == "fit"
    assert found["driver"] == "570.124.06"
    assert found["gpus.1.name"] == "NVIDIA H100 80GB HBM3"


def test_a_regression_is_a_failed_case_of_its_own() -> None:
    case = next(case for case in suite(COMPARED) if case.classname == "baseline")
    (failure,) = case.result
    assert isinstance(failure, Failure)
    assert "gemm (dtype bf16, gpu 1)" in failure.text


# What junit-10.xsd of Jenkins's xUnit plug-in lets an element have: attributes, then children.
JUNIT_SHAPE = {
    "testsuites": ("name time tests failures errors", "testsuite"),
    "testsuite": (
        "name tests failures errors group time skipped timestamp hostname id package file log url",
        "testsuite properties testcase system-out system-err",
    ),
    "properties": ("", "property"),
    "property": ("name value", ""),
    "testcase": ("name time classname group", "skipped error failure system-out system-err"),
    "failure": ("type message", ""),
    "error": ("type message", ""),
    "skipped": ("type message", ""),
    "system-out": ("", ""),
}


@pytest.mark.parametrize("report", EVERY)
def test_junit_has_no_more_than_jenkins_schema_allows(report: Any) -> None:
    for element in ET.fromstring(junit.render(report)).iter():
        attributes, children = JUNIT_SHAPE[element.tag]
        assert set(element.attrib) <= set(attributes.split())
        assert {child.tag for child in element} <= set(children.split())


XML_TEXT = re.compile("[\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


@FEW
@given(TEXTS | st.text(st.characters(), max_size=50))
def test_any_text_is_well_formed_xml(text: str) -> None:
    report = made_up("unfit")
    for check in report["checks"]:
        check["message"] = check["cause"] = text or "-"
    root = ET.fromstring(junit.render(report))
    said = next(root.iter("failure")).text or ""
    assert formatting.clean(text).strip() in said
    assert XML_TEXT.fullmatch(said)


def test_a_megabyte_of_output_is_cut_in_the_middle() -> None:
    report = made_up("unfit")
    report["checks"][0]["measured"]["output"] = "first " + "]]>\x00" * 300_000 + " last"
    text = junit.render(report)
    case = next(iter(suite(report)))
    assert len(text) < 400_000
    assert "characters left out" in case.system_out
    assert "first " in case.system_out
    assert " last" in case.system_out


# --- Markdown


class Cells(HTMLParser):
    """The cells of the tables, and every element and link, as a browser would have them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.elements: Counter[str] = Counter()
        self._open = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002
        self.elements[tag] += 1
        if tag == "tr":
            self.rows.append([])
        self._open = tag in ("td", "th") or (self._open and tag not in ("tr", "p", "h3"))
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data


def cells(text: str) -> Cells:
    """What a CommonMark reader with GitHub's tables makes of it, HTML let through."""
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    found = Cells()
    found.feed(reader.render(text))
    return found


PLAIN = {"h2", "h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "em"}


@pytest.mark.parametrize("report", EVERY)
def test_markdown_says_what_the_report_says(report: Any) -> None:
    found = cells(markdown.render(report))
    assert set(found.elements) <= PLAIN
    shown = {row[1]: row for row in found.rows if len(row) == 4}
    for check in report["checks"]:
        row = shown[check["id"]]
        assert check["status"] in row[0]
        assert row[2] == formatting.one_line(check["message"])


@FEW
@given(TEXTS | st.text(max_size=60))
def test_any_text_is_one_cell_of_markdown(text: str) -> None:
    page = "| a | b |\n| --- | --- |\n| " + markdown.escape(text) + " | end |\n"
    found = cells(page)
    assert set(found.elements) <= PLAIN
    assert [cell.strip() for cell in found.rows[1]] == [formatting.one_line(text), "end"]


@FEW
@given(
    TEXTS
    | st.text(max_size=40)
    | st.from_regex(r"[0-9]*[-#+=>~*_`|.):!\[<&\\]{1,6} ?[a-z]{0,2}", fullmatch=True)
)
def test_any_text_is_one_item_of_a_list(text: str) -> None:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for lead, names in (("- ", {"ul", "li"}), ("", {"p"})):
        found = Page(reader.render(lead + markdown.escape(text) + "\n"))
        assert {name for name, _ in found.elements} <= names
        assert found.text.strip() == formatting.one_line(text)


def test_github_finds_no_formula_and_nobody_to_notify() -> None:
    assert not set("$@<") & set(markdown.escape("$x$ @octocat <b>").replace("&#", ""))


@pytest.mark.parametrize("count", [1, 250])
def test_a_summary_is_cut_below_githubs_limit(count: int) -> None:
    report = made_up("fit")
    report["checks"] *= count
    text = markdown.render(report)
    assert len(text.encode()) <= markdown.LIMIT_BYTES < 1024 * 1024
    assert ("Truncated" in text) is (count > 1)
    assert {len(row) for row in cells(markdown.cut(text, 50_000)).rows} <= {3, 4, 5}


def test_failures_come_before_the_checks() -> None:
    text = markdown.render(made_up("unfit"))
    assert text.index("What failed") < text.index("Cause:") < text.index("Fix:")
    assert text.index("Fix:") < text.index("### Checks") < text.index("### Measured")


# --- HTML


class Page(HTMLParser):
    """Elements with their attributes, and whether each is closed where it should be."""

    VOID = ("meta", "br", "col")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.mark.parametrize("report", EVERY)
def test_the_page_holds_no_script_and_asks_for_nothing(report: Any) -> None:
    page = Page(html.render(report))
    names = {name for name, _ in page.elements}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    policies = [a["content"] for _, a in page.elements if a.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not re.search(r"url\(|@import", style.sheet())


@pytest.mark.parametrize("report", EVERY)
def test_links_and_labels_lead_somewhere(report: Any) -> None:
    page = Page(html.render(report))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        targets = [
            (attributes.get("href") or "#")[1:],
            *(attributes.get("aria-labelledby") or "").split(),
        ]
        assert {target for target in targets if target} <= set(ids)


@pytest.mark.parametrize("report", EVERY)
def test_the_page_says_all_that_failed(report: Any) -> None:
    text = " ".join(Page(html.render(report)).text.split())
    for check in report["checks"]:
        for said in (check["message"], check["cause"], check["fix"]):
            assert " ".join(formatting.clean(said or "").split()) in text


@pytest.mark.parametrize("colours", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_text_and_lines_stand_out(colours: dict[str, str]) -> None:
    for ground in ("page", "card"):
        for ink in ("text", "quiet", "link", "good", "bad", "open"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for line in style.SERIES:
            assert contrast(colours[line], colours[ground]) >= 3.0, (line, ground)
    for tone, ground in (("good", "good-soft"), ("bad", "bad-soft"), ("open", "open-soft")):
        assert contrast(colours[tone], colours[ground]) >= 4.5
        assert contrast(colours["quiet"], colours[ground]) >= 4.5
    assert contrast(colours["quiet"], colours["track"]) >= 4.5
    assert set(colours) == set(style.LIGHT)


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# --- plots

NUMBERS = re.compile(r'\b(?:x|y|x1|x2|y1|y2|cx|cy|width|height)="([^"]*)"')


def drawn_within(text: str, height: float) -> None:
    for element in ET.fromstring(text).iter():
        for name in ("x", "x1", "x2", "cx", "width"):
            if name in element.attrib:
                assert -0.1 <= float(element.attrib[name]) <= svg.WIDTH + 0.1
        for name in ("y", "y1", "y2", "cy"):
            if name in element.attrib:
                assert -0.1 <= float(element.attrib[name]) <= height + 0.1
        for pair in element.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= svg.WIDTH
            assert 0 <= y <= height


EDGES = st.sampled_from([0.0, 5e-324, -5e-324, 1e308, -1e308, 1.0, 1e-9, 1e15, 3, 2**40])
COORDINATES = EDGES | st.floats(allow_nan=False, allow_infinity=False)


@settings(FEW, max_examples=300)
@given(
    lines=st.lists(
        st.lists(st.tuples(COORDINATES, COORDINATES), max_size=5), min_size=1, max_size=3
    ),
    log=st.booleans(),
)
def test_lines_stay_on_the_paper(lines: list[list[tuple[float, float]]], *, log: bool) -> None:
    rows = [{"name": str(i), "points": points} for i, points in enumerate(lines)]
    plot: Any = {"title": "T", "x": "size (bytes)", "y": "GB/s", "log_x": log, "lines": rows}
    text = svg.lines(plot, "p")
    if any(lines):
        drawn_within(text, svg.HEIGHT)
        assert text.count("<circle") == sum(map(len, lines))
    else:
        assert "No data" in text


@FEW
@given(
    st.lists(st.tuples(TEXTS, COORDINATES, st.just("1"), st.integers(0, 7)), min_size=1, max_size=5)
)
def test_bars_stay_on_the_paper(rows: list[Any]) -> None:
    drawn_within(svg.bars("T", rows, "b", 1.0), 26.0 + svg.BAR * len(rows))


@cases(
    "low high expected",
    ("the unit", 0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ("workers", 0, 52, ["0", "10", "20", "30", "40", "50"]),
    ("k", 0, 12_100, ["0", "2,000", "4,000", "6,000", "8,000", "10,000", "12,000"]),
    ("around zero", -3, 3, ["-3", "-2", "-1", "0", "1", "2", "3"]),
)
def test_ticks_are_round(low: float, high: float, expected: list[str]) -> None:
    assert [word for _, word in axes.ticks(low, high)] == expected


def test_what_is_counted_has_no_half_ticks() -> None:
    assert [word for _, word in axes.ticks(0, 2, whole=True)] == ["0", "1", "2"]


def test_a_dense_line_has_no_dots() -> None:
    points = [[float(x), 1.0] for x in range(100)]
    rows = [{"name": "host", "points": points}]
    plot: Any = {"title": "T", "x": "step", "y": "MB", "log_x": False, "lines": rows}
    text = svg.lines(plot, "p")
    assert "<circle" not in text
    assert len(text.split('points="')[1].split('"')[0].split()) == 100


@cases(
    "low high binary expected",
    ("messages", 8, 2**28, True, ["32 B", "1 KiB", "32 KiB", "1 MiB", "32 MiB"]),
    ("decades", 1, 1e4, False, ["1", "10", "100", "1,000", "10,000"]),
    ("small decades", 1e-9, 1e-6, False, ["1e-9", "1e-8", "1e-7", "1e-6"]),
    ("a short range", 1024, 4096, True, ["1 KiB", "2 KiB", "4 KiB"]),
)
def test_logarithmic_ticks(low: float, high: float, *, binary: bool, expected: list[str]) -> None:
    assert [word for _, word in axes.log_ticks(low, high, binary=binary)] == expected


# --- numbers


@cases(
    "value expected",
    ("zero", 0.0, "0"),
    ("a count is exact", 4096, "4,096"),
    ("a large count is exact", 2**40, "1,099,511,627,776"),
    ("thousands", 1234.5, "1,230"),
    ("up to the next power", 99.95, "100"),
    ("below it", 99.94, "99.9"),
    ("small", 0.00012345, "0.000123"),
    ("very small", 1.2345e-9, "1.23e-09"),
    ("negative", -7.456, "-7.46"),
    ("huge", 1.5e300, "1.5e+300"),
    ("no zeros that were not measured", 0.1, "0.1"),
)
def test_numbers_are_rounded_to_three_digits(value: float, expected: str) -> None:
    assert formatting.number(value) == expected


@FEW
@given(st.floats(-1e308, 1e308))
def test_a_rounded_number_is_near(value: float) -> None:
    assert float(formatting.number(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@cases(
    "value unit expected",
    ("milliseconds", 0.00183, "s", "1.83 ms"),
    ("nanoseconds", 3.1e-7, "s", "310 ns"),
    ("seconds", 75.0, "s", "75 s"),
    ("bytes in powers of ten", 8.59e9, "bytes", "8.59 GB"),
    ("nothing", 0, "bytes", "0 bytes"),
    ("a rate stays as it is", 751.3, "TFLOP/s", "751 TFLOP/s"),
)
def test_quantities(value: float, unit: str, expected: str) -> None:
    assert formatting.quantity(value, unit) == expected


def test_a_bar_says_what_tells_it_from_the_others() -> None:
    rows: Any = [{"name": "bus", "labels": {"bytes": str(2**28), "op": op}} for op in ("a", "b")]
    assert formatting.varying(rows) == ["op a", "op b"]
    assert formatting.varying(rows[:1]) == ["bus (256 MiB, op a)"]


# --- Prometheus


def families(report: Any) -> dict[str, Metric]:
    text = prometheus.render(report)
    found = list(text_string_to_metric_families(text))
    names = [family.name for family in found]
    assert len(names) == len(set(names)), "a family in two pieces"
    assert all(family.documentation and family.type == "gauge" for family in found)
    series = [line.rsplit(" ", 1)[0] for line in text.split("\n")[:-1] if line[0] != "#"]
    assert len(series) == len(set(series)), "a series twice"
    assert all(sample.timestamp is None for family in found for sample in family.samples)
    return {family.name: family for family in found}


def value(family: Metric, **labels: str) -> float:
    (found,) = [s.value for s in family.samples if labels.items() <= s.labels.items()]
    return float(found)


@pytest.mark.parametrize("report", EVERY)
def test_prometheus_reads_it(report: Any) -> None:
    found = families(report)
    for check in report["checks"]:
        for status in ("pass", "fail", "skip", "error"):
            told = value(found["gpu_provision_check_status"], check=check["id"], status=status)
            assert told == (status == check["status"])
    assert value(found["gpu_provision_verdict"], verdict=report["verdict"]) == 1


def test_metrics_are_in_base_units() -> None:
    found = families(made_up("fit"))
    metric = found["gpu_provision_metric"]
    report = made_up("fit")
    by = {
        (row["name"], *sorted(row["labels"].values())): row["value"]
        for check in report["checks"]
        for row in check["measured"].get("metrics", [])
    }
    gemm = value(metric, name="gemm", dtype="bf16", gpu="0", unit="flops_per_second")
    assert gemm == pytest.approx(by["gemm", "0", "bf16"] * 1e12)
    copy_ = value(metric, name="memory_copy", gpu="1", unit="bytes_per_second")
    assert copy_ == pytest.approx(by["memory_copy", "1"] * 1e9)
    step = value(metric, name="train_step", net="large_net", device="cuda", unit="seconds")
    assert step == by["train_step", "cuda", "large_net"]
    spec = found["gpu_provision_metric_specification"]
    assert value(spec, name="gemm", dtype="bf16", gpu="0") == 990e12
    assert value(found["gpu_provision_report_timestamp_seconds"]) == 1790922600
    assert value(found["gpu_provision_check_proven"], check="libraries.vision") == 0


@cases(
    "unit expected",
    ("GB/s", "GB/s", ("bytes_per_second", 1e9)),
    ("TFLOP/s", "TFLOP/s", ("flops_per_second", 1e12)),
    ("samples/s", "samples/s", ("samples_per_second", 1.0)),
    ("ms", "ms", ("seconds", 1e-3)),
    ("s", "s", ("seconds", 1.0)),
    ("bytes", "bytes", ("bytes", 1.0)),
    ("percent", "%", ("ratio", 0.01)),
    ("MHz", "MHz", ("hertz", 1e6)),
    ("unknown", "tokens/s/GPU", ("tokens_per_s_GPU", 1.0)),
    ("no word", "!", ("none", 1.0)),
)
def test_base_units(unit: str, expected: tuple[str, float]) -> None:
    assert prometheus.base_unit(unit) == expected


def test_a_metrics_labels_do_not_take_ours() -> None:
    report = made_up("fit")
    row = report["checks"][-2]["measured"]["metrics"][0]
    row["labels"] = {"check": "a", "unit": "b", "__name__": "c", "1st": "d", "a-b": "e", "a_b": "f"}
    labels = next(
        sample.labels
        for sample in families(report)["gpu_provision_metric"].samples
        if "label_check" in sample.labels
    )
    assert labels["check"] == report["checks"][-2]["id"]
    assert {"a", "b", "c", "d", "e", "f"} <= set(labels.values())


# --- the commands


def files(folder: Path) -> list[str]:
    names = {"junit": "j.xml", "html": "p.html", "markdown": "s.md", "prometheus": "m.prom"}
    names["verdict"] = "v.json"
    return [word for name, file in names.items() for word in (f"--{name}", str(folder / file))]


def test_render_writes_the_files(tmp_path: Path) -> None:
    source = DATA / "made-up-unfit.json"
    baseline = DATA / "made-up-fit.json"
    assert main(["render", str(source), *files(tmp_path), "--baseline", str(baseline)]) == 0
    report = made_up("unfit")
    report["comparison"] = compare.compare(made_up("fit"), report)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert written == {
        "j.xml": junit.render(report),
        "p.html": html.render(report),
        "s.md": markdown.render(report),
        "m.prom": prometheus.render(report),
        "v.json": verdict.render(report),
    }


def test_render_without_a_file_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    source = DATA / "made-up-fit.json"
    assert main(["render", str(source)]) == 0
    assert capsys.readouterr().out == table(json.loads(source.read_text()))


@cases(
    "words_ said",
    ("no such report", ["/nonexistent", "--html", "OUT"], "No such file"),
    ("a foreign file", ["/etc/passwd", "--html", "OUT"], "not JSON"),
    ("an unwritable folder", ["SOURCE", "--html", "/proc/p.html"], "--html"),
    ("one file twice", ["SOURCE", "--html", "OUT", "--junit", "OUT"], "same file"),
    ("no name", ["SOURCE", "--html"], "expected one argument"),
    ("no report", [], "required: REPORT"),
    ("base", ["SOURCE", "--html", "OUT", "--baseline", "/etc/passwd"], "not JSON"),
)
def test_render_refuses_in_one_sentence(
    words_: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places_ = {"SOURCE": str(DATA / "made-up-fit.json"), "OUT": str(tmp_path / "out")}
    assert main(["render", *(places_.get(word, word) for word in words_)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(str(path), "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.prom"]


def test_one_unwritable_file_does_not_lose_the_others(tmp_path: Path) -> None:
    wanted = {"html": "/proc/p.html", "markdown": str(tmp_path / "s.md")}
    problems = render.write_all(wanted, made_up("fit"))
    assert len(problems) == 1
    assert problems[0].startswith("--html /proc/p.html: ")
    assert (tmp_path / "s.md").exists()


# --- the page for people


@cases(
    "width most",
    ("never narrower than its columns", 60, 80),
    ("a file", 80, 80),
    ("a wide terminal", 120, 120),
)
def test_the_page_is_as_wide_as_asked(width: int, most: int) -> None:
    lines = table(COMPARED, width).splitlines()
    assert most - 20 < max(map(len, lines)) <= most


@cases(
    "is_terminal wide found",
    ("a terminal", True, "100", 100),
    ("a narrow one", True, "60", 80),
    ("longer lines are hard to read", True, "300", 120),
    ("a file is the same everywhere", False, "100", 80),
)
def test_standard_output_decides_the_width(
    *, is_terminal: bool, wide: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", wide)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    assert columns() == found


def test_the_page_is_short_with_many_checks() -> None:
    report = made_up("unfit")
    lines = table(report).splitlines()
    rows = [line for line in lines if re.match(r"(PASS|FAIL|SKIP|ERROR) {2,3}\S+ {2,}\S", line)]
    assert len(rows) == len(report["checks"])  # a line each
    assert any(line.startswith("No: PyTorch ") for line in lines)
    assert "(unfit, exit code 1)" in table(report)
    assert "cause: another cuDNN stands earlier on LD_LIBRARY_PATH:" in table(report)
    assert table(report).count("hang; the last words") == 1
    assert "also:  parallel.ddp" in table(report)


def test_the_page_names_the_slowest_gpu_by_its_specification() -> None:
    lines = table(made_up("unfit")).splitlines()
    row = next(line for line in lines if "dtype bf16, lowest of 2" in line)
    assert row.split()[-4:] == ["329", "TFLOP/s", "33.2", "%"]


def test_a_worse_machine_is_named_beside_the_verdict() -> None:
    report = made_up("fit")
    report["comparison"] = {**COMPARED["comparison"], "worse": True}
    assert "checks, worse than the baseline" in " ".join(table(report).split())
    assert "(fit, exit code 1)" in table(report)


def test_the_json_holds_no_half_pair() -> None:
    report = made_up("fit")
    report["checks"][0]["message"] = "a name \udcff that is no UTF-8"
    assert "a name \ufffd that" in json.loads(dump(report).encode())["checks"][0]["message"]


@pytest.mark.parametrize("text", HOSTILE)
def test_clean_text_can_be_written_anywhere(text: str) -> None:
    assert XML_TEXT.fullmatch(formatting.clean(text))
    assert "\x1b" not in formatting.clean(text)


@pytest.mark.parametrize("moment", ["2026-99-99T99:99:99Z", "0000-01-01T00:00:00Z"])
def test_a_day_that_does_not_exist_is_shown_as_it_is(moment: str) -> None:
    assert formatting.local_time(moment) == moment


@cases(
    "zone shown",
    ("in UTC", "UTC", "2026-11-26 23:19 UTC"),
    ("east of it, on the next day", "XYZ-8", "2026-11-27 07:19 UTC+0800"),
)
def test_a_time_is_that_of_the_machine_that_renders_it(
    zone: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        assert formatting.local_time("2026-11-26T23:19:10Z") == shown
    time.tzset()
