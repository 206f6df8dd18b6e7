"""The types of a report and its schema are one."""

from __future__ import annotations

import json
from typing import Any

from tests import ROOT
from tests.kit.cases import cases
from verify.model import report

SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text(encoding="utf-8"))
DEFS = SCHEMA["$defs"]
COMPARED = DEFS["comparison"]["properties"]


@cases(
    "rule kind",
    ("the report", SCHEMA, report.Report),
    ("its environment", DEFS["environment"], report.Environment),
    ("a framework", DEFS["environment"]["properties"]["framework"], report.FrameworkRow),
    ("a GPU", DEFS["gpu"], report.GpuRow),
    ("a check", DEFS["check"], report.CheckRow),
    ("a metric", DEFS["metric"], report.MetricRow),
    ("a table", DEFS["table"], report.TableRow),
    ("a plot", DEFS["plot"], report.PlotRow),
    ("a line", DEFS["plot"]["properties"]["lines"]["items"], report.LineRow),
    ("a comparison", DEFS["comparison"], report.ReportComparison),
    ("a run", DEFS["run"], report.RunRow),
    ("a changed fact", COMPARED["environment"]["items"], report.ChangeRow),
    ("the checks of two runs", COMPARED["checks"], report.MovedChecks),
    ("the metrics of two runs", COMPARED["metrics"], report.MovedMetrics),
    ("a moved check", DEFS["moved_check"], report.MovedCheck),
    ("a metric's key", DEFS["metric_key"], report.MetricKey),
    ("a moved metric", DEFS["moved_metric"], report.MovedMetric),
)
def test_a_type_has_the_members_of_the_schema(rule: Any, kind: Any) -> None:
    assert kind.__required_keys__ == frozenset(rule["required"])
    assert kind.__required_keys__ | kind.__optional_keys__ == frozenset(rule["properties"])
