"""`provision gate IMAGE`: may a job with this image start on this node?

A record of this very node answers in a moment. Without one that is new enough, the suite runs, and
its record answers the next job. A verification that failed through the node keeps the gate closed
until one of the same or a higher level passes, or until it is too old to count. If the image, its
start or something unknown is at fault, the gate decides nothing, since a closed one drains nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from images.errors import Failure
from provision.attestation.record.statement import LEVELS, Statement
from provision.attestation.record.store import GATE_RECORDS, RECORDS, record_path
from provision.attestation.record.verdict import Judgement
from provision.errors import Exit
from provision.verification.record_check import Checked, RecordCase, check_record
from provision.verification.suite import interruption

_UNFIT = "record-unfit"
_AT_FAULT = {
    "image": "image at fault",
    "configuration": "configuration at fault",
    "unknown": "fault unknown",
}
"""How the answer of the gate begins if a check failed and the node is not at fault."""
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """What opens the gate: a run of at least `level` that ended at most `max_age` ago.

    `again`: only a run that starts now; `test`: the suite runs if no record answers, for at most
    `timeout_s`.
    """

    level: str
    max_age: timedelta
    timeout_s: float
    test: bool = True
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswer:
    """`opens` None: it cannot be decided; `failed` is then the exit code of what went wrong, if
    something did. `by`: what decided; `at_fault`: what a failed check speaks against; `code`: of
    the error, if it is not open. `image`: its id, if the image was found; `when`: the end of the
    recorded run, or the start of one just made, in UTC.
    """

    opens: bool | None
    by: Literal["record", "test"] | None
    message: str
    image: str | None = None
    at_fault: str | None = None
    code: str | None = None
    fix: str | None = None
    level: str | None = None
    when: str | None = None
    record: Path | None = None
    failed: Exit = Exit.NO_VERDICT

    @property
    def exit_code(self) -> Exit:
        """The exit code of the command."""
        if self.opens is None:
            return self.failed
        return Exit.DONE if self.opens else Exit.UNFIT


def ask_gate(
    case: RecordCase,
    rule: GateRule,
    *,
    home: Path,
    trust: Sequence[Path],
    run: Callable[[], Mapping[str, Any]],
) -> GateAnswer:
    """The answer of the records, or else of the suite: `run` runs it, keeps its record among the
    gate's, and returns its report. One process of a user tests an image; others wait for it, and
    then its record answers them.
    """

    def of_records() -> GateAnswer:
        checked = [
            check_record(
                case,
                home=home,
                path=None,
                trust=trust,
                level=None,
                folder=folder,
                attached=False,
            )
            for folder in (RECORDS, GATE_RECORDS)
        ]
        return answer_of_records(case.name, checked, rule, datetime.now(timezone.utc))

    if rule.again:
        return answer_of_report(case, run(), rule)
    found = of_records()
    if found.by is not None or not rule.test:
        return found
    with _turn(record_path(home, case.subject.image_id, case.host, GATE_RECORDS), rule.timeout_s):
        found = of_records()
        return found if found.by is not None else answer_of_report(case, run(), rule)


def answer_of_records(
    name: str, checked: Sequence[Checked], rule: GateRule, now: datetime
) -> GateAnswer:
    """What the records of an image say; undecided if none of them counts, for the first reason."""
    fit: list[tuple[Statement, Checked]] = []
    unfit: list[tuple[Statement, Checked]] = []
    why: list[GateAnswer] = []
    for one in checked:
        outcome = one.outcome
        statement = outcome.statement if isinstance(outcome, Judgement) else None
        if statement is None or outcome.code not in {None, _UNFIT}:
            code, said, fix = outcome.code, outcome.message, outcome.fix
            why.append(_undecided(one, said, fix, code=code))
        elif refused := _does_not_count(name, one, statement, rule, now):
            why.append(refused)
        else:
            (unfit if outcome.code else fit).append((statement, one))
    standing = [
        _by_record(name, bad, one, rule, now)
        for bad, one in unfit
        if not any(
            good.ended > bad.ended and _rank(good.level) >= _rank(bad.level) for good, _ in fit
        )
    ]
    if standing:  # a closed gate before one that decides nothing, and that before a new test
        return min(standing, key=lambda found: (found.opens is not False, found.by is None))
    enough = [(good, one) for good, one in fit if _rank(good.level) >= _rank(rule.level)]
    if enough:
        good, one = max(enough, key=lambda pair: pair[0].ended)
        return _by_record(name, good, one, rule, now)
    for good, one in fit:
        said = f"Tested at level {good.level} only; the requested level is {rule.level}."
        why.append(_undecided(one, said, _again(name), code="record-lower-level"))
    absent = [one for one in why if one.code == "record-missing"]
    return next((one for one in why if one not in absent), why[0])


def _does_not_count(
    name: str, one: Checked, statement: Statement, rule: GateRule, now: datetime
) -> GateAnswer | None:
    """Why a valid record does not decide here; None: it does.

    A record serves a kind of machine. Here a node is asked about: its cards must be the very ones.
    """
    changed = one.outcome.changed if isinstance(one.outcome, Judgement) else ()
    if any(change.what == "cards" for change in changed):
        said = "The record is of another machine of this kind: its GPUs are other cards."
        return _undecided(one, said, _again(name), code="record-other-cards")
    if now - statement.ended > rule.max_age:
        said = f"Tested {_ago(now - statement.ended)}; at most {in_words(rule.max_age)} is allowed."
        return _undecided(one, said, _again(name), code="record-too-old")
    return None


def _again(name: str) -> str:
    return f"Test it now: provision gate {name}"


def _undecided(one: Checked, message: str, fix: str | None, *, code: str | None) -> GateAnswer:
    return GateAnswer(
        opens=None, by=None, message=message, image=one.image, code=code, fix=fix, record=one.path
    )


def _by_record(
    name: str, statement: Statement, one: Checked, rule: GateRule, now: datetime
) -> GateAnswer:
    """The answer of a record. If it is not known what was at fault, a test of the level of `rule`
    may tell, unless the record is of a higher one.
    """
    said = f"{statement.verdict} at level {statement.level}, tested {_ago(now - statement.ended)}"
    found = GateAnswer(
        opens=True,
        by="record",
        message=said,
        image=one.image,
        level=statement.level,
        when=statement.time,
        record=one.path,
    )
    if statement.verdict == "fit":
        return found
    again = f"provision gate {name} --again --level {statement.level}"
    found = _failed(
        found,
        statement.at_fault,
        message=f"{said}: {_first_failed(statement)}",
        code=_UNFIT,
        fix=f"Repair it, then test it again: {again}",
    )
    tells = _rank(rule.level) >= _rank(statement.level)
    return replace(found, by=None) if found.at_fault == "unknown" and tells else found


def _failed(
    found: GateAnswer, at_fault: str | None, *, message: str, code: str, fix: str
) -> GateAnswer:
    """Closed if the node is at fault, else undecided."""
    at_fault = at_fault or "unknown"  # a record of an earlier version does not say it
    found = replace(found, at_fault=at_fault, fix=fix)
    if at_fault == "node":
        return replace(found, opens=False, message=message, code=code)
    message = f"{_AT_FAULT[at_fault]}: {message}"
    return replace(found, opens=None, message=message, code="gate-not-node")


def _first_failed(statement: Statement) -> str:
    """The first failed check that decided, by id."""
    failed = [row for row in statement.checks if row["status"] in {"fail", "error"}]
    if not failed:
        return "a check failed"
    first = next((row for row in failed if row["at_fault"] == statement.at_fault), failed[0])
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{first['id']} failed{more}"


def answer_of_report(case: RecordCase, report: Mapping[str, Any], rule: GateRule) -> GateAnswer:
    """The answer of a run that has just ended."""
    verdict, at_fault = report["verdict"], report.get("at_fault")
    said = f"{verdict} at level {rule.level}, tested now"
    found = GateAnswer(
        opens=True,
        by="test",
        message=said,
        image=case.subject.image_id,
        level=rule.level,
        when=report["environment"].get("started"),
    )
    if verdict == "fit":
        return found
    if verdict != "unfit" and (name := interruption(report)):
        said += f": {name} interrupted the run"
        fix = f"Test it again: provision gate {case.name}"
        found = replace(found, opens=None, message=said, code="gate-no-verdict", fix=fix)
        return replace(found, failed=Exit.INTERRUPTED)
    if verdict != "unfit":
        said += ": no check of a GPU could run"
        fix = "See what the node has: provision detect"
        return replace(found, opens=None, message=said, code="gate-no-verdict", fix=fix)
    fix = f"See all checks: provision verify {case.name}"
    failed = [row for row in report["checks"] if row["status"] in {"fail", "error"}]
    first = next((row for row in failed if row["at_fault"] == at_fault), None)
    if first is not None:
        said += f": {first['id']}: {first['message']}"
        fix = first["fix"] or fix
    return _failed(found, at_fault, message=said, code="gate-unfit", fix=fix)


def answer_of_failure(failure: Failure) -> GateAnswer:
    """Undecided: a failure says nothing of the node, even if the report contradicts itself."""
    code = Exit(failure.exit_code)
    return GateAnswer(
        opens=None,
        by=None,
        message=failure.message,
        code=failure.code,
        fix=failure.fix,
        failed=Exit.NO_VERDICT if code in {Exit.DONE, Exit.UNFIT} else code,
    )


def answer_to_json(answer: GateAnswer) -> dict[str, Any]:
    """The result of the command; the format is always the same."""
    code = answer.code
    return {
        "schema": 1,
        "open": answer.opens,
        "by": answer.by,
        "at_fault": answer.at_fault,
        "level": answer.level,
        "when": answer.when,
        "image": answer.image,
        "record": None if answer.record is None else str(answer.record),
        "message": answer.message,
        "error": {"code": code, "message": answer.message, "fix": answer.fix} if code else None,
    }


def _rank(level: str) -> int:
    return LEVELS.index(level)


_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))


def in_words(age: timedelta) -> str:
    """An age, rounded down in the largest unit that it has two of: "36 h", "3 d", "40 s"."""
    for unit, size in _UNITS:
        if age >= 2 * size:
            return f"{age // size} {unit}"
    return f"{max(0, int(age.total_seconds()))} s"


def _ago(age: timedelta) -> str:
    return f"{in_words(age)} ago"


@contextlib.contextmanager
def _turn(record: Path, timeout_s: float) -> Iterator[None]:
    """Wait until no other process tests for the same record, at most as long as a test may take.

    Where no lock can be had, two tests may run at once, which only costs time.
    """
    descriptor = -1
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(f"{record}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + timeout_s
    try:
        while descriptor >= 0 and time.monotonic() < end:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_PAUSE_S)
            except OSError:
                break
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
