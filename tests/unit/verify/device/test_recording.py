"""Recording a machine's answers and giving them again, through the fake driver and without one."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT, fake_driver
from tests.unit.verify.device.test_state import HOST
from verify.checks import CHECKS
from verify.commands.main import main
from verify.device import driver, nvml, recording
from verify.device.kernel_log import Line, Log
from verify.device.machine import Machine
from verify.device.pci import PciGpu

UUID = "GPU-5a3c7f2e-1b2d-4c8f-9e0a-b1c2d3e4f5a6"
MIG = {
    "gpu.0.mig": 1,
    "gpu.0.mig_slots": 2,
    "gpu.0.mig.0.uuid": "MIG-5a3c7f2e-1b2d-4c8f-9e0a-b1c2d3e4f5a7",
    "gpu.0.mig.0.name": "NVIDIA H100 MIG 1g.10gb",
    "gpu.0.mig.0.memory": 10 << 30,
}


CARDS = (
    PciGpu("0000:17:00.0", "0x030200", "0x2330", "nvidia", 4, 5, 16, 16, 5, 16, ("0000:16:01.0",)),
    PciGpu("0000:65:00.0", "0x030200", "0x2330", "nvidia"),
)


class Fake(Machine):
    """A machine with the fake NVML, and a libcuda that cannot be loaded."""

    lines: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log(self) -> Log:
        return Log(tuple(map(Line, self.lines)), "/dev/kmsg")

    def load(self, name: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(self._folder / name))

    def pci(self) -> tuple[PciGpu, ...]:
        return CARDS

    def is_closed(self, gpu: PciGpu) -> bool:
        return gpu.address == "0000:65:00.0"

    def environ(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": UUID}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("fake"), switches=("ERROR_TEXTS",))


def recorded(machine: Machine) -> tuple[dict[str, Any], recording.Replay]:
    """The recording of a machine, and what a reader of its file gets."""
    document = recording.take(machine)
    return document, recording.parse(json.loads(recording.dump(document)))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="two sound GPUs"),
        pytest.param({"gpu.1.ecc.1.0": 7, "gpu.0.fabric": "1 0 0 0"}, id="two with faults"),
        pytest.param(MIG, id="one cut by MIG"),
        pytest.param({"error.nvmlDeviceGetHandleByIndex.1": 15}, id="one that is lost"),
        pytest.param({"error.nvmlInit": 18}, id="a driver of two versions"),
        pytest.param(dict.fromkeys(HOST) | {"count": 1}, id="a GPU that answers nothing"),
    ],
)
def test_a_replay_answers_as_the_machine_did(
    changes: dict[str, object | None],
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {**HOST, "gpu.0.uuid": UUID, **changes}
    kept = {key: value for key, value in settings.items() if value is not None}
    monkeypatch.setenv("FAKE_DRIVER", str(fake_driver.write_settings(tmp_path / "settings", kept)))
    machine = Fake(library)
    document, replay = recorded(machine)
    text = json.dumps(document)
    assert without_uuids(replay.state()) == without_uuids(machine.state())
    assert without_uuids(nvml.read(replay.load)) == without_uuids(nvml.read(machine.load))
    assert replay.pci() == (CARDS[0], dataclasses.replace(CARDS[1], closed=True))
    assert [replay.is_closed(gpu) for gpu in replay.pci() or ()] == [False, True]
    assert UUID not in text
    assert UUID.encode().hex() not in text
    assert driver.read(replay.load).found is False


def without_uuids(value: Any) -> str:
    text = json.dumps(dataclasses.asdict(value), sort_keys=True)
    return re.sub(r"(GPU|MIG)-[0-9a-f-]{36}", r"\1", text)


def test_what_names_one_machine_is_left_out(library: Path) -> None:
    machine = Fake(library)
    machine.lines = (
        "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=secret-model, Ch 00000010",
        "usb 1-1: SerialNumber: 4711-0815",
        f"NVRM: GPU {UUID} has fallen off the bus",
    )
    document = recording.take(machine)
    assert document["environ"] == {
        "CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"
    }
    assert [text for text, _ in document["log"]["lines"]] == [
        "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=..., Ch 00000010",
        "NVRM: GPU GPU-00000000-0000-0000-0000-000000000000 has fallen off the bus",
    ]


def test_a_recording_without_the_bus_leaves_it_unknown() -> None:
    older = {name: part for name, part in GOOD.items() if name != "pci"}
    assert recording.parse(older).pci() is None


def test_calls_that_were_not_recorded_are_functions_of_a_newer_driver(library: Path) -> None:
    replay = recorded(Fake(library))[1]
    session = nvml.Session(replay.load(nvml.LIBRARY))
    assert not session.has("nvmlDeviceGetNothing")
    assert session.call("nvmlDeviceGetNothing") == nvml.FUNCTION_NOT_FOUND


GOOD: dict[str, Any] = recording.take(Machine()) | {
    "log": {"lines": [], "source": "", "error": None}
}
CALL = ["nvmlInit_v2", [], 0, []]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param([], "not a recording", id="a list"),
        pytest.param({}, "not a recording", id="another object"),
        pytest.param({**GOOD, "schema": 2}, "schema 2, expected 1", id="a newer schema"),
        pytest.param({**GOOD, "nodes": None}, "damaged", id="no nodes"),
        pytest.param({**GOOD, "nodes": [1]}, "expected a text", id="a node that is a number"),
        pytest.param({**GOOD, "log": {"lines": [["x"]]}}, "damaged", id="half a line"),
        pytest.param({**GOOD, "pci": [{}]}, "damaged", id="a card without an address"),
        pytest.param({**GOOD, "pci": [{"address": 1}]}, "expected a text", id="a number of a card"),
        pytest.param(
            {**GOOD, "pci": [{"address": "0000:17:00.0", "width": [16]}]},
            "expected a number",
            id="a list of lanes",
        ),
        pytest.param(
            {**GOOD, "pci": [{"address": "0000:17:00.0", "ports": [1]}]},
            "expected a text",
            id="a port that is a number",
        ),
        pytest.param({**GOOD, "libraries": []}, "damaged", id="libraries that are a list"),
        *(
            pytest.param(
                {**GOOD, "libraries": {"libcuda.so.1": {"lacks": [], "calls": [call]}}},
                words,
                id=name,
            )
            for call, words, name in (
                (CALL[:3], "damaged", "a call without answers"),
                ([*CALL[:3], ["xyz"]], "damaged", "an answer that is not hex"),
                ([*CALL[:3], ["@x"]], "damaged", "a handle that is no number"),
                (["nvmlInit_v2", [], "0", []], "expected a number", "a code that is a text"),
            )
        ),
    ],
)
def test_a_damaged_recording_is_refused(document: Any, words: str) -> None:
    with pytest.raises(recording.RecordingError, match=words):
        recording.parse(document)


def verify(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT), "HOME": str(cwd), "PATH": ""}
    words = [sys.executable, "-m", "verify", *argv]
    return subprocess.run(
        words, cwd=cwd, env=env, check=False, capture_output=True, text=True, timeout=60
    )


def test_a_run_records_first_and_a_replay_checks_what_it_can(tmp_path: Path) -> None:
    done = verify("--record-device", "machine.json", "--only", "devices.nvml", cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    done = verify("--replay-device", "machine.json", "--json", cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    report = json.loads(done.stdout)
    replayed = {check.id for check in CHECKS["pytorch"] if check.replays}
    assert {row["id"] for row in report["checks"]} == replayed
    assert report["environment"]["replayed"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(["--replay-device", "nosuch.json"], "No such file", id="no such file"),
        pytest.param(["--replay-device", "text"], "not JSON", id="a text"),
        pytest.param(["--replay-device", "deep"], "not JSON", id="nested without end"),
        pytest.param(["--replay-device", "."], "Is a directory", id="a folder"),
        pytest.param(["--record-device", "nosuch/x"], "nosuch", id="a folder that is not there"),
    ],
)
def test_files_that_will_not_do_are_wrong_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    words: str,
) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "deep").write_text("[" * 100_000)
    monkeypatch.chdir(tmp_path)
    code = main(argv)
    said = capsys.readouterr().err
    assert (code, words in said, said.count("\n")) == (2, True, 1), said
