"""The types of a report and its schema are one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import ROOT
from verify.model import report

SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text(encoding="utf-8"))
DEFS = SCHEMA["$defs"]
COMPARED = DEFS["comparison"]["properties"]


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        pytest.param(SCHEMA, report.Report, id="the report"),
        pytest.param(DEFS["environment"], report.Environment, id="its environment"),
        pytest.param(
            DEFS["environment"]["properties"]["framework"], report.FrameworkRow, id="a framework"
        ),
        pytest.param(DEFS["gpu"], report.GpuRow, id="a GPU"),
        pytest.param(DEFS["check"], report.CheckRow, id="a check"),
        pytest.param(DEFS["metric"], report.MetricRow, id="a metric"),
        pytest.param(DEFS["table"], report.TableRow, id="a table"),
        pytest.param(DEFS["plot"], report.PlotRow, id="a plot"),
        pytest.param(DEFS["plot"]["properties"]["lines"]["items"], report.LineRow, id="a line"),
        pytest.param(DEFS["comparison"], report.ReportComparison, id="a comparison"),
        pytest.param(DEFS["run"], report.RunRow, id="a run"),
        pytest.param(COMPARED["environment"]["items"], report.ChangeRow, id="a changed fact"),
        pytest.param(COMPARED["checks"], report.MovedChecks, id="the checks of two runs"),
        pytest.param(COMPARED["metrics"], report.MovedMetrics, id="the metrics of two runs"),
        pytest.param(DEFS["moved_check"], report.MovedCheck, id="a moved check"),
        pytest.param(DEFS["metric_key"], report.MetricKey, id="a metric's key"),
        pytest.param(DEFS["moved_metric"], report.MovedMetric, id="a moved metric"),
    ],
)
def test_a_type_has_the_members_of_the_schema(rule: Any, kind: Any) -> None:
    assert kind.__required_keys__ == frozenset(rule["required"])
    assert kind.__required_keys__ | kind.__optional_keys__ == frozenset(rule["properties"])
