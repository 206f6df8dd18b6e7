"""What a record says: an in-toto Statement v1, made from a report and read back.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from provision.attestation.record.errors import (
    RecordTamperedError,
    RecordUnknownKeyError,
    RecordUnreadableError,
)
from provision.attestation.record.host import RecordedHost, host_to_json, parse_host
from provision.attestation.signing.parser import CLOCK, SHA256, TIME, StatementKind, clock_text
from provision.model.plan import Plan
from provision.version import VERSION

PREDICATE_TYPE = "urn:gpu-provision:verification-record:1"
VERDICTS = ("fit", "unfit", "no-verdict")
LEVELS = ("quick", "standard", "full")
FAULTS = ("node", "image", "configuration", "unknown")
"""What can be at fault when a check fails, by the suite: docs/checks.md."""

_CHECK = re.compile(r"[a-z]{1,40}\.[a-z0-9-]{1,60}")
_MOST_CHECKS = 500
_GROUPS = {"passed": ("pass",), "failed": ("fail", "error"), "skipped": ("skip",)}
_PLAN_KEYS = ("cuda", "wheel_tag", "cudnn", "nccl", "python", "arch", "flavour")
_METRIC_KEYS = ("name", "value", "unit", "better", "repeats", "spread", "labels", "of_spec")
_MOST_DIGESTS = 8
_COMPARED = "compared"

RECORD = StatementKind(
    predicate_type=PREDICATE_TYPE,
    name="record",
    renew="Make a new record: provision verify IMAGE",
    unreadable=RecordUnreadableError,
    tampered=RecordTamperedError,
    unknown_key=RecordUnknownKeyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A record's content, as far as it is judged. `image` is "sha256:...", `also` are other digests
    of the same image, `time` when the suite had ended, in UTC. `checks` are rows of a report, as
    far as a record keeps them; `at_fault` is one of FAULTS, None if none failed and in records of
    earlier versions. `has_tables`: the image's tables of contents were compared with its files, so
    that it holds for lazy starts.
    """

    name: str
    image: str
    time: str
    verdict: str
    level: str
    lock: str | None
    host: RecordedHost
    framework: str
    checks: tuple[Mapping[str, Any], ...]
    also: tuple[str, ...] = ()
    has_tables: bool = False
    at_fault: str | None = None

    @property
    def ended(self) -> datetime:
        """`time` as a datetime."""
        return datetime.strptime(self.time, CLOCK).replace(tzinfo=timezone.utc)

    @property
    def images(self) -> frozenset[str]:
        """Every digest that the record names."""
        return frozenset({self.image, *self.also})


def lock_digest(label: str | None) -> str | None:
    """The digest of the lock that an image's label names, if it is valid."""
    return label if label and SHA256.fullmatch(label) else None


def make_statement(
    report: Mapping[str, Any],
    *,
    report_sha256: str,
    name: str,
    image: str,
    plan: Plan,
    lock: str | None,
    host: RecordedHost,
    level: str,
    now: datetime,
    also: Sequence[str] = (),
    has_tables: bool = False,
) -> dict[str, Any]:
    """The statement about one run of the suite.

    `also` are other digests of the same image: an engine knows it by that of its configuration, a
    registry by that of its manifest. `has_tables`: as in `Statement`.
    """
    summary = {key: getattr(plan, key) for key in _PLAN_KEYS}
    framework = {"name": plan.framework, "version": plan.framework_version}
    predicate = {
        "schema": 1,
        "verifier": {"name": "gpu-provision", "version": VERSION},
        "time": clock_text(now),
        "verdict": report["verdict"],
        "level": level,
        "lock": {"sha256": lock} if lock_digest(lock) else None,
        **({"tables": _COMPARED} if has_tables else {}),
        "plan": {"framework": framework, **summary},
        "host": host_to_json(host),
        "at_fault": report.get("at_fault"),
        "checks": {
            group: [_check(row) for row in report["checks"] if row["status"] in words]
            for group, words in _GROUPS.items()
        },
        "report": {"sha256": report_sha256},
    }
    return RECORD.statement(name, (image, *also), predicate)


def _check(row: Mapping[str, Any]) -> dict[str, Any]:
    measured = row["measured"]
    metrics = measured.get("metrics")
    said = {} if row["status"] == "pass" else {"message": row["message"]}
    said |= {"at_fault": row["at_fault"]} if "at_fault" in row else {}
    return {
        "id": row["id"],
        **said,
        "on_cpu": measured.get("device") == "cpu",
        "metrics": [
            {key: metric.get(key) for key in _METRIC_KEYS}
            for metric in (metrics if isinstance(metrics, list) else ())
            if isinstance(metric, dict)
        ],
    }


def parse_statement(payload: bytes) -> Statement:
    """The statement in a payload whose signature was verified."""
    data, predicate = RECORD.predicate(payload)
    if predicate.get("schema") != 1 or isinstance(predicate.get("schema"), bool):
        raise RECORD.unlike(f"predicate.schema is {predicate.get('schema')!r:.20}, not 1")
    name, (image, *also) = RECORD.subjects(data, most=_MOST_DIGESTS)
    lock = predicate.get("lock")
    plan = RECORD.object_at("plan", predicate.get("plan"))
    RECORD.sha256_at("report", predicate.get("report"))
    return Statement(
        name=name,
        image=image,
        also=tuple(also),
        time=_time(predicate.get("time")),
        verdict=RECORD.word_at("verdict", predicate.get("verdict"), VERDICTS),
        level=RECORD.word_at("level", predicate.get("level"), LEVELS),
        lock=None if lock is None else RECORD.sha256_at("lock", lock),
        host=parse_host(RECORD, predicate.get("host")),
        framework=RECORD.text_at(
            "framework", RECORD.object_at("plan.framework", plan.get("framework")).get("name")
        ),
        checks=_rows(RECORD.object_at("checks", predicate.get("checks"))),
        has_tables=predicate.get("tables") == _COMPARED,
        at_fault=_at_fault(predicate),
    )


def _at_fault(found: Mapping[str, Any]) -> str | None:
    value = found.get("at_fault")
    return None if value is None else RECORD.word_at("at_fault", value, FAULTS)


def _time(value: object) -> str:
    text = RECORD.text_at("time", value, TIME)
    try:
        datetime.strptime(text, CLOCK)  # noqa: DTZ007  the pattern ends in Z
    except ValueError as error:
        raise RECORD.unlike(f"{text} is not a time") from error
    return text


def _rows(checks: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The rows of all groups, each with the status of its group."""
    found: list[Mapping[str, Any]] = []
    for group, (status, *_) in _GROUPS.items():
        rows = checks.get(group)
        if not isinstance(rows, list) or len(rows) > _MOST_CHECKS:
            raise RECORD.unlike(f"checks.{group} is not valid")
        for row in rows:
            on_cpu = RECORD.object_at(f"checks.{group}", row).get("on_cpu")
            if not isinstance(on_cpu, bool):
                raise RECORD.unlike(f"checks.{group}.on_cpu is not valid")
            name = RECORD.text_at(f"checks.{group}.id", row.get("id"), _CHECK)
            whose = _at_fault(row)
            found.append({"id": name, "status": status, "on_cpu": on_cpu, "at_fault": whose})
    return tuple(found)
