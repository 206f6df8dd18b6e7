"""Recorded machines: none that runs to its owner's content is unfit, known faults are named."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from bench import recorded
from bench.recorded_machines import Recorded
from bench.recorded_rates import judge_rate
from verify.checks.devices.inventory import judge_nvml
from verify.device import nvml, recording
from verify.device.machine import Machine
from verify.model.check import Status

MACHINES = json.loads((recorded.DATA / "machines.json").read_text())
HEALTHY = [record for record in MACHINES if record["owner_verdict"] == "healthy"]


def test_machines_are_judged_as_their_owners_do() -> None:
    figures = recorded.Figures()
    lines = list(recorded.machines(MACHINES, figures))
    assert figures.vouched_unfit == [], lines
    assert figures.no_complaint_unfit == figures.left_out == [], lines
    assert figures.faults_named == figures.faults_visible > 8, lines


def _all(record: dict[str, Any], **facts: Any) -> None:
    for gpu in record["gpus"]:
        for path, value in facts.items():
            place = gpu
            *outer, name = path.split("__")
            for key in outer:
                place = place.setdefault(key, {})
                assert isinstance(place, dict)
            place[name] = value


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "lost": (lambda r: r["gpus"][-1].update(state="GPU is lost"), "devices.nvml"),
    "reset required": (lambda r: r["gpus"][0].update(state="GPU requires reset"), "devices.nvml"),
    "asks for a reset": (lambda r: _all(r, recovery_action="GPU Reset"), "health.mode"),
    "a remap failed": (
        lambda r: _all(r, remapped_rows={"pending": "No", "failure": "Yes"}),
        "health.memory",
    ),
    "a double-bit error": (
        lambda r: _all(r, ecc={"volatile": {"double_bit_total": 3}}, remapped_rows="N/A"),
        "health.memory",
    ),
    "too many SRAM errors": (
        lambda r: _all(
            r,
            ecc={"aggregate": {"sram_threshold_exceeded": "Yes"}},
            remapped_rows={"pending": "No", "failure": "No"},
        ),
        "health.memory",
    ),
    "60 retired pages": (
        lambda r: _all(
            r,
            ecc={"volatile": {"double_bit_total": 0}},
            retired_pages={"double_bit_ecc": 60, "single_bit_ecc": 0},
        ),
        "health.memory",
    ),
    "compute mode prohibited": (lambda r: _all(r, compute_mode="Prohibited"), "health.mode"),
    "the fabric did not start": (
        lambda r: _all(r, fabric={"state": "Not Started"}),
        "health.fabric",
    ),
    "the fabric is unhealthy": (
        lambda r: _all(r, fabric={"state": "Completed", "summary": "Unhealthy"}),
        "health.fabric",
    ),
    "too hot": (lambda r: _all(r, temperature={"gpu": 99, "slowdown": 95}), "health.temperature"),
    "a power brake": (
        lambda r: _all(r, throttle={"hw_slowdown": True, "hw_power_brake_slowdown": True}),
        "health.clocks",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_into_any_healthy_machine_is_named(fault: str) -> None:
    seed, check = FAULTS[fault]
    missed = []
    for record in HEALTHY:
        laptop = any("Laptop" in gpu["name"] for gpu in record["gpus"])
        if laptop and check in ("health.clocks", "health.temperature"):
            continue  # a laptop keeps to its limits so
        sick = copy.deepcopy(record)
        seed(sick)
        if check not in {one.check for one in recorded.failures(sick)}:
            missed.append(record["id"])
    assert missed == []


def test_a_gpu_that_nvml_leaves_out_is_named_on_every_machine() -> None:
    missed = []
    for record in HEALTHY:
        machine = Recorded(record)
        seen, cards = _nvml(machine), machine.pci()
        fewer = dataclasses.replace(seen, gpus=seen.gpus[:-1])
        outcome = judge_nvml(fewer, len(machine.nodes()), None, pci=cards)
        if fewer.gpus and not (cards[-1].address in outcome.message and outcome.at_fault == "node"):
            missed.append(record["id"])
        assert judge_nvml(seen, len(machine.nodes()), None, pci=cards).status is Status.PASS
    assert missed == []


def test_a_sensor_that_one_gpu_cannot_read_is_named_beside_its_twins() -> None:
    named = []
    for record in HEALTHY:
        *others, last = record["gpus"]
        known = [
            gpu
            for gpu in others
            if isinstance(gpu.get("temperature", {}).get("gpu"), int)
            and gpu["name"] == last["name"]
            and (gpu.get("mig_current") == "Enabled") == (last.get("mig_current") == "Enabled")
        ]
        sick = copy.deepcopy(record)
        sick["gpus"][-1].setdefault("temperature", {})["gpu"] = "Unknown Error"
        checks = {one.check for one in recorded.failures(sick)}
        assert ("devices.nvml" in checks) == bool(known), record["id"]
        named += [record["id"]] if known else []
    assert len(named) > 20


def test_one_gpu_without_nvlinks_among_others_is_named_on_every_board() -> None:
    names = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200")
    capability = {"A": "8.0", "H": "9.0", "B": "10.0"}
    for name in names:
        gpus = [
            {"index": i, "name": name, "compute_capability": capability[name.split()[1][0]]}
            for i in range(8)
        ]
        gpus[5]["nvlink"] = "all links inactive (NVML says so)"
        found = recorded.failures({"id": name, "gpus": gpus})
        assert [one.check for one in found] == ["health.nvlink"], name
        assert "GPU 5" in found[0].message


def test_every_machine_answers_the_same_from_its_recording() -> None:
    different = []
    for record in MACHINES:
        machine: Machine = Recorded(record)
        document = json.loads(recording.dump(recording.take(machine)))
        replay = recording.parse(document)
        pairs = ((machine.state(), replay.state()), (_nvml(machine), _nvml(replay)))
        if any(_text(one) != _text(other) for one, other in pairs):
            different.append(record["id"])
    assert different == []


def _nvml(machine: Machine) -> nvml.Nvml:
    return nvml.read(machine.load)


def _text(value: Any) -> str:
    return re.sub(r"(GPU|MIG)-[0-9a-f-]{36}", r"\1", json.dumps(dataclasses.asdict(value)))


ODD: dict[str, tuple[dict[str, Any], str, str]] = {
    "a throttle reason that no driver has": (
        {"throttle": {"invalid_hw_slowdown": False}},
        "health.clocks",
        "NVML refuses",
    ),
    "CUDA's error in words": (
        {"cuda": "system not yet initialized (802)"},
        "devices.count",
        "CUDA cannot use any: Error 802",
    ),
    "CUDA's error without a number": ({"cuda": "no answer"}, "devices.count", "Error 999"),
    "a list of processes that is none": ({"processes": 7}, "devices.count", "1 GPU"),
    "links of another form": ({"nvlink": [7]}, "devices.count", "1 GPU"),
    "unknown links": ({"nvlink": "Unknown Error"}, "devices.count", "1 GPU"),
    "links without a state": ({"nvlink": [{"link": 0}]}, "devices.count", "1 GPU"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_value_is_unknown_and_its_record_is_judged(odd: str) -> None:
    facts, check, word = ODD[odd]
    gpu = {"index": 0, "name": "NVIDIA T1000", "compute_capability": "7.5", **facts}
    said = {one.check: one.message for one in recorded.answers({"id": odd, "gpus": [gpu]})}
    assert word in said[check]


@pytest.mark.parametrize(
    ("fault", "said", "named"),
    [
        pytest.param("row remap pending", "a row waits for remapping", True, id="reported"),
        pytest.param("row remap pending", "no uncorrected errors", False, id="not reported"),
        pytest.param("NVLink down", "a row waits for remapping", False, id="of another kind"),
    ],
)
def test_what_a_check_reports_names_a_fault_too(fault: str, said: str, named: bool) -> None:  # noqa: FBT001
    assert recorded._named(fault, [recorded.Answer("health.memory", said, failed=False)]) is named


def test_a_record_without_gpus_is_left_out_and_counted() -> None:
    figures = recorded.Figures()
    lines = list(recorded.machines([{"id": "m1", "gpus": "none"}], figures))
    assert (figures.left_out, len(lines)) == (["m1"], 1)


def alike(count: int, name: str, capability: str, **facts: Any) -> list[dict[str, Any]]:
    """Equal GPUs with these facts."""
    one = {"name": name, "compute_capability": capability, **facts}
    return [{"index": index, **one} for index in range(count)]


def links(*off: int, of: int) -> list[dict[str, Any]]:
    return [{"link": i, "state": "inactive" if i in off else "25.781 GB/s"} for i in range(of)]


def last(gpus: list[dict[str, Any]], **facts: Any) -> list[dict[str, Any]]:
    """The last GPU is another: these are its facts."""
    return [*gpus[:-1], {**gpus[-1], **facts}]


BRAKE = {"gpu_idle": True, "hw_slowdown": True, "hw_power_brake_slowdown": True}
V100 = alike(8, "Tesla V100-SXM2-32GB", "7.0", virtualization="Pass-Through", nvlink=links(of=6))
RIG = alike(6, "NVIDIA GeForce GTX 1080 Ti", "6.1", fan_speed=70, pcie={"width": {"current": 1}})
# After public reports; each with its source, its GPUs, and the checks that must fail.
REPORTED: dict[str, tuple[str, list[dict[str, Any]], list[str]]] = {
    "a bridge that wires twelve of eighteen links": (
        "github.com/Azure/azurehpc-health-checks/issues/162",
        alike(2, "NVIDIA H100 NVL", "9.0", nvlink=links(4, 5, 10, 11, 16, 17, of=18)),
        [],
    ),
    "a card that could have a bridge": (
        "github.com/NVIDIA/NVSentinel/pull/1481",
        alike(1, "NVIDIA A100 80GB PCIe", "8.0", nvlink=links(*range(12), of=12)),
        [],
    ),
    "WSL2, which reports little": (
        "github.com/dask/distributed/issues/5342",
        alike(2, "Quadro RTX 8000", "7.5", utilisation={"gpu": "N/A"}, temperature={"gpu": 61}),
        [],
    ),
    "a GPU inside the processor": (
        "github.com/rbonghi/jetson_stats/issues/885",
        alike(1, "NVIDIA Thor", "11.0", utilisation={"gpu": 0}),
        [],
    ),
    "a mining rig": ("github.com/tutulino/Megaminer/issues/376", RIG, []),
    "a mining rig with a broken fan": (
        "github.com/tutulino/Megaminer/issues/376",
        last(RIG, fan_speed="Unknown Error"),
        ["devices.nvml"],
    ),
    "two of eight links lost in a virtual machine": (
        "github.com/Azure/azhpc-diagnostics/issues/73",
        last(V100, nvlink=links(3, 5, of=6)),
        ["health.nvlink"],
    ),
    "a fabric without resources for a rack's GPUs": (
        "github.com/Azure/azhpc-images/pull/506",
        alike(4, "NVIDIA GB200", "10.0", fabric={"state": "Completed", "status": "Insufficient"}),
        ["health.fabric"],
    ),
    "a power brake on an idle GPU": (
        "github.com/NVIDIA/NVSentinel/issues/1666",
        last(alike(4, "NVIDIA GB200", "10.0"), throttle=BRAKE),
        ["health.clocks"],
    ),
    "a GPU that does not answer": (
        "github.com/akash-network/support/issues/209",
        last(alike(8, "NVIDIA A100-SXM4-80GB", "8.0"), state="Unknown Error"),
        ["devices.nvml", "devices.count"],
    ),
}


@pytest.mark.parametrize(("gpus", "failing"), [row[1:] for row in REPORTED.values()], ids=REPORTED)
def test_machines_of_public_reports(gpus: list[dict[str, Any]], failing: list[str]) -> None:
    found = recorded.failures({"id": "reported", "gpus": gpus})
    assert [one.check for one in found] == failing, found


RATES = json.loads((recorded.DATA / "rates.json").read_text())


def test_no_healthy_rate_fails_and_no_bad_one_passes() -> None:
    figures = recorded.Figures()
    lines = list(recorded.rates(RATES, figures))
    assert figures.healthy_rates_failed == [], lines
    one_lane = "r514"  # of a slot or a riser that has no more, which is no fault
    passed = [line for line in lines if "yet passed" in line and not line.startswith(one_lane)]
    assert passed == [], lines


def test_a_fifth_of_a_healthy_rate_fails_wherever_a_figure_applies() -> None:
    """The judges let nothing pass that they know a figure for; a ring over PCIe has the lowest."""
    let_pass = []
    for row in RATES:
        status, words = judge_rate(row)
        share = re.search(r"\((\d+) %\)| of [\d.]+ GB/s", words)
        if (
            status != "pass"
            or not share
            or re.search("uncertain|no specification|through the host", words)
        ):
            continue
        if judge_rate({**row, "value": row["value"] / 5})[0] != "fail":
            let_pass.append(row["id"])
    assert let_pass == []


TEXTS = json.loads((recorded.DATA / "texts.json").read_text())


def test_no_ordinary_text_is_taken_for_a_hardware_fault() -> None:
    figures = recorded.Figures()
    lines = list(recorded.texts(TEXTS, figures))
    assert figures.texts_as_faults == [], lines
