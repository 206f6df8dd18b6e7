"""Forged reports and records: what an image, or who holds a key, may claim against the facts.

Each row is a sentence, what it does to an honest document, and the code of the refusal.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provision.attestation.signing.envelope import seal
from provision.attestation.signing.keys import own_signer
from tests.kit.fake_engine import report, row_of

Document = dict[str, Any]
Edit = Callable[[Document], None]


def fails(name: str) -> Edit:
    """A check of the report failed, whatever the verdict."""

    def edit(found: Document) -> None:
        row_of(found, name).update(status="fail", cause="broken", fix=None)

    return edit


def every_check(**changes: Any) -> Edit:
    """The same of every check."""

    def edit(found: Document) -> None:
        for row in found["checks"]:
            row.update(copy.deepcopy(changes))

    return edit


def first_check(**changes: Any) -> Edit:
    """Something of the first check."""
    return lambda found: found["checks"][0].update(changes)


def whole(**changes: Any) -> Edit:
    """Something of the report itself."""
    return lambda found: found.update(changes)


def environment(**changes: Any) -> Edit:
    """Something of where it says that it ran."""
    return lambda found: found["environment"].update(changes)


def without(name: str) -> Edit:
    """A check is left out."""

    def edit(found: Document) -> None:
        found["checks"].remove(row_of(found, name))

    return edit


def more(**changes: Any) -> Edit:
    """One check more: a copy of the first, changed."""

    def edit(found: Document) -> None:
        found["checks"].append({**found["checks"][0], **changes})

    return edit


def nested(depth: int) -> Any:
    """A list in a list in a list, and so on."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


AGAINST_ITSELF: list[tuple[str, Edit]] = [
    ("a check of a GPU failed and the verdict is fit", fails("devices.kernel")),
    ("a check that needs no GPU failed and the verdict is fit", fails("libraries.numpy")),
    ("a check broke and the verdict is fit", first_check(status="error", cause="broken", fix=None)),
    ("nothing ran and the verdict is fit", every_check(status="skip")),
    (
        "one check of a GPU did not run and the verdict is fit",
        lambda found: row_of(found, "memory.free").update(status="skip"),
    ),
    ("all passed on the CPU and the verdict is fit", every_check(measured={"device": "cpu"})),
    ("it was emulated and the verdict is fit", environment(emulator="qemu-aarch64")),
    ("its environment has no GPU and the verdict is fit", environment(gpus=[])),
    ("nothing failed and the verdict is unfit", whole(verdict="unfit")),
    ("all is proven and the verdict is no-verdict", whole(verdict="no-verdict")),
]
MALFORMED: list[tuple[str, Edit]] = [
    ("there are no checks", whole(checks=[])),
    ("the checks are a word", whole(checks="all")),
    ("a check is a number", whole(checks=[1])),
    ("the verdict is a word of its own", whole(verdict="splendid")),
    ("the verdict is a list", whole(verdict=["fit"])),
    ("a status is a word of its own", first_check(status="passed")),
    ("a status is a number", first_check(status=1)),
    ("a message is a number", first_check(message=1)),
    ("an id climbs", first_check(id="../../etc")),
    ("a time is negative", first_check(seconds=-1)),
    ("a number is larger than any double", first_check(seconds=10**400)),
    ("what was measured is a list", first_check(measured=[])),
    ("a check has no title", lambda found: found["checks"][0].pop("title")),
    ("a check that passed has a cause of failure", first_check(cause="none")),
    ("there is no environment", lambda found: found.pop("environment")),
    ("the schema is a later one", whole(schema=2)),
    ("the schema is true", whole(schema=True)),
    ("a check of a GPU is missing", without("devices.kernel")),
    ("a check that needs no GPU is missing", without("libraries.numpy")),
    ("a check is in it twice", more()),
    ("a failed check is in it a second time, as passed", more(status="fail", cause="broken")),
    ("a check that nobody knows is in it", more(id="devices.unheard-of")),
    ("a check of a higher level is in it", more(id="memory.batch")),
    ("it is of another level", whole(level="quick")),
    ("it is of another image", environment(image=f"sha256:{'ee' * 32}")),
    ("it is of another framework", environment(framework={"name": "jax", "version": "1"})),
    ("it has a comparison that nobody asked for", whole(comparison={"worse": False})),
    ("something in it is nested too deeply", first_check(measured={"a": nested(200)})),
]
REPORTS = [
    *((sentence, edit, "report-contradiction") for sentence, edit in AGAINST_ITSELF),
    *((sentence, edit, "bad-report") for sentence, edit in MALFORMED),
]


def forged(edit: Edit, verdict: str = "fit") -> Document:
    """An honest report, changed."""
    found = report(verdict)
    edit(found)
    return found


# --- records ----------------------------------------------------------------------------------


def moved(name: str, group: str) -> Edit:
    """A check that passed is put among others."""

    def edit(predicate: Document) -> None:
        passed = predicate["checks"]["passed"]
        (row,) = [row for row in passed if row["id"] == name]
        passed.remove(row)
        predicate["checks"][group].append({**row, "message": "as it is"})

    return edit


def only_skips(predicate: Document) -> None:
    """No check ran."""
    predicate["checks"]["skipped"] = predicate["checks"]["passed"]
    predicate["checks"]["passed"] = []


def on_the_cpu(predicate: Document) -> None:
    """All checks ran without the GPU."""
    for row in predicate["checks"]["passed"]:
        row["on_cpu"] = True


RECORDS: list[tuple[str, Edit, int, str]] = [
    ("a check failed", moved("devices.kernel", "failed"), 7, "record-contradiction"),
    ("a check of a GPU did not run", moved("memory.free", "skipped"), 7, "record-contradiction"),
    ("no check ran", only_skips, 7, "record-contradiction"),
    ("all checks ran on the CPU", on_the_cpu, 7, "record-contradiction"),
    ("a check is missing", lambda p: p["checks"]["passed"].pop(), 7, "record-contradiction"),
    (
        "a check is in it twice",
        lambda p: p["checks"]["passed"].append(p["checks"]["passed"][0]),
        7,
        "record-contradiction",
    ),
    ("its level is higher than its checks", whole(level="full"), 7, "record-contradiction"),
    ("unfit, though nothing failed", whole(verdict="unfit"), 7, "record-contradiction"),
    ("it is from the future", whole(time="2999-01-01T00:00:00Z"), 7, "record-from-future"),
    ("it is of another lock", whole(lock={"sha256": "e5" * 32}), 7, "record-other-lock"),
    ("it is of no lock", whole(lock=None), 7, "record-other-lock"),
    ("its time does not exist", whole(time="2026-02-30T00:00:00Z"), 2, "record-unreadable"),
    ("its report has no digest", whole(report={}), 2, "record-unreadable"),
    ("its checks are a list", whole(checks=[]), 2, "record-unreadable"),
    (
        "an id would be an option",
        lambda p: p["checks"]["passed"][0].update(id="--only"),
        2,
        "record-unreadable",
    ),
]


def forge_record(path: Path, edit: Edit, home: Path) -> None:
    """Change a record and sign it again with this machine's own key."""
    envelope = json.loads(path.read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    edit(statement["predicate"])
    path.write_bytes(seal(statement, own_signer(home / "keys")))
