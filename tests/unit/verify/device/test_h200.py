"""A real H200: what its driver answered, and what the suite reported on it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from tests import DATA
from tests.kit import reports
from tests.kit.cases import cases
from verify.commands.main import main
from verify.device import recording

H200 = DATA / "verify" / "h200"
RECORDING: dict[str, Any] = json.loads((H200 / "machine.json").read_text(encoding="utf-8"))
REPORT: dict[str, Any] = json.loads((H200 / "standard.json").read_text(encoding="utf-8"))


def replayed(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The suite's report of a recorded machine."""
    machine, report = folder / "machine.json", folder / "report.json"
    machine.write_text(json.dumps(document), encoding="utf-8")
    words = ["--replay-device", str(machine), "--expect", str(H200 / "expect.json")]
    main([*words, "--report", str(report), "--json"])
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def test_a_sound_machine_is_fit(tmp_path: Path) -> None:
    report = replayed(RECORDING, tmp_path)
    rows = {row["id"]: row["status"] for row in report["checks"]}
    assert report["verdict"] == "fit"
    assert {name for name, status in rows.items() if status != "pass"} == {
        "health.nvlink",  # the virtual machine was given one GPU, without its links
        "devices.peers",
    }


def test_the_driver_states_its_limits() -> None:
    [gpu] = recording.parse(RECORDING).state().gpus
    assert (gpu.temperature_c, gpu.slowdown_margin_c) == (36, 53)  # T.Limit 51 C, slowdown at -2 C
    assert (gpu.pcie_generation, gpu.pcie_width) == (5, 16)
    assert (gpu.virtualization, gpu.nvlinks, gpu.persistence) == ("passthrough", (), True)
    assert gpu.memory_total_bytes == 143771 << 20


def answering(function: str, answers: list[str], returned: int = 0) -> dict[str, Any]:
    """The recording with another answer of one function."""
    document = copy.deepcopy(RECORDING)
    calls = document["libraries"]["libnvidia-ml.so.1"]["calls"]
    changed = [call for call in calls if call[0] == function]
    assert changed
    for call in changed:
        call[2:] = [returned, answers]
    return document


@cases(
    "function answers check",
    ("remap", "nvmlDeviceGetRemappedRows", ["", "", "", "01"], "health.memory"),
    ("compute prohibited", "nvmlDeviceGetComputeMode", ["02"], "health.mode"),
    ("three degrees too hot", "nvmlDeviceGetMarginTemperature", ["08000001fdffffff"],
     "health.temperature"),
    ("slowed down by heat", "nvmlDeviceGetCurrentClocksEventReasons", ["48"], "health.clocks"),
)  # fmt: skip
def test_a_fault_in_these_answers_is_found(
    tmp_path: Path, function: str, answers: list[str], check: str
) -> None:
    report = replayed(answering(function, answers), tmp_path)
    failed = [row["id"] for row in report["checks"] if row["status"] == "fail"]
    assert failed == [check]


def test_the_report_has_the_shape_and_the_verdict_that_it_claims() -> None:
    reports.REPORT.validate(REPORT)
    words = ["judge", str(H200 / "standard.json"), "--expect", str(H200 / "expect.json")]
    ran = [row["id"] for row in REPORT["checks"]]  # the suite has newer checks, too
    assert main([*words, "--level", "standard", "--only", ",".join(ran)]) == 0


def test_speeds_are_steady_and_within_their_class() -> None:
    rows = {row["id"]: row for row in REPORT["checks"]}
    for check in ("speed.gemm", "speed.memory"):
        for metric in rows[check]["measured"]["metrics"]:
            assert metric["spread"] < 0.15, metric
            assert metric["of_spec"] is None or 0.6 < metric["of_spec"] < 1, metric


def test_the_errors_leave_room_to_their_tolerance() -> None:
    """Tolerances that were derived, beside what an H200 computes: none above a third of them."""
    rows = [
        (row["id"], *line)
        for row in REPORT["checks"]
        for table in row["measured"].get("tables", ())
        if "allowed" in table["columns"]
        for line in table["rows"]
    ]
    assert len(rows) > 40
    assert [row for row in rows if row[3] > row[4] / 3] == []
