"""The suite on a real GPU: the essential checks prove, and bad settings are told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.programs import run_program

ROOT = Path(__file__).parents[2]
LIMIT_S = 1500

pytestmark = pytest.mark.gpu


def verify(*words: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Run the suite; its exit code and its report."""
    done = run_program(
        [sys.executable, "-m", "verify", *words, "--json"],
        cwd=ROOT,
        env={**os.environ, **variables},
        timeout=LIMIT_S,
    )
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def told(report: dict[str, Any]) -> str:
    """What went wrong, for the reader of a failed test."""
    rows = [row for row in report["checks"] if row["status"] in {"fail", "error"}]
    return "\n".join(f"{r['id']}: {r['message']} | {r['cause']} | {r['fix']}" for r in rows)


@pytest.fixture(scope="session")
def whole(gpus: list[str]) -> tuple[int, dict[str, Any]]:
    """One run at level standard, which several tests read."""
    del gpus
    return verify("--level", "standard")


def test_the_machine_is_fit(whole: tuple[int, dict[str, Any]]) -> None:
    code, report = whole
    assert report["verdict"] == "fit", told(report)
    assert code == 0


ON_THE_GPU = ("devices", "numerics", "speed", "training")


def test_what_belongs_on_the_gpu_ran_there(whole: tuple[int, dict[str, Any]]) -> None:
    _, report = whole
    rows = [row for row in report["checks"] if row["id"].split(".")[0] in ON_THE_GPU]
    assert not [row["id"] for row in rows if row["measured"].get("device") == "cpu"]


def test_every_gpu_is_counted_and_named(gpus: list[str], whole: tuple[int, dict[str, Any]]) -> None:
    _, report = whole
    rows = {row["id"]: row for row in report["checks"]}
    assert rows["devices.count"]["measured"]["driver"] == len(gpus)
    assert rows["devices.kernel"]["status"] == "pass"
    assert {gpu["name"] for gpu in report["environment"]["gpus"]} >= {
        name for name in gpus if "MIG" not in name
    }


def test_speeds_are_measured_and_steady(whole: tuple[int, dict[str, Any]]) -> None:
    _, report = whole
    rows = {row["id"]: row for row in report["checks"]}
    names = {
        metric["name"]
        for check in ("speed.gemm", "speed.memory", "speed.copies", "speed.training")
        for metric in rows[check]["measured"]["metrics"]
    }
    assert {"gemm", "memory_copy", "h2d_pinned", "d2h_pinned", "train_step"} <= names
    for metric in rows["speed.gemm"]["measured"]["metrics"]:
        assert metric["spread"] < 0.15, metric


def test_the_mapped_libraries_were_told_apart(whole: tuple[int, dict[str, Any]]) -> None:
    _, report = whole
    row = next(row for row in report["checks"] if row["id"] == "libraries.files")
    if row["status"] == "skip":
        pytest.skip(row["message"])
    assert row["measured"]["convolved"] is True


@pytest.mark.parametrize(
    ("value", "check", "word"),
    [
        pytest.param("", "devices.visible", "shows no GPU", id="nothing is shown"),
        pytest.param("-1", "devices.visible", "negative", id="minus one"),
        pytest.param("0,0", "devices.visible", "twice", id="one is named twice"),
        pytest.param("GPU-00000000", "devices.visible", "no GPU has", id="a UUID of elsewhere"),
        pytest.param("0,99", "devices.visible", "stops at '99'", id="a number of elsewhere"),
    ],
)
def test_a_bad_list_of_devices_is_told(gpus: list[str], value: str, check: str, word: str) -> None:
    del gpus
    code, report = verify("--only", check, CUDA_VISIBLE_DEVICES=value)
    row = report["checks"][0]
    words = " ".join(str(row[part]) for part in ("message", "cause", "fix"))
    if row["status"] == "skip":
        pytest.skip(row["message"])
    assert (code, row["status"]) == (1, "fail"), row
    assert word in words


def count_with(value: str) -> int:
    """How many devices CUDA itself offers under this list, in a fresh process."""
    done = run_program(
        [sys.executable, "-c", "from verify.device import driver; print(driver.read().count)"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": value},
        check=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize("value", ["0", "0,99", "99", "-1", "0,0", "0x1", "+0"])
def test_cuda_reads_a_list_of_devices_as_we_do(gpus: list[str], value: str) -> None:
    """The rules of devices.visible beside CUDA itself, which counts in a fresh process."""
    from verify.checks.devices.visible import VisibleCard, select
    from verify.device import nvml

    if any("MIG" in name for name in gpus) or os.environ.get("CUDA_VISIBLE_DEVICES"):
        pytest.skip("needs whole GPUs, all of them visible")
    cards = [VisibleCard(gpu.uuid or "") for gpu in nvml.read().gpus]
    assert count_with(value) == select(value, cards).most


def test_a_uuids_beginning_is_read_as_we_do(gpus: list[str]) -> None:
    from verify.checks.devices.visible import VisibleCard, select
    from verify.device import nvml

    cards = [VisibleCard(gpu.uuid or "") for gpu in nvml.read().gpus]
    if not cards or any("MIG" in name for name in gpus):
        pytest.skip("needs NVML and whole GPUs")
    for value in (cards[0].uuid[:12], cards[0].uuid, f"{cards[0].uuid},0"):
        assert count_with(value) == select(value, cards).most, value
