"""Signals that end a run: real ones, sent to a real run of the suite once a check runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import ROOT
from tests.kit.cases import cases
from tests.kit.reports import REPORT

PROGRAM = """
import contextlib, os, signal, subprocess, sys, time
from types import SimpleNamespace

from verify.checks.speed import burn
from verify.commands.main import main
from verify.model import frameworks
from verify.model.check import Check, Outcome, Status
from verify.running import children

EVENTS = int(sys.argv[1])
WORK = sys.argv[2]


def say(text):
    os.write(EVENTS, text.encode() + b"\\n")


def good(context):
    return Outcome(Status.PASS, "fine", measured={"device": "cuda"})


def wrong(context):
    return Outcome(Status.FAIL, "3 of 4 results are wrong", "the card computes wrongly")


def hang(context):
    subprocess.Popen(["sleep", "600"], pass_fds=[EVENTS])  # all that holds the pipe must end
    say("running")
    time.sleep(600)
    return good(context)


def deaf(context):
    signal.signal(signal.SIGTERM, lambda *_: say("heard"))
    return hang(context)


class Place:
    index, is_gpu, card, capability = 0, False, "CPU", None
    calls = 0

    def has(self, dtype):
        return False

    def put(self, numbers, dtype):
        return numbers

    def scope(self):
        return contextlib.nullcontext()

    def multiply(self, left, right, dtype):
        self.calls += 1
        time.sleep(0.001)
        if self.calls == 200:
            say("running")
        return 8 if WORK == "corrupt" and self.calls == 100 else 7


