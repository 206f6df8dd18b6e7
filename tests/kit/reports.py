"""Reports for the tests of the renderers: those of the files, and any that the schema allows."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import strategies as st

from tests import ROOT
from verify.model.check import FAULTS
from verify.reports import shape

# Made once: `jsonschema.validate` examines the schema itself in every call, for 30 ms.
SCHEMA = shape.schema()
REPORT = jsonschema.Draft202012Validator(SCHEMA)
CHECK = jsonschema.Draft202012Validator({"$ref": "#/$defs/check", "$defs": SCHEMA["$defs"]})
COMPARISON = jsonschema.Draft202012Validator(
    {"$ref": "#/$defs/comparison", "$defs": SCHEMA["$defs"]}
)

DATA = ROOT / "tests" / "data" / "verify" / "reports"
NAMES = ("fit", "unfit", "no-verdict")
HOSTILE = (
    "<script>document.title='owned'</script>",
    "</style><script>alert(1)</script>",
    "</title><img src=x onerror=\"document.title='owned'\">",
    '"><svg onload="document.title=\'owned\'">',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "<!-- --> ]]> <![CDATA[ &lt; &amp; &#0;",
    "| a | b |\n|---|---|\n```\n# heading",
    "[x](javascript:alert(1)) ![y](http://192.0.2.1/z.png) <http://192.0.2.1/>",
    "\x00\x01\x1b[31mred\x1b[0m\x7f\ud800\uffff\r\n\u2028\u202e tail",
    "\U0001f600 \u00e9 \u4e2d\u6587 \u200b",
    '\\" \\n {label="x"} # HELP nothing\n# TYPE',
    "x" * 300,
)


def made_up(name: str) -> Any:
    """One of the files."""
    report = json.loads((DATA / f"made-up-{name}.json").read_text(encoding="utf-8"))
    assert isinstance(report, dict)
    return report


def hostile() -> Any:
    """A report whose every text wants out of its place; its ids are those of the schema."""
    report = made_up("unfit")
    texts = [0]

    def next_text() -> str:
        texts[0] += 1
        return HOSTILE[texts[0] % len(HOSTILE)]

    for check in report["checks"]:
        check["title"] = next_text()
        check["message"] = next_text()
        if check["cause"] is not None:
            check["cause"], check["fix"] = next_text(), next_text()
        check["measured"]["output"] = next_text()
        check["expected"] = {next_text(): next_text()}
        for metric in check["measured"].get("metrics", []):
            metric["labels"] = {
                next_text(): next_text(),
                "device": metric["labels"].get("device", ""),
            }
            metric["unit"] = next_text()
        for table in check["measured"].get("tables", []):
            table["title"] = next_text()
            table["columns"] = [next_text() for _ in table["columns"]]
            table["rows"].append([next_text() for _ in table["columns"]])
        for plot in check["measured"].get("plots", []):
            plot["title"], plot["x"], plot["y"] = next_text(), next_text(), next_text()
            for line in plot["lines"]:
                line["name"] = next_text()
    environment = report["environment"]
    for name in ("image", "kernel", "arch", "glibc", "container", "visible_devices", "driver"):
        environment[name] = next_text()
    environment["framework"]["version"] = next_text()
    for gpu in environment["gpus"]:
        gpu["name"] = next_text()
    return report


FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=20) | st.sampled_from(HOSTILE)
SAID = TEXTS.filter(bool)
NAME = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
LABELS = st.dictionaries(
    TEXTS | st.sampled_from(["gpu", "device", "check", "bytes"]), TEXTS, max_size=3
)
UNITS = st.sampled_from(["s", "bytes", "GB/s", "TFLOP/s", "x", "%", "samples/s"]) | SAID
METRICS = st.fixed_dictionaries(
    {
        "name": NAME,
        "value": FINITE,
        "unit": UNITS,
        "better": st.sampled_from(["higher", "lower"]),
        "repeats": st.integers(1, 30),
        "spread": st.floats(0, 1e3),
        "labels": LABELS,
        "spec": st.none() | st.floats(1e-3, 1e6),
        "of_spec": st.floats(-10, 1e6),
    }
).map(lambda row: {**row, "of_spec": None if row["spec"] is None else row["of_spec"]})
CELLS = st.none() | TEXTS | FINITE | st.integers(-(10**20), 10**20)
TABLES = st.fixed_dictionaries(
    {
        "title": SAID,
        "columns": st.lists(TEXTS, min_size=1, max_size=4),
        "rows": st.lists(st.lists(CELLS, max_size=5), max_size=4),
    }
)
NUMBERS = FINITE | st.integers(-100, 100)
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS).map(list), max_size=6)
LINES = st.fixed_dictionaries({"name": TEXTS, "points": POINTS})
PLOTS = st.fixed_dictionaries(
    {
        "title": SAID,
        "x": TEXTS | st.just("size (bytes)"),
        "y": TEXTS,
        "log_x": st.booleans(),
        "lines": st.lists(LINES, min_size=1, max_size=10),
    }
)


@st.composite
def checks(draw: st.DrawFn, identity: str) -> Any:
    status = draw(st.sampled_from(["pass", "fail", "skip", "error"]))
    measured: Any = draw(st.sampled_from([{}, {"device": "cpu"}, {"device": "cuda"}]))
    measured = dict(measured)
    for kind, rows in (("metrics", METRICS), ("tables", TABLES), ("plots", PLOTS)):
        if found := draw(st.lists(rows, max_size=3)):
            measured[kind] = found
    cause = draw(SAID) if status in ("fail", "error") else None
    whose = draw(st.sampled_from([None, *FAULTS])) if cause else None
    return {
        "id": identity,
        "title": draw(SAID),
        "status": status,
        "seconds": draw(st.floats(0, 1e4)),
        "message": draw(SAID),
        "cause": cause,
        "fix": None if cause is None else draw(st.none() | SAID),
        "measured": {**measured, **draw(st.dictionaries(st.sampled_from(["output", "n"]), TEXTS))},
        "expected": draw(st.dictionaries(TEXTS, TEXTS, max_size=1)),
        **({"at_fault": whose} if whose else {}),
    }


@st.composite
def reports(draw: st.DrawFn) -> Any:
    """Any report that the schema allows, and some that only a broken suite would write."""
    ids = draw(st.lists(st.sampled_from([f"{a}.{b}" for a in "abc" for b in "def"]), max_size=5))
    base = made_up(draw(st.sampled_from(NAMES)))
    base["verdict"] = draw(st.sampled_from(NAMES))
    base["level"] = draw(st.sampled_from(["quick", "standard", "full"]))
    base["environment"]["driver"] = draw(st.none() | SAID)
    base["checks"] = [draw(checks(identity)) for identity in ids]
    return base
