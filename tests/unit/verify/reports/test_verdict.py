"""The verdict on the node in the form of NVIDIA Health Validation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit import schemas
from tests.kit.cases import cases
from tests.kit.reports import DATA, HOSTILE, NAMES, hostile, made_up
from verify.device import driver_errors
from verify.reports import compare, verdict
from verify.reports.verdict import category, entities, node_verdict, severity, steps, worst

RESET = "end what runs on the GPU and reset it (nvidia-smi --gpu-reset -i 1), or reboot the host"


def row(status: str, at_fault: str | None = None, check: str = "health.memory", **more: Any) -> Any:
    """A row of a report."""
    read = {"device": "cpu"} if status == "pass-on-cpu" else {}
    found = {
        "id": check,
        "title": "Memory has no errors",
        "status": status.partition("-")[0],
        "seconds": 0.1,
        "message": "GPU 1: a row waits",
        "cause": None if status.startswith(("pass", "skip")) else "it is worn",
        "fix": None,
        "measured": read,
        "expected": {},
    }
    return {**found, **({"at_fault": at_fault} if at_fault else {}), **more}


def report(*rows: Any, **more: Any) -> Any:
    """A report of two GPUs with these rows."""
    return {**made_up("unfit"), "checks": [*rows], **more}


@cases(
    "check run decided expected",
    ("a pass", row("pass"), "fit", None, "PASS"),
    ("a pass of an unfit run", row("pass"), "unfit", "node", "PASS"),
    ("a pass on the CPU proves nothing", row("pass-on-cpu"), "unfit", "image", "INFO"),
    ("a pass on the CPU where a GPU had to", row("pass-on-cpu"), "no-verdict", None, "UNKNOWN"),
    ("a skip that the verdict does not need", row("skip"), "fit", None, "INFO"),
    ("a skip that leaves no verdict", row("skip"), "no-verdict", None, "UNKNOWN"),
    ("the node", row("fail", "node"), "unfit", "node", "CRITICAL"),
    ("a check that broke on a lost GPU", row("error", "node"), "unfit", "node", "CRITICAL"),
    ("the image", row("fail", "image"), "unfit", "image", "WARNING"),
    ("the configuration", row("fail", "configuration"), "unfit", "configuration", "WARNING"),
    ("nobody knows", row("fail", "unknown"), "unfit", "unknown", "UNKNOWN"),
    ("a check that broke", row("error", "unknown"), "unfit", "unknown", "UNKNOWN"),
    ("wrong results of a broken image", row("fail", "node"), "unfit", "image", "WARNING"),
    ("a hang with a broken image", row("error", "unknown"), "unfit", "image", "WARNING"),
    ("a hang with a broken node", row("error", "unknown"), "unfit", "node", "UNKNOWN"),
    ("of an earlier version", row("fail"), "unfit", "node", "CRITICAL"),
)
def test_the_severity_of_a_check(check: Any, run: str, decided: str | None, expected: str) -> None:
    assert severity(check, run, decided) == expected


@cases(
    "found expected",
    ("a fit node", report(row("pass"), verdict="fit"), "PASS"),
    ("a part that did not run", report(row("pass"), row("skip"), verdict="fit"), "INFO"),
    ("a part that was asked for", report(row("pass"), verdict="fit", only="health"), "INFO"),
    ("nothing ran", report(verdict="no-verdict"), "UNKNOWN"),
    ("nothing ran on a GPU", report(row("pass"), row("skip"), verdict="no-verdict"), "UNKNOWN"),
    ("unfit without a reason", report(row("pass"), verdict="unfit"), "WARNING"),
    ("fit, it says, with a failure", report(row("fail", "node"), verdict="fit"), "CRITICAL"),
    (
        "the driver's word counts before the image",
        report(row("fail", "node"), row("fail", "image", "libraries.cudnn"), verdict="unfit"),
        "CRITICAL",
    ),
    (
        "the image counts before a wrong result",
        report(
            row("fail", "node", "numerics.matmul", message="wrong", cause="wrong"),
            row("fail", "image", "libraries.cudnn", message="old", cause="old"),
            verdict="unfit",
        ),
        "WARNING",
    ),
)
def test_the_severity_of_the_node(found: Any, expected: str) -> None:
    assert node_verdict(found)["overall_severity"] == expected


def test_the_gravest_severity_counts() -> None:
    order = ["PASS", "INFO", "WARNING", "UNKNOWN", "CRITICAL"]
    assert [worst(order[: n + 1]) for n in range(5)] == order


def test_a_machine_that_got_worse_is_a_warning() -> None:
    found = made_up("fit")
    found["comparison"] = compare.compare(made_up("fit"), made_up("unfit"))
    shown = node_verdict(found)
    assert shown["overall_severity"] == "WARNING"
    assert "libraries.cudnn" in shown["check_verdicts"][-1]["message"]
    found["comparison"] = compare.compare(made_up("fit"), made_up("fit"))
    assert node_verdict(found)["check_verdicts"][-1]["severity"] == "PASS"


@cases(
    "check expected",
    ("a check with a category of its own", "health.log", "xid"),
    ("one of a family", "health.temperature", "gpu"),
    ("the links", "health.nvlink", "nvlink"),
    ("an inventory", "devices.count", "node"),
    ("a library", "libraries.cudnn", "node"),
)
def test_the_category_of_a_check(check: str, expected: str) -> None:
    assert category(check) == expected


@cases(
    "fix expected",
    ("none", None, []),
    ("a reset or a reboot", RESET, ["reset_gpu", "restart_os"]),
    ("a reboot or a reset", "reboot the host, or reset the GPUs", ["restart_os", "reset_gpu"]),
    ("a virtual machine", "restart the virtual machine that has the GPU", ["restart_os"]),
    ("clocks are no GPU", "run nvidia-smi -rac and nvidia-smi -rgc to reset the clocks", []),
    ("a program is no host", "restart the application", []),
    ("replaced", "have it replaced", ["service_required"]),
    ("replace", "test it, or replace it", ["service_required"]),
    ("a replaced library is found by its word", "look at replacement rows", []),
    ("repaired", "have it repaired", ["service_required"]),
    ("its vendor", "have the GPU examined by its vendor", ["service_required"]),
    ("reseat", "reseat the card; check the riser", ["service_required"]),
    ("its seat", "check its seat", ["service_required"]),
    ("power cables", "check its power cables", ["service_required"]),
    ("power supplies", "look at the power supplies", ["service_required"]),
    ("heat", "clean the card's heatsink", ["service_required"]),
    ("a bridge", "check bridge, cable and switch", ["service_required"]),
    ("bridges", "check NVLink bridges", ["service_required"]),
    ("taken out", "take it out of the machine", ["service_required"]),
    ("out of use", "take the GPU out of use", ["service_required"]),
    ("tested", "have its memory and CPUs tested", ["service_required"]),
    ("a service", "start nvidia-fabricmanager on the host", []),
)
def test_the_steps_of_a_fix(fix: str | None, expected: list[str]) -> None:
    assert steps(fix) == expected


def test_each_action_of_the_kernel_log_has_a_step_or_restarts_a_service() -> None:
    actions = driver_errors.knowledge()["actions"].values()
    without = [row["step"] for row in actions if row["faulty"] and not steps(row["step"])]
    assert all(step.startswith("restart nvidia-imex") for step in without)


FIRST, SECOND = (gpu["uuid"] for gpu in made_up("fit")["environment"]["gpus"])


@cases(
    "check message expected",
    ("NVML names a GPU", "health.memory", "GPU 1: a row waits", [SECOND]),
    ("a range", "health.memory", "GPU 0-1: a row waits", [FIRST, SECOND]),
    ("a list", "health.memory", "GPU 0, 1: a row waits", [FIRST, SECOND]),
    ("two findings", "health.clocks", "GPU 1: slow; GPU 0: slow", [SECOND, FIRST]),
    ("a time is no GPU", "health.log", "GPU 0, 1 min ago: Xid 48", [FIRST]),
    ("an address", "devices.nvml", "1 of 2 GPUs: GPU 1 (0000:b3:00.0): lost", [SECOND]),
    ("a twin is well", "speed.gemm", "GPU 1: 3 TFLOP/s, GPU 0 of the same model: 9", ["GPU 1"]),
    ("CUDA's numbers may be others", "numerics.matmul", "GPU 1, fp8: wrong", ["GPU 1"]),
    ("a number of GPUs", "devices.count", "2 GPUs visible, 8 expected", []),
    ("one that is not listed", "health.log", "GPU 7: Xid 79", []),
    ("a range without an end", "health.log", "GPU 0-999: Xid 79", [FIRST, SECOND]),
)
def test_the_gpus_that_a_message_is_about(check: str, message: str, expected: list[str]) -> None:
    found = row("fail", "node", check, message=message)
    assert entities(found, made_up("fit")["environment"]["gpus"]) == expected


def test_a_gpu_without_a_uuid_has_its_number() -> None:
    gpus: Any = [{"name": None, "uuid": None, "compute_capability": None, "mig": None}]
    assert entities(row("fail", "node", message="GPU 0: lost"), gpus) == ["GPU 0"]


def test_only_a_fault_of_the_node_asks_for_an_action() -> None:
    found = report(
        row("fail", "node", fix=RESET),
        row("fail", "configuration", "loading.shm", fix="reboot"),
        row("pass", check="health.log"),
    )
    shown = [check["recommended_action"] for check in node_verdict(found)["check_verdicts"]]
    drain = {"operational_state": "drain", "steps": ["reset_gpu", "restart_os"]}
    assert shown == [drain, None, None]


def every_report() -> list[Any]:
    compared = made_up("unfit")
    compared["comparison"] = compare.compare(made_up("fit"), compared)
    return [*map(made_up, NAMES), hostile(), compared, report(verdict="no-verdict")]


@pytest.mark.parametrize("found", every_report())
def test_it_is_as_its_schema_says_and_no_skip_passes(found: Any) -> None:
    shown = json.loads(verdict.render(found))
    assert schemas.problems("verdict", shown) == []
    passed = {check["check_id"] for check in shown["check_verdicts"] if check["severity"] == "PASS"}
    ran = {check["id"] for check in found["checks"] if check["status"] == "pass"}
    assert passed <= ran | {"baseline.comparison"}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    bad = row("fail", "node", title=text, message=text, cause=text, fix=text)
    shown = verdict.render(report(bad))
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert schemas.problems("verdict", json.loads(shown)) == []
    (check,) = json.loads(shown)["check_verdicts"]
    assert check["recommended_action"] == {"operational_state": "drain", "steps": []}


def test_the_sample() -> None:
    found = report(
        row("pass", check="devices.nvml", message="2 GPUs", title="NVML lists the GPUs"),
        row("fail", "node", cause="it is repaired at a reset", fix=RESET),
        row("skip", check="libraries.vision", title="Its operators", message="not installed"),
        verdict="unfit",
    )
    assert json.loads(verdict.render(found)) == json.loads(
        (DATA.parent / "verdict.json").read_text()
    )
