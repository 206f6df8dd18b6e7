"""`provision gate` on the stand-in engine: what opens it, what closes it, and when a test runs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.engines.spec import RunJob, RunResult
from provision.attestation.record.host import recorded_host
from provision.attestation.record.statement import FAULTS as FAULTS_OF_RECORDS
from provision.attestation.record.statement import LEVELS, Statement
from provision.attestation.record.verdict import Judgement, RecordChange
from provision.model.plan import HostFacts
from provision.verification.gate import GateRule, answer_of_records, in_words
from provision.verification.record_check import Checked
from tests.kit.cases import cases
from tests.kit.fake_engine import (
    FACTS,
    H100,
    TAG,
    as_asked,
    broken,
    claims,
    gpu_check,
    interrupted,
    report,
    row_of,
    says,
)
from tests.kit.forged import forge_record
from tests.unit.provision.cli.test_cli import main
from tests.unit.provision.verification.conftest import Place

NOW = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)
RESULT = {
    *("schema", "open", "by", "at_fault", "level", "when"),
    *("image", "record", "message", "error"),
}
EXIT = {True: 0, False: 1, None: 7}


def answer(*words: str) -> dict[str, Any]:
    """What the command says, which is always of the same shape."""
    said = main("gate", TAG, "--json", *words)
    found: dict[str, Any] = json.loads(said.out)
    assert set(found) == RESULT, said
    assert said.code == EXIT[found["open"]], said
    assert (found["open"] is True) == (found["error"] is None)
    return found


def nothing_runs(job: RunJob) -> RunResult:
    raise AssertionError(f"{job.command} was run")


# --- a state directory of several users ---------------------------------------------------------


def test_another_users_key_opens_no_gate(here: Place) -> None:
    assert main("verify", TAG).code == 0
    assert answer("--no-test")["open"] is True
    mine = os.geteuid()
    here.monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    (here.home / "keys").chmod(0o755)
    found = answer("--no-test")
    assert (found["open"], found["error"]["code"]) == (None, "bad-record-key")
    assert f"belongs to user {mine}" in found["message"]
    assert "XDG_STATE_HOME=DIR" in found["error"]["fix"]
    assert main("verify", TAG, "--check-record").code == 2
    # the suite still answers, though nothing can be signed there
    assert answer()["by"] == "test"
    assert answer("--no-test")["open"] is None


@pytest.mark.parametrize("folder", ["keys", "records", "gate"])
def test_a_directory_that_cannot_be_read_opens_no_gate(here: Place, folder: str) -> None:
    assert main("verify", TAG).code == 0
    assert answer("--again")["open"] is True
    place = here.home / folder
    for name in ("stat", "lstat"):
        real = getattr(Path, name)

        def refused(path: Path, real: Any = real, **words: Any) -> os.stat_result:
            if path.parent == place:
                raise PermissionError(errno.EACCES, "Permission denied")
            found: os.stat_result = real(path, **words)
            return found

        here.monkeypatch.setattr(Path, name, refused)
    opens = {"keys": None, "records": True, "gate": True}[folder]  # another record may answer
    assert answer("--no-test")["open"] is opens
    said = main("verify", TAG, "--check-record")
    assert said.code == (0 if folder == "gate" else 2), said
    assert folder == "gate" or "cannot be read: Permission denied" in said.err


# --- a new node ---------------------------------------------------------------------------------


def test_a_new_node_is_tested_and_then_its_record_answers(here: Place) -> None:
    found = answer()
    assert (found["open"], found["by"], found["level"]) == (True, "test", "quick")
    assert here.engine.jobs[0].command[2:5] == ("--json", "--level", "quick")
    here.engine.suite = nothing_runs
    found = answer()
    assert (found["open"], found["by"], found["level"]) == (True, "record", "quick")
    said = main("gate", TAG)
    assert said.out.startswith("open: fit at level quick, tested ")
    assert said.out.count("\n") == 1


def test_the_gates_record_does_not_replace_that_of_a_verification(here: Place) -> None:
    assert main("verify", TAG).code == 0
    before = [path.read_bytes() for path in here.records]
    assert answer("--again")["level"] == "quick"
    assert [path.read_bytes() for path in here.records] == before
    assert main("verify", TAG, "--check-record", "--level", "standard").code == 0


def test_without_a_test_a_new_node_is_undecided(here: Place) -> None:
    here.engine.suite = nothing_runs
    found = answer("--no-test")
    assert (found["open"], found["by"]) == (None, None)
    assert found["error"]["code"] == "record-missing"
    assert main("gate", TAG, "--no-test").out.startswith("undecided: There is no record")


def test_an_image_cut_for_other_gpus_does_not_open_the_gate_and_nothing_runs(here: Place) -> None:
    here.engine.suite = nothing_runs
    here.engine.cut = ((8, 6),)
    said = main("gate", TAG, "--json")
    found = json.loads(said.out)
    assert (said.code, found["open"], found["error"]["code"]) == (3, None, "cut-for-other-gpu")


# --- what a record is worth -----------------------------------------------------------------------


def aged(days: float) -> Callable[[dict[str, Any]], None]:
    then = datetime.now(timezone.utc) - timedelta(days=days)
    return lambda p: p.update(time=then.strftime("%Y-%m-%dT%H:%M:%SZ"))


@cases(
    "edit facts words code",
    ("a record of today", None, FACTS, [], None),
    ("a record of yesterday", aged(0.9), FACTS, [], None),
    ("a record older than a day", aged(1.1), FACTS, [], "record-too-old"),
    ("a week is allowed", aged(6), FACTS, ["--max-age", "7d"], None),
    ("half an hour is allowed", aged(0.03), FACTS, ["--max-age", "30min"], "record-too-old"),
    ("a lower level than asked for", None, FACTS, ["--level", "full"], "record-lower-level"),
    ("the level that was asked for", None, FACTS, ["--level", "standard"], None),
    ("the driver was updated", None, FACTS._replace(driver="580.95.05"), [],
     "record-driver-changed"),
    ("another card of the same kind", None, FACTS._replace(gpus=(H100._replace(uuid="GPU-2"),)), [],
     "record-other-cards"),
    ("a card more", None, FACTS._replace(gpus=(H100, H100)), [], "record-missing"),
)  # fmt: skip
def test_what_counts_is_a_recent_record_of_this_very_node(
    here: Place,
    edit: Callable[[dict[str, Any]], None] | None,
    facts: HostFacts,
    words: list[str],
    code: str | None,
) -> None:
    assert main("verify", TAG).code == 0
    if edit is not None:
        forge_record(here.records[0], edit, here.home)
    here.facts(facts)
    here.engine.suite = nothing_runs
    found = answer("--no-test", *words)
    assert (found["error"] or {"code": None})["code"] == code
    assert found["by"] == (None if code else "record")


@cases(
    "verdict opens code",
    ("fit", "fit", True, None),
    ("unfit", "unfit", False, "gate-unfit"),
    ("no verdict", "no-verdict", None, "gate-no-verdict"),
)
def test_a_test_decides(here: Place, verdict: str, opens: object, code: str | None) -> None:
    here.engine.suite = says(report(verdict)) if verdict != "no-verdict" else no_gpu_ran
    found = answer()
    assert (found["open"], found["by"]) == (opens, "test")
    assert (found["error"] or {"code": None})["code"] == code
    if verdict == "unfit":
        assert "devices.kernel: of devices.kernel" in found["message"]
        assert found["error"]["fix"] == "run nvidia-smi"


def test_a_test_that_was_interrupted_opens_nothing_and_is_made_again(here: Place) -> None:
    here.engine.suite = lambda job: claims(interrupted(as_asked(report(), job)), 143)(job)
    said = main("gate", TAG, "--json")
    found = json.loads(said.out)
    assert (said.code, found["open"], found["error"]["code"]) == (130, None, "gate-no-verdict")
    assert "SIGTERM interrupted the run" in found["message"]
    here.engine.suite = says(report())
    assert answer()["by"] == "test"


def failing(name: str, at_fault: str | None) -> dict[str, Any]:
    """A report in which a check failed, by the word of its judge, or without one."""
    found = report()
    row_of(found, name).update(status="fail", cause="broken", fix="replace the GPU")
    row_of(found, name).update({"at_fault": at_fault} if at_fault else {})
    return {**found, "verdict": "unfit"}


FAULTS = [
    pytest.param("devices.kernel", "node", "node", id="a GPU computes wrongly"),
    pytest.param("health.memory", None, "node", id="ECC errors, by an image of an earlier version"),
    pytest.param("libraries.cuda", "image", "image", id="the image has another CUDA"),
    pytest.param("libraries.cuda", None, "image", id="the same, of an earlier version"),
    pytest.param("loading.shm", None, "configuration", id="too little shared memory"),
    pytest.param("devices.convolution", "unknown", "unknown", id="a hang"),
]


@pytest.mark.parametrize(("name", "said", "whose"), FAULTS)
def test_only_a_fault_of_the_node_closes_the_gate(
    here: Place, name: str, said: str | None, whose: str
) -> None:
    here.engine.suite = says(failing(name, said))
    found = answer("--level", "standard")
    closed = whose == "node"
    assert (found["open"], found["by"]) == (False if closed else None, "test")
    assert found["at_fault"] == whose
    assert found["error"]["code"] == ("gate-unfit" if closed else "gate-not-node")
    assert f"tested now: {name}: of {name}" in found["message"]
    assert found["error"]["fix"] == "replace the GPU"
    # and so does its record, without another test; only what is not known is tested again
    here.engine.suite = nothing_runs if whose != "unknown" else here.engine.suite
    again = answer("--level", "standard")
    assert (again["open"], again["at_fault"]) == (found["open"], whose)
    assert again["by"] == ("test" if whose == "unknown" else "record")
    assert f"{name} failed" in answer("--no-test")["message"]


def test_what_the_image_claims_to_be_at_fault_is_computed_here(here: Place) -> None:
    here.engine.suite = says({**failing("libraries.cuda", "image"), "at_fault": "node"})
    assert answer()["at_fault"] == "image"


def test_a_record_that_does_not_say_what_was_at_fault_is_tested_again(here: Place) -> None:
    """So it is with records of earlier versions."""
    here.engine.suite = says(report("unfit"))
    assert main("verify", TAG).code == 1
    forge_record(here.records[0], without_faults, here.home)
    assert answer("--no-test")["error"]["code"] == "gate-not-node"
    here.engine.suite = says(report("fit"))
    assert answer("--level", "standard")["open"] is True


def without_faults(predicate: dict[str, Any]) -> None:
    del predicate["at_fault"]
    for row in predicate["checks"]["failed"]:
        del row["at_fault"]


def no_gpu_ran(job: RunJob) -> RunResult:
    found = report()
    for row in found["checks"]:
        if gpu_check(row["id"]):
            row.update(status="skip", message="it did not run")
    return says(found)(job)


def test_a_failed_verification_keeps_the_gate_closed(here: Place) -> None:
    """A quick test cannot overrule a longer one that failed today."""
    here.engine.suite = says(report("unfit"))
    assert main("verify", TAG).code == 1
    forge_record(here.records[0], aged(0.1), here.home)  # its time has no more than seconds
    here.engine.suite = says(report("fit"))
    found = answer()
    assert (found["open"], found["by"], found["level"]) == (False, "record", "standard")
    assert "devices.kernel failed" in found["message"]
    assert "provision gate team/torch:1 --again --level standard" in found["error"]["fix"]
    assert answer("--again")["open"] is True
    assert answer()["open"] is False, "the quick run is of a lower level"
    assert answer("--again", "--level", "standard")["open"] is True
    assert answer()["open"] is True


def test_a_failure_of_long_ago_is_tested_again(here: Place) -> None:
    here.engine.suite = says(report("unfit"))
    assert main("verify", TAG).code == 1
    forge_record(here.records[0], aged(1.1), here.home)
    here.engine.suite = says(report("fit"))
    assert (found := answer())["open"] is True
    assert found["by"] == "test"


@cases(
    "spoil",
    ("cut short", lambda text: text[:-20]),
    ("another payload", lambda text: text.replace('"eyJ', '"eyK')),
    ("empty", lambda _: ""),
)
def test_a_damaged_record_opens_nothing(here: Place, spoil: Callable[[str], str]) -> None:
    assert main("verify", TAG).code == 0
    here.records[0].write_text(spoil(here.records[0].read_text()))
    assert answer("--no-test")["open"] is None
    assert answer()["by"] == "test"


# --- what goes wrong ----------------------------------------------------------------------------


@cases(
    "words message",
    ("an age in words", ["--max-age", "day"], "is not an age"),
    ("a negative age", ["--max-age", "-1h"], ""),
    ("an age beyond all bounds", ["--max-age", "999999d"], "is not an age"),
    ("no level", ["--level", "x"], "Unknown --level"),
    ("no time", ["--timeout", "0"], "--timeout"),
    ("no key", ["--trust", "no.pem"], "there is no such file"),
    ("a test and none", ["--no-test", "--again"], "not allowed with"),
)
def test_wrong_usage(here: Place, words: list[str], message: str) -> None:
    here.engine.suite = nothing_runs
    said = main("gate", TAG, *words)
    assert said.code == 2
    assert message in said.err


def test_an_engine_that_fails_is_not_an_answer(here: Place) -> None:
    here.engine.suite = broken()
    said = main("gate", TAG, "--json")
    found = json.loads(said.out)
    assert (said.code, set(found), found["open"]) == (5, RESULT, None)
    said = main("gate", TAG)
    assert said.out.startswith("undecided: The engine stopped")
    assert "The engine stopped" not in said.err


def test_a_report_that_contradicts_itself_does_not_close_a_node(here: Place) -> None:
    """It says something of the image: to drain nodes for it would be a false alarm."""

    def lies(job: RunJob) -> RunResult:
        return claims({**as_asked(report("unfit"), job), "verdict": "fit"})(job)

    here.engine.suite = lies
    found = answer()
    assert (found["open"], found["error"]["code"]) == (None, "report-contradiction")


@pytest.mark.parametrize(
    "name",
    [pytest.param("team/none:1", id="no image"), pytest.param("oci:nowhere:a", id="no place")],
)
def test_an_image_that_is_not_here_is_undecided(here: Place, name: str) -> None:
    del here
    said = main("gate", name)
    assert said.code not in {0, 1, 70}
    assert said.out.startswith("undecided: ")


def test_records_that_cannot_be_kept_do_not_close_the_gate(here: Place) -> None:
    (here.path / "state").write_text("a file where the directory should be")
    said = main("gate", TAG)
    assert (said.code, said.out[:5]) == (0, "open:")
    assert "warning" in said.err


def test_two_jobs_at_once_are_one_test(here: Place) -> None:
    """The second waits for the first, whose record then answers both."""
    assert main("verify", TAG).code == 0  # so that the directory and the name are known
    (here.home / "gate").mkdir()
    lock = here.home / "gate" / f"{here.records[0].name}.lock"
    here.records[0].unlink()
    held = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    first = says(report())
    ran: list[int] = []

    def counted(job: RunJob) -> RunResult:
        ran.append(1)
        return first(job)

    here.engine.suite = counted
    second = threading.Timer(0.5, os.close, (held,))
    second.start()
    assert answer()["by"] == "test"
    second.join()
    assert answer()["by"] == "record"
    assert len(ran) == 1


# --- rules --------------------------------------------------------------------------------------


def recorded(
    verdict: str, level: str, hours: float, changed: tuple[RecordChange, ...], at_fault: str | None
) -> Checked:
    then = (NOW - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = Statement(
        name=TAG,
        image="sha256:1",
        time=then,
        verdict=verdict,
        level=level,
        lock=None,
        host=recorded_host(FACTS, kernel=None, engine=None),
        framework="pytorch",
        checks=(
            {
                "id": "devices.kernel",
                "status": "pass" if verdict == "fit" else "fail",
                "at_fault": None if verdict == "fit" else at_fault,
            },
        ),
        at_fault=None if verdict == "fit" else at_fault,
    )
    code = None if verdict == "fit" else "record-unfit"
    judged = Judgement(code=code, message="", statement=made, changed=changed)
    return Checked(image="sha256:1", path=Path("r"), outcome=judged)


RECORDS = st.builds(
    recorded,
    st.sampled_from(["fit", "unfit"]),
    st.sampled_from(LEVELS),
    st.floats(0, 48),
    st.sampled_from([(), (RecordChange(what="cards", was="a", now="b", matters=False),)]),
    st.sampled_from([*FAULTS_OF_RECORDS, None]),
)


@given(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from(LEVELS), st.integers(1, 48))
def test_the_gate_opens_only_by_a_fit_record_that_nothing_contradicts(
    records: list[Checked], level: str, hours: int
) -> None:
    rule = GateRule(level=level, max_age=timedelta(hours=hours), timeout_s=1)
    found = answer_of_records(TAG, records, rule, NOW)
    counted = [
        judged.statement
        for one in records
        if isinstance(judged := one.outcome, Judgement)
        and judged.statement is not None
        and not judged.changed
        and NOW - judged.statement.ended <= rule.max_age
    ]
    rank = LEVELS.index
    fits = [one for one in counted if one.verdict == "fit"]
    unfits = [one for one in counted if one.verdict == "unfit"]
    standing = [
        bad
        for bad in unfits
        if not any(good.ended > bad.ended and rank(good.level) >= rank(bad.level) for good in fits)
    ]
    if any(bad.at_fault == "node" for bad in standing):
        assert found.opens is False
    elif standing:
        assert (found.opens, found.exit_code, found.code) == (None, 7, "gate-not-node")
        retested = all(
            bad.at_fault in {"unknown", None} and rank(level) >= rank(bad.level) for bad in standing
        )
        assert found.by == (None if retested else "record")
    elif any(rank(one.level) >= rank(level) for one in fits):
        assert found.opens is True
    else:
        assert found.opens is None
        assert found.code
        assert found.fix is None or TAG in found.fix


@cases(
    "age words",
    ("a clock that was set back", timedelta(seconds=-3), "0 s"),
    ("less than two minutes", timedelta(seconds=119), "119 s"),
    ("less than two hours", timedelta(minutes=90), "90 min"),
    ("less than two days", timedelta(hours=47), "47 h"),
    ("days", timedelta(days=9), "9 d"),
)
def test_an_age_in_words(age: timedelta, words: str) -> None:
    assert in_words(age) == words