place = Place()
place.backend = backend = SimpleNamespace(
    numbers=SimpleNamespace(checksum=lambda place, product: product),
    every=lambda context: (None, [place]),
    sum_in_fp32=lambda: None,
)
burn.of = lambda context: backend
burn._size, burn._factor, burn.LOOK_S = (lambda *_: 8), (lambda *_: 0), 0.01
WORKS = {"hang": hang, "deaf": deaf, "burn": burn.check_burn, "corrupt": burn.check_burn}
frameworks.FRAMEWORKS["pytorch"].__class__.load = lambda self: None
children._SAME_S = 0.0 if "at once" in sys.argv[3] else children._SAME_S
staged = "apart" not in sys.argv[3]
CHECKS = [
    Check("devices.first", "First", wrong if "failed" in sys.argv[3] else good, framework=False,
          gpu=True),
    Check("health.burn", "Runs", WORKS[WORK], framework=staged, burns=True),
    Check("devices.next", "Next", good, framework=staged),
    Check("health.after", "Last", good, framework=False, closes=True),
]
sys.exit(main(sys.argv[4:], {"pytorch": CHECKS}))
"""
FORMATS = ("junit", "html", "markdown", "prometheus", "verdict")


class Run(NamedTuple):
    """A run that ended: its code, its report, what it printed, and its folder."""

    code: int
    report: Any
    out: str
    err: str
    folder: Path


def interrupt(
    folder: Path, work: str, *signals: int, how: str = "", words: tuple[str, ...] = ()
) -> Run:
    """Send a signal when the check runs, and another when it has heard the first; wait until
    everything that the run has started is gone.
    """
    (folder / "program.py").write_text(PROGRAM)
    source, sink = os.pipe()
    path = folder / "report.json"
    files = [word for name in FORMATS for word in (f"--{name}", str(folder / name))]
    argv = [sys.executable, str(folder / "program.py"), str(sink), work, how]
    with subprocess.Popen(
        [*argv, "--report", str(path), *files, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        pass_fds=[sink],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(sink)
        for number in signals:
            assert os.read(source, 100) in {b"running\n", b"heard\n"}
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    with os.fdopen(source, "rb") as events:
        assert events.read() in {b"", b"heard\n"}  # its end: no process holds the pipe
    report = json.loads(path.read_text()) if path.exists() else None
    if report is not None:
        REPORT.validate(report)
    left = {*FORMATS, "report.json", "program.py"} - {one.name for one in folder.iterdir()}
    assert left == (set() if report is not None else {*FORMATS, "report.json"})
    assert len(list(folder.iterdir())) <= len(FORMATS) + 2
    return Run(process.returncode, report, out, err, folder)


def statuses(report: Any) -> dict[str, str]:
    return {row["id"]: row["status"] for row in report["checks"]}


@pytest.mark.parametrize("how", ["", "apart"], ids=["from the stage", "from the parent"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_report_says_what_did_not_end(number: signal.Signals, how: str, tmp_path: Path) -> None:
    run = interrupt(tmp_path, "hang", number, how=how)
    name = number.name
    assert (run.code, run.report["verdict"]) == (128 + number, "no-verdict")
    assert run.report["environment"]["interrupted"] == name
    assert statuses(run.report) == {
        "devices.first": "pass", "health.burn": "skip", "devices.next": "skip",
        "health.after": "skip",
    }  # fmt: skip
    first, *later = (row["message"] for row in run.report["checks"][1:])
    assert first.startswith(f"it did not end: the run was interrupted ({name}) after ")
    assert later == [f"not run: the run was interrupted ({name})"] * 2
    words = " ".join(run.out.split())
    assert f"3 did not run; the run was interrupted ({name})" in words
    assert f"(no-verdict, exit code {128 + number})" in words
    for name in ("html", "markdown"):
        assert "No check had failed, and the run was interrupted" in (tmp_path / name).read_text()
    assert ET.parse(tmp_path / "junit").findall(".//skipped")
    assert json.loads((tmp_path / "verdict").read_text())["overall_severity"] == "UNKNOWN"


@cases(
    "work how words code verdict",
    ("a check that is required is not failed", "hang", "", ("--require", "health.burn"), 143,
     "no-verdict"),
    ("what had failed before counts", "hang", "failed", (), 1, "unfit"),
    ("a check that hears no signal is killed", "deaf", "", (), 143, "no-verdict"),
)  # fmt: skip
def test_only_a_failure_is_one(
    work: str, how: str, words: tuple[str, ...], code: int, verdict: str, tmp_path: Path
) -> None:
    run = interrupt(tmp_path, work, signal.SIGTERM, how=how, words=words)
    assert (run.code, run.report["verdict"]) == (code, verdict)
    assert run.report["environment"]["interrupted"] == "SIGTERM"


@cases(
    "work status code words",
    ("nothing wrong is no pass", "burn", "skip", 143, "nothing wrong until then: "),
    ("silent data corruption is not lost", "corrupt", "fail", 1, "have other bits than the first"),
)
def test_a_load_gives_what_it_has_found(
    work: str, status: str, code: int, words: str, tmp_path: Path
) -> None:
    run = interrupt(tmp_path, work, signal.SIGTERM, words=("--burn", "60"))
    (row,) = (row for row in run.report["checks"] if row["id"] == "health.burn")
    assert (row["status"], run.code) == (status, code)
    assert words in row["message"]
    assert 0 < row["measured"]["minutes"] < 60
    assert row["measured"]["tables"]


def test_a_signal_that_is_sent_twice_at_once_is_one(tmp_path: Path) -> None:
    """timeout(1) signals its command and then its process group."""
    run = interrupt(tmp_path, "deaf", signal.SIGTERM, signal.SIGTERM)
    assert (run.code, run.report["verdict"]) == (143, "no-verdict")


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    run = interrupt(tmp_path, "deaf", signal.SIGTERM, signal.SIGINT, how="at once")
    assert (run.code, run.report, run.out) == (130, None, "")
    assert run.err.splitlines()[-1] == "verify: interrupted"


def test_an_interrupted_run_is_not_worse_than_its_baseline(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    earlier = interrupt(tmp_path / "one", "hang", signal.SIGTERM).folder / "report.json"
    run = interrupt(tmp_path / "two", "hang", signal.SIGTERM, words=("--baseline", str(earlier)))
    assert run.code == 143
    assert "comparison" not in run.report
