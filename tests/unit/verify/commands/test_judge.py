"""`verify judge`: the verdict outside the image is the one that the suite itself would give."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.kit.fake_engine import report, row_of
from verify.checks import CHECKS
from verify.commands import main as cli
from verify.commands.judge import JudgeRequest, recompute
from verify.model.check import (
    EXIT_CODES,
    LEVELS,
    Check,
    Outcome,
    Result,
    Status,
    UsageError,
    demand,
    names,
)
from verify.model.expectations import Expectations, ExpectedGpu
from verify.reports import shape
from verify.reports.report import document, dump

GPU = {"name": "NVIDIA L4", "uuid": "GPU-1", "compute_capability": "8.9", "mig": False}
ENVIRONMENT = {**report()["environment"], "gpus": [GPU]}


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, JudgeRequest]:
    """A framework, and a command line that the suite accepts."""
    framework = draw(st.sampled_from(sorted(CHECKS)))
    known = sorted(names(CHECKS[framework]))
    some = st.lists(st.sampled_from(known), min_size=1, max_size=3).map(",".join)
    only = draw(st.none() | some)
    require = draw(st.none() | (some if only is None else st.just(only)))
    emulator = draw(st.none() | st.just("qemu-aarch64"))
    expect = Expectations(framework_name=framework, emulator=emulator)
    return framework, JudgeRequest(draw(st.sampled_from(LEVELS)), only, require, expect)


OUTCOMES = st.builds(
    Outcome,
    status=st.sampled_from([Status.PASS] * 6 + [Status.SKIP] * 2 + [Status.FAIL, Status.ERROR]),
    message=st.just("said"),
    measured=st.sampled_from([{}, {}, {}, {"device": "cpu"}, {"device": "cuda"}]),
)


def result_of(check: Check, outcome: Outcome) -> Result:
    bad = outcome.status in (Status.FAIL, Status.ERROR)
    return Result(check, replace(outcome, cause="broken" if bad else None), 1.0)


@given(asked(), st.data())
def test_the_verdict_is_the_suite_s_own(
    made: tuple[str, JudgeRequest], data: st.DataObject
) -> None:
    framework, run = made
    chosen, required = cli.choose(CHECKS[framework], run.level, run.only, run.require)
    mostly = data.draw(OUTCOMES)
    other = data.draw(st.dictionaries(st.sampled_from([c.id for c in chosen]), OUTCOMES))
    results = [demand(result_of(c, other.get(c.id, mostly)), required) for c in chosen]
    emulator = {"emulator": run.expect.emulator} if run.expect.emulator else {}
    place: Any = {**ENVIRONMENT, "framework": {"name": framework, "version": "1"}, **emulator}
    said = document(run.level, place, results)
    read = shape.parse(dump(said).encode(), "report")
    assert recompute(read, CHECKS, run)[0] == said["verdict"]


@given(asked(), st.sampled_from(["fail", "error"]), st.data())
def test_no_failure_is_ever_fit(
    made: tuple[str, JudgeRequest], status: str, data: st.DataObject
) -> None:
    framework, run = made
    chosen, _ = cli.choose(CHECKS[framework], run.level, run.only, run.require)
    results = [result_of(check, Outcome(Status.PASS, "said")) for check in chosen]
    place: Any = {**ENVIRONMENT, "framework": {"name": framework}}
    said = document(run.level, place, results)
    broken: Any = data.draw(st.sampled_from(said["checks"]))
    broken.update(status=status, cause="broken")
    assert recompute(said, CHECKS, run)[0] == "unfit"


def edited(**changes: Any) -> Any:
    return {**copy.deepcopy(report()), **changes}


L4 = ExpectedGpu(uuid="GPU-1", name="NVIDIA H100 80GB HBM3")


@cases(
    "expect verdict",
    ("nothing is known of the GPUs", Expectations(), "fit"),
    ("the GPU that it saw", Expectations(gpus=(L4,)), "fit"),
    ("two, and it saw one", Expectations(gpus=(L4, L4)), "no-verdict"),
    ("none, and it claims one", Expectations(gpus=()), "no-verdict"),
    ("it was emulated", Expectations(emulator="qemu"), "no-verdict"),
)
def test_a_run_proves_the_gpus_that_it_was_given(expect: Expectations, verdict: str) -> None:
    assert recompute(edited(), CHECKS, JudgeRequest("standard", expect=expect))[0] == verdict


def test_a_driver_that_did_not_answer_twice_takes_no_proof_away() -> None:
    """The environment is another reading than the check's; where it failed, nothing is known."""
    found = edited()
    found["environment"].update(gpus=[], driver_error="NVML hang")
    expect = Expectations(gpus=(L4,))
    assert recompute(found, CHECKS, JudgeRequest("standard", expect=expect))[0] == "fit"


@cases(
    "change verdict code",
    ("all that ran passed", {}, "no-verdict", 143),
    ("a check that is required did not run", {"status": "skip"}, "no-verdict", 143),
    ("one had failed", {"status": "fail", "cause": "broken"}, "unfit", 1),
)
def test_a_run_that_was_interrupted_is_never_fit(
    change: Any, verdict: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = edited(verdict=verdict)
    found["environment"]["interrupted"] = "SIGTERM"
    found["checks"][-1].update(change)
    (tmp_path / "r.json").write_text(json.dumps(found))
    words = ["judge", str(tmp_path / "r.json"), "--json", "--require", found["checks"][-1]["id"]]
    assert cli.main(words) == EXIT_CODES[verdict]
    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["exit_code"]) == (verdict, code)
    assert said["why"] == (
        "the run was interrupted (SIGTERM)" if verdict == "no-verdict" else
        f"{found['checks'][-1]['id']} failed"
    )  # fmt: skip


@cases(
    "found words said",
    ("less", edited(checks=report()["checks"][1:]), "standard", "are missing: devices.nvml"),
    ("twice", edited(checks=[*report()["checks"], report()["checks"][0]]), "standard",
     "duplicate checks: devices.nvml"),
    ("another level", edited(), "quick", "its level is standard, not quick"),
)  # fmt: skip
def test_what_is_of_another_run_is_said(found: Any, words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        recompute(found, CHECKS, JudgeRequest(words))


@cases(
    "change code out",
    ("fit", {}, 0, "fit: nothing failed\n"),
    ("a failure that it calls fit", {"status": "fail", "cause": "broken"}, 1,
     "unfit: devices.kernel failed; the report says fit\n"),
    ("a skip that it calls fit", {"status": "skip"}, 1,
     "no-verdict: not tested on a GPU: devices.kernel (of devices.kernel); the report says fit\n"),
    ("a status of its own", {"status": "never"}, 2, ""),
)  # fmt: skip
def test_the_command_judges_a_file(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Any,
    code: int,
    out: str,
) -> None:
    found = report()
    row_of(found, "devices.kernel").update(change)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(found))
    assert cli.main(["judge", str(path)]) == code
    assert capsys.readouterr().out == out
