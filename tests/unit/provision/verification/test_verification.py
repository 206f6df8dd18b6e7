"""`provision verify` on an engine that is a small stand-in: what it asks, writes, keeps and says.

The stand-in answers what a Docker engine would; the suite's own command line is the real one.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from images.engines.spec import RunJob, RunResult
from provision.attestation.record.statement import RECORD
from provision.attestation.record.store import trusted_keys
from provision.attestation.signing.envelope import unseal
from provision.model.plan import Framework, HostFacts
from provision.verification.suite import in_numbers
from tests import ROOT
from tests.kit import schemas
from tests.kit.cases import cases
from tests.kit.fake_engine import (
    CODES,
    FACTS,
    H100,
    IMAGE,
    TAG,
    Runner,
    as_asked,
    broken,
    check,
    claims,
    ended,
    gpu_check,
    interrupted,
    metric,
    report,
    row_of,
    says,
)
from tests.kit.forged import RECORDS, REPORTS, Edit, forge_record, forged
from tests.kit.programs import run_program
from tests.unit.provision.cli.test_cli import Said, main
from tests.unit.provision.verification.conftest import Place

SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text())


def code_of(said: Said) -> Any:
    return json.loads(said.out)["error"]["code"]


ALL = ["report", "junit", "html", "markdown", "prometheus", "verdict"]


def all_files() -> list[str]:
    return [word for name in ALL for word in (f"--{name}", f"out.{name}")]


# --- the run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", CODES)
def test_the_verdict_is_the_exit_code_and_the_report_the_result(here: Place, verdict: str) -> None:
    here.engine.suite = says(report(verdict))
    said = main("verify", TAG, "--json")
    assert said.code == CODES[verdict], said
    assert json.loads(said.out) == report(verdict)


def test_of_an_image_with_two_frameworks_the_requested_one_is_tested(here: Place) -> None:
    here.engine.requirements = ("jax[cuda12]>=0.7,<=0.9", "numpy<2")
    assert "--framework jax" in main("verify", TAG).err
    said = main("verify", TAG, "--framework", "jax", "--json")
    expected = [json.loads(next(iter(job.files.values())))["framework"] for job in here.engine.jobs]
    assert [one["name"] for one in expected] == ["pytorch", "jax"]
    assert expected[1]["version"] is None
    assert json.loads(said.out)["environment"]["framework"]["name"] == "jax"


@cases(
    "words message",
    ("it is not in the image", ["jax"], "it has PyTorch."),
    ("it does not exist", ["caffe"], "Unknown --framework 'caffe'"),
    ("a record of a part", ["pytorch", "--record", "r"], "covers the image"),
)
def test_a_framework_that_cannot_be_tested_is_refused(
    here: Place, words: list[str], message: str
) -> None:
    said = main("verify", TAG, "--framework", *words)
    assert said.code == 2
    assert message in said.err
    assert here.engine.jobs == []


def test_the_suite_runs_in_the_very_image_that_was_looked_at(here: Place) -> None:
    main("verify", TAG, "--level", "full", "--require", "gpu, nccl", "--timeout", "7200")
    (job,) = here.engine.jobs
    assert job.image == IMAGE
    assert job.timeout_s == 7200
    words = " ".join(job.command)
    assert "--level full" in words
    assert words.endswith("--require gpu,nccl")


def test_a_burn_is_asked_for_and_gets_its_time(here: Place) -> None:
    main("verify", TAG, "--burn", "90", "--only", "gpu")
    (job,) = here.engine.jobs
    assert job.timeout_s == 1800 + 90 * 60
    words = " ".join(job.command)
    assert words.endswith("--burn 90 --require health.burn --only gpu,health.burn")


def test_the_suite_is_told_the_card_s_own_figures(here: Place) -> None:
    main("verify", TAG)
    (job,) = here.engine.jobs
    (gpu,) = json.loads(job.files["/run/gpu-provision/expect.json"])["gpus"]
    assert gpu["name"] == H100.name
    assert gpu["spec"]["memory_bandwidth_gbs"] > 3000
    assert gpu["spec"]["nvlink"] is True
    assert gpu["spec"]["sure"] is True
    assert all(gpu["spec"]["tflops"].values())


def test_an_image_cut_for_other_gpus_is_refused_before_the_container_starts(here: Place) -> None:
    here.engine.cut = ((8, 0), (8, 6))
    said = main("verify", TAG, "--json")
    assert (said.code, code_of(said)) == (3, "cut-for-other-gpu")
    assert "has GPU code for sm_80 and sm_86 alone" in said.err
    assert "provision build --cut sm_80,sm_86,sm_90" in said.err
    assert here.engine.jobs == []


def test_an_image_cut_for_this_gpu_runs_and_its_suite_is_told(here: Place) -> None:
    here.engine.cut = ((9, 0),)
    assert main("verify", TAG).code == 0
    (job,) = here.engine.jobs
    assert json.loads(job.files["/run/gpu-provision/expect.json"])["cut"] == ["9.0"]


@cases(
    "words message",
    ("unknown", ["--require", "gpu,,no-such"], "unknown name 'no-such'"),
    ("an unknown part", ["--only", "no.such"], "--only: unknown name"),
    ("left out", ["--only", "libraries", "--require", "gpu"], "--only excludes"),
    ("a shell's words", ["--require", "$(id)"], "no check '$(id)'"),
    ("commas only", ["--only", " , "], "--only needs the name of a check"),
    ("a word for a time", ["--timeout", "soon"], "--timeout 'soon'"),
    ("no time", ["--timeout", "0"], "--timeout '0'"),
    ("an endless time", ["--timeout", "9" * 400], "is not a number of seconds"),
    ("no time to burn", ["--burn", "0"], "--burn '0' is not a number of minutes"),
    ("a word for minutes", ["--burn", "soon"], "--burn 'soon'"),
    ("minutes that are no number", ["--burn", "nan"], "--burn 'nan'"),
    ("a month of burning", ["--burn", "43200"], "10080, a week"),
    ("no directory", ["--report", "no/r.json"], "there is no directory"),
    ("a directory", ["--html", "."], "--html"),
    ("a device", ["--html", "/dev/null"], "not a file that can be replaced"),
    ("an endless name", ["--junit", "x" * 5000], "--junit"),
    ("no name", ["--junit", ""], "--junit needs a file name"),
    ("one file for two", ["--junit", "a", "--html", "./a"], "name the same file"),
    ("a baseline not there", ["--baseline", "none.json"], "--baseline"),
    ("no place for a record", ["--record", "no/r.json"], "--record"),
    ("a record and none", ["--record", "r", "--no-record"], "--no-record"),
    ("of a part", ["--record", "r", "--only", "gpu"], "covers all of it"),
    ("a key not there", ["--key", "none.pem"], "There is no key"),
    ("a trust for nothing", ["--trust", "a.pem"], "--check-record"),
    ("a check with a file", ["--check-record", "r", "--junit", "a"], "--junit"),
    ("a check of a part", ["--check-record", "--only", "gpu"], "--only"),
    ("no key", ["--check-record", "--trust", ""], "--trust needs a file name"),
)
def test_what_cannot_be_done_is_refused_before_the_container_starts(
    here: Place, words: list[str], message: str
) -> None:
    said = main("verify", TAG, *words)
    assert said.code == 2, said
    assert message in said.err
    assert "fix:" in said.err
    assert here.engine.jobs == []
    assert list((here.path / "work").iterdir()) == []


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_names_are_those_of_the_image_s_framework(here: Place, framework: Framework) -> None:
    here.ask_the_suite()
    here.engine.framework = framework
    assert main("verify", TAG, "--require", "gpu").code == 0
    only_torch = main("verify", TAG, "--require", "loading.workers")
    assert only_torch.code == (0 if framework == "pytorch" else 2)


def test_the_real_suite_s_report_is_read(here: Place) -> None:
    """Here it finds no framework, which is a verdict like any other."""
    here.ask_the_suite()

    def real(job: RunJob) -> RunResult:
        with tempfile.NamedTemporaryFile("wb", suffix=".json") as expect:
            expect.write(job.files["/run/gpu-provision/expect.json"])
            expect.flush()
            here = {
                "/run/gpu-provision/expect.json": expect.name,
                "/opt/gpu-provision/lib/verify": str(ROOT / "verify"),
            }
            words = [here.get(word, word) for word in job.command]
            done = run_program([sys.executable, *words[1:]], cwd=ROOT)
        return ended(done.returncode, done.stdout, done.stderr)

    here.engine.suite = real
    said = main("verify", TAG, "--only", "libraries.framework", "--json", *all_files())
    assert said.code == 1, said.err
    found = json.loads(said.out)
    jsonschema.validate(found, SCHEMA)
    assert [row["id"] for row in found["checks"]] == ["libraries.framework"]
    assert json.loads((here / "out.report").read_text()) == found
    assert b"libraries.framework" in (here / "out.html").read_bytes()


# --- reports that are not to be believed ---------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "slug"), [pytest.param(*row, id=sentence) for sentence, *row in REPORTS]
)
def test_a_forged_report_is_refused_and_nothing_is_signed(
    here: Place, edit: Edit, slug: str
) -> None:
    here.engine.suite = claims(forged(edit))
    said = main("verify", TAG, "--json", "--report", "r.json", "--junit", "j.xml")
    assert (said.code, code_of(said)) == (1, slug), said.err
    assert not here.home.exists() or here.records == []
    assert not (here / "r.json").exists()
    assert slug in (here / "j.xml").read_text()
    assert "fix:" in said.err


@cases(
    "claimed ended_with",
    ("the suite says unfit by its exit code", "fit", 1),
    ("the suite says fit by its exit code", "unfit", 0),
    ("the suite was killed after its report", "fit", 137),
)
def test_a_report_and_an_exit_code_that_differ_are_refused(
    here: Place, claimed: str, ended_with: int
) -> None:
    here.engine.suite = claims(report(claimed), ended_with)
    said = main("verify", TAG, "--json")
    assert (said.code, code_of(said)) == (1, "report-contradiction")


@cases(
    "words edit slug",
    ("what was required did not run", ["--require", "training"],
     lambda found: row_of(found, "training.loss").update(status="skip"), "report-contradiction"),
    ("it is of all, not of a part", ["--only", "devices"], lambda _: None, "bad-report"),
    ("it is of a lower level", ["--level", "full"], lambda _: None, "bad-report"),
    ("it says full and has the checks of standard", ["--level", "full"],
     lambda found: found.update(level="full"), "bad-report"),
)  # fmt: skip
def test_a_report_that_is_not_what_was_asked_for_is_refused(
    here: Place, words: list[str], edit: Edit, slug: str
) -> None:
    found = forged(edit, "no-verdict" if "--require" in words else "fit")
    here.engine.suite = claims(found)
    said = main("verify", TAG, "--json", *words)
    assert (said.code, code_of(said)) == (1, slug), said.err


def test_a_gpu_that_was_not_given_proves_nothing(here: Place) -> None:
    here.facts(FACTS._replace(gpus=()))
    here.engine.suite = claims(report())
    said = main("verify", TAG, "--json")
    assert (said.code, code_of(said)) == (1, "report-contradiction")
    assert "had no GPU" in said.err


@cases(
    "facts",
    ("a machine without a GPU", FACTS._replace(gpus=())),
    ("a machine whose GPUs are not known", FACTS._replace(gpus=None)),
)
@pytest.mark.parametrize("level", ["quick", "standard", "full"])
def test_an_honest_run_without_a_gpu_has_no_verdict(
    here: Place, facts: HostFacts, level: str
) -> None:
    def skips(job: RunJob) -> RunResult:
        found = as_asked(report(), job)
        for row in found["checks"]:
            if gpu_check(row["id"]):
                row.update(status="skip", message="no GPU")
        found["environment"].update(gpus=[], driver=None)
        return claims({**found, "verdict": "no-verdict"})(job)

    here.facts(facts)
    here.engine.suite = skips
    assert main("verify", TAG, "--level", level).code == 7


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
@cases(
    "words",
    ("quick", ["--level", "quick"]),
    ("full", ["--level", "full"]),
    ("quick and one more family", ["--level", "quick", "--require", "numerics"]),
    ("a part that needs no GPU", ["--only", "libraries"]),
    ("a part and required", ["--only", "gpu,numerics", "--require", "gpu"]),
)
def test_an_honest_report_is_accepted(here: Place, framework: Framework, words: list[str]) -> None:
    here.engine.framework = framework
    assert main("verify", TAG, *words).code == 0
    proves = "--only" not in words
    assert (main("verify", TAG, "--check-record", "--json").code == 0) == proves


# --- output that is made to be slow or to steer the terminal ------------------------------------


@cases(
    "out slug",
    ("lines that each begin an object", "{\n" * 700_000, "no-report"),
    ("empty objects", "{\n}\n" * 400_000, "no-report"),
    ("nested without end", '{\n"a": ' + "[" * 1_000_000 + "\n}\n", "bad-report"),
    ("deep objects", "{\n" + '"a": {' * 200_000 + "}" * 200_000 + "\n}\n", "bad-report"),
    ("more than any report", "x" * (17 << 20), "bad-report"),
    ("no finite number", '{\n"verdict": 1e999, "checks": []\n}\n', "no-report"),
    ("a list", "[\n]\n", "no-report"),
    ("nothing", "", "no-report"),
)
def test_finding_the_report_takes_no_time_whatever_was_written(
    here: Place, out: str, slug: str
) -> None:
    here.engine.suite = lambda _: ended(0, out)
    began = time.process_time()
    said = main("verify", TAG, "--json")
    assert (said.code, code_of(said)) == (1, slug)
    assert time.process_time() - began < 5.0
    assert len(said.err) < 10_000


@cases(
    "banner",
    ("a banner", "== CUDA ==\nCUDA Version 12.8.1\n"),
    ("half of an object", "{\n"),
    ("an object that is no report", '{\n  "verdict": "fit"\n}\n'),
)
def test_what_an_entrypoint_prints_first_does_not_hide_the_report(here: Place, banner: str) -> None:
    honest = here.engine.suite

    def run(job: RunJob) -> RunResult:
        done = honest(job)
        return replace(done, stdout=f"{banner}{done.stdout}\n")

    here.engine.suite = run
    assert main("verify", TAG).code == 0


@pytest.mark.parametrize("words", [[], ["-v"]], ids=["in a log", "with every line"])
def test_an_image_cannot_flood_the_terminal(here: Place, words: list[str]) -> None:
    here.engine.lines = [f"1/2 fail {'x' * 100_000} {i}" for i in range(3000)]
    said = main("verify", TAG, *words)
    assert said.code == 0
    assert "2,000 more lines of the image's output were omitted" in said.err
    assert len(said.err) < 1_000_000
    assert max(map(len, said.err.splitlines())) < 600


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", CODES)
def test_files_are_written_whatever_the_verdict(here: Place, verdict: str) -> None:
    here.engine.suite = says(report(verdict))
    assert main("verify", TAG, *all_files()).code == CODES[verdict]
    assert json.loads((here / "out.report").read_text()) == report(verdict)
    suite = ET.parse(here / "out.junit").getroot()
    cases = {case.attrib["name"]: case for case in suite.iter("testcase")}
    assert list(cases) == [row["id"] for row in report()["checks"]]
    failed = [case for case in cases.values() if case.find("failure") is not None]
    assert len(failed) == (verdict == "unfit")
    assert "devices.kernel" in (here / "out.html").read_text()
    assert "kernel" in (here / "out.markdown").read_text()
    assert "gpu_provision" in (here / "out.prometheus").read_text()
    node = json.loads((here / "out.verdict").read_text())
    severities = {"fit": "PASS", "no-verdict": "UNKNOWN", "unfit": "CRITICAL"}
    assert node["overall_severity"] == severities[verdict]
    assert sorted(path.name for path in (here.path / "work").iterdir()) == sorted(
        f"out.{name}" for name in ALL
    )


def test_the_file_is_what_json_prints(here: Place) -> None:
    odd = report()
    odd["checks"][0]["message"] = "caf\u00e9 \ud800 half a pair"
    here.engine.suite = says(odd)
    main("verify", TAG, "--report", "a.json")
    assert json.loads((here / "a.json").read_bytes()) == odd


@cases(
    "suite code slug",
    ("the engine goes away", broken(), 5, "engine-failed"),
    ("the suite is killed", lambda _: ended(137, "", "killed"), 1, "no-report"),
    ("half a report", lambda _: ended(0, '{\n"verdict": NaN}'), 1, "no-report"),
)
def test_where_there_is_no_report_the_files_say_why(
    here: Place, suite: Runner, code: int, slug: str
) -> None:
    here.engine.suite = suite
    said = main("verify", TAG, "--json", *all_files())
    assert (said.code, code_of(said)) == (code, slug)
    (error,) = ET.parse(here / "out.junit").getroot().iter("error")
    assert error.attrib["type"] == slug
    assert "fix: " in str(error.text)
    root = ET.parse(here / "out.junit").getroot()
    assert (root.attrib["tests"], root.attrib["errors"]) == ("1", "1")
    assert slug in (here / "out.markdown").read_text()
    assert sorted(path.name for path in (here.path / "work").iterdir()) == [
        "out.junit",
        "out.markdown",
        "out.verdict",
    ]
    unknown = json.loads((here / "out.verdict").read_text())
    assert schemas.problems("verdict", unknown) == []
    assert (unknown["overall_severity"], unknown["source"]["error"]) == ("UNKNOWN", slug)
    assert here.records == []


@cases(
    "found code ends",
    ("what ran had passed", interrupted(report()), 143, 130),
    ("a check had failed", interrupted(report("unfit")), 1, 1),
)
def test_a_run_that_was_interrupted_is_shown_and_proves_nothing(
    here: Place, found: dict[str, Any], code: int, ends: int
) -> None:
    here.engine.suite = says(report())
    main("verify", TAG, "--report", "earlier.json", "--no-record")
    here.engine.suite = claims(found, code)
    said = main("verify", TAG, "--json", "--baseline", "earlier.json", *all_files())
    assert (said.code, json.loads(said.out)) == (ends, found)
    assert all((here / f"out.{name}").exists() for name in ALL)
    assert len(here.records) == (1 if found["verdict"] == "unfit" else 0)
    assert ("SIGTERM interrupted the run" in said.err) == (found["verdict"] != "unfit")
    assert main("verify", TAG, "--check-record").code == (1 if here.records else 7)


@cases(
    "found slug",
    ("the suite has written its report", interrupted(report()), None),
    ("it was complete just in time", report(), None),
    ("it did not get that far", None, "interrupted"),
)
def test_the_suite_hears_of_a_signal_and_its_report_is_waited_for(
    here: Place, found: dict[str, Any] | None, slug: str | None
) -> None:
    heard = threading.Event()

    def wait(job: RunJob) -> RunResult:
        assert job.signals is not None
        job.signals.to(lambda number: heard.set() if number == signal.SIGINT else None)
        signal.raise_signal(signal.SIGINT)
        assert heard.wait(60)
        if found is None:
            return ended(130, "", "verify: interrupted")
        return claims(found, 143 if "interrupted" in found["environment"] else 0)(job)

    here.engine.suite = wait
    said = main("verify", TAG, *all_files())
    complete = found is not None and "interrupted" not in found["environment"]
    assert said.code == (0 if complete else 130)
    assert len(here.records) == complete
    if slug is not None:
        (error,) = ET.parse(here / "out.junit").getroot().iter("error")
        assert error.attrib["type"] == slug
        assert "interrupted" in said.err


def test_an_image_that_is_not_there_is_in_junit_too(here: Place) -> None:
    said = main("verify", "team/none:1", "--junit", "a.xml")
    assert said.code == 5
    (error,) = ET.parse(here / "a.xml").getroot().iter("error")
    assert "There is no image team/none:1" in error.attrib["message"]


def test_a_text_from_outside_stays_inside_its_block(here: Place) -> None:
    here.engine.suite = broken()
    main("verify", TAG, "--markdown", "a.md")
    lines = (here / "a.md").read_text().splitlines()
    assert (lines[2], lines[-1]) == ("````text", "````")


# --- a baseline -------------------------------------------------------------------------------


@cases(
    "verdict gemm code words",
    ("as it was", "fit", 600.0, 0, "Not worse than the baseline"),
    ("within the tolerance", "fit", 590.0, 0, "Not worse than the baseline"),
    ("half as fast, and fit", "fit", 300.0, 1, "Worse than the baseline"),
    ("a check fails now", "unfit", 600.0, 1, "Worse than the baseline"),
    ("the GPU is gone", "no-verdict", 600.0, 1, "Worse than the baseline"),
)
def test_what_got_worse_makes_it_unfit(
    here: Place, verdict: str, gemm: float, code: int, words: str
) -> None:
    (here / "base.json").write_text(json.dumps(report()))
    here.engine.suite = says(report(verdict, gemm))
    said = main("verify", TAG, "--baseline", "base.json", "--report", "a.json", "--html", "a.html")
    assert said.code == code, said
    assert words in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    kept = json.loads((here / "a.json").read_text())
    jsonschema.validate(kept, SCHEMA)
    assert kept["comparison"]["worse"] == (code == 1)


def test_a_baseline_may_be_replaced_by_the_report(here: Place) -> None:
    here.ask_the_suite()
    (here / "a.json").write_text(json.dumps(report()))
    here.engine.suite = says(report(gemm=300.0))
    assert main("verify", TAG, "--baseline", "a.json", "--report", "a.json").code == 1
    kept = json.loads((here / "a.json").read_text())
    assert row_of(kept, "speed.gemm")["measured"]["metrics"] == [metric(300.0)]


# --- records ----------------------------------------------------------------------------------


def test_a_run_leaves_a_record_that_proves_it(here: Place) -> None:
    assert main("verify", TAG, "--report", "a.json").code == 0
    (path,) = here.records
    assert path.name.startswith("a1a1a1a1a1a1.1-x-nvidia-h100-80gb-hbm3-9-0-")
    payload, _ = unseal(path.read_bytes(), trusted_keys(here.home, []), RECORD)
    predicate = json.loads(payload)["predicate"]
    assert (
        predicate["report"]["sha256"] == hashlib.sha256((here / "a.json").read_bytes()).hexdigest()
    )
    assert predicate["lock"]["sha256"] == hashlib.sha256(b"the lock").hexdigest()
    assert predicate["host"]["engine"] == "docker 26.1"
    said = main("verify", TAG, "--check-record", "--json")
    assert said.code == 0, said
    found = json.loads(said.out)
    assert (found["proven"], found["verdict"], found["error"]) == (True, "fit", None)
    assert found["image"] == IMAGE
    assert len(here.engine.jobs) == 1


RESULT = {
    "schema", "proven", "verdict", "level", "when", "image", "record", "key", "message", "changed",
    "error",
}  # fmt: skip


@cases(
    "verdict facts words code slug",
    ("proven", "fit", FACTS, [], 0, None),
    ("unfit", "unfit", FACTS, [], 1, "record-unfit"),
    ("a second GPU", "fit", FACTS._replace(gpus=(H100, H100)), [], 7, "record-missing"),
)
def test_what_a_record_is_worth_is_the_exit_code(
    here: Place, verdict: str, facts: HostFacts, words: list[str], code: int, slug: str | None
) -> None:
    here.engine.suite = says(report(verdict))
    main("verify", TAG)
    here.facts(facts)
    said = main("verify", TAG, "--check-record", "--json", *words)
    found = json.loads(said.out)
    assert (said.code, found["proven"]) == (code, slug is None)
    assert set(found) == RESULT
    assert (found["error"] or {"code": None})["code"] == slug
    told = main("verify", TAG, "--check-record", *words)
    assert told.code == code
    assert told.out.startswith("verified    " + ("yes" if slug is None else "no"))
    assert max(map(len, told.out.splitlines())) <= 80 or str(here.home) in told.out


def test_a_name_given_to_another_image_is_not_proven(here: Place) -> None:
    main("verify", TAG, "--record", "r.json")
    here.engine.digest = f"sha256:{'d4' * 32}"
    assert main("verify", TAG, "--check-record").code == 7
    said = main("verify", TAG, "--check-record", "r.json", "--json")
    assert (said.code, code_of(said)) == (7, "record-other-image")
    (change, *_) = json.loads(said.out)["changed"]
    assert (change["what"], change["matters"]) == ("image", True)


@cases(
    "change slug",
    ("a key", lambda text: text.replace('"keyid": "', '"keyid": "0'), "unknown-key"),
    ("the payload", lambda text: text.replace('"eyJ', '"eyK'), "tampered"),
)
def test_a_record_that_was_changed_is_refused(
    here: Place, change: Callable[[str], str], slug: str
) -> None:
    main("verify", TAG)
    (path,) = here.records
    path.write_text(change(path.read_text()))
    said = main("verify", TAG, "--check-record", "--json")
    assert (said.code, code_of(said)) == (2, f"record-{slug}")
    assert set(json.loads(said.out)) == RESULT
    assert "error:" in said.err
    assert json.loads(said.out)["proven"] is False


@pytest.mark.parametrize(
    ("edit", "code", "slug"), [pytest.param(*row, id=sentence) for sentence, *row in RECORDS]
)
def test_a_signed_record_that_cannot_be_true_proves_nothing(
    here: Place, edit: Edit, code: int, slug: str
) -> None:
    assert main("verify", TAG).code == 0
    forge_record(here.records[0], edit, here.home)
    said = main("verify", TAG, "--check-record", "--json")
    assert (said.code, code_of(said)) == (code, slug), said.out
    assert json.loads(said.out)["proven"] is False
    assert set(json.loads(said.out)) == RESULT


@cases(
    "edit",
    ("as it was written", lambda _: None),
    ("with a member of a later version", lambda p: p.update(later="a member")),
    ("by an earlier version", lambda p: p["verifier"].update(version="0.0.1")),
    ("years old", lambda p: p.update(time="2020-02-29T23:59:59Z")),
)
def test_an_honest_record_signed_again_is_proven(here: Place, edit: Edit) -> None:
    assert main("verify", TAG, "--require", "memory.batch").code == 0
    forge_record(here.records[0], edit, here.home)
    assert main("verify", TAG, "--check-record").code == 0


def test_a_team_s_key_signs_and_is_trusted_by_name(here: Place) -> None:
    for words in (
        "genpkey -algorithm ed25519 -out team.pem",
        "pkey -in team.pem -pubout -out team.pub.pem",
    ):
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    assert main("verify", TAG, "--key", "team.pem", "--record", "r.json").code == 0
    assert here.records == []
    assert not (here.home / "keys").exists()
    said = main("verify", TAG, "--check-record", "r.json", "--json")
    assert (said.code, code_of(said)) == (2, "record-unknown-key")
    trusted = main("verify", TAG, "--check-record", "r.json", "--trust", "team.pub.pem", "--json")
    assert trusted.code == 0, trusted


def test_a_key_that_is_none_is_refused_in_one_shape(here: Place) -> None:
    (here / "a.pem").write_text("no key")
    said = main("verify", TAG, "--check-record", "--trust", "a.pem", "--json")
    assert (said.code, code_of(said)) == (2, "bad-record-key")
    assert set(json.loads(said.out)) == RESULT


@cases(
    "words",
    ("none is wanted", ["--no-record"]),
    ("a part is no proof of the whole", ["--only", "libraries"]),
)
def test_no_record_is_kept(here: Place, words: list[str]) -> None:
    assert main("verify", TAG, *words).code == 0
    assert not here.home.exists()
    said = main("verify", TAG, "--check-record", "--json")
    assert (said.code, code_of(said)) == (7, "record-missing")


def test_where_no_record_can_be_kept_the_verdict_stands(here: Place) -> None:
    here.home.parent.write_text("a file where a directory belongs")
    said = main("verify", TAG)
    assert said.code == 0
    assert "No record of this run was saved" in said.err


def test_a_record_asked_for_by_name_is_kept_or_the_run_is_refused(here: Place) -> None:
    here.home.parent.write_text("a file where a directory belongs")
    said = main("verify", TAG, "--record", "r.json", "--json")
    assert (said.code, code_of(said)) == (2, "record-not-written")
    assert here.engine.jobs == []


def test_records_do_not_lie_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from provision.cli.paths import record_home, state_directory

    monkeypatch.setenv("HOME", "/home/me")
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert str(record_home()) == "/home/me/.local/state/gpu-provision"
    assert str(state_directory()) == "/home/me/.cache/gpu-provision"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert str(record_home()) == "/home/me/.local/state/gpu-provision"


def test_a_run_in_numbers() -> None:
    found = report("unfit")
    cpu = check("numerics.matmul")
    cpu["measured"] = {"device": "cpu"}
    found["checks"] = [
        check("a"),
        cpu,
        check("b", "fail"),
        check("c", "error"),
        check("d", "skip"),
        check("e", "skip"),
    ]
    assert in_numbers(found) == (
        "unfit: 1 passed, 1 passed on the CPU, 1 failed, 1 in error, 2 not run"
    )


@pytest.mark.usefixtures("here")
def test_a_log_has_one_line_of_a_verification() -> None:
    said = main("verify", TAG)
    stage = [line for line in said.err.splitlines() if line.startswith("verify ")]
    assert len(stage) == 1
    assert re.fullmatch(rf"verify +\d+\.\d s  {TAG}, level standard: fit: .+, using \S.*", stage[0])
