"""What a record says: an in-toto Statement v1, made from a report and read back.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from provision.attestation.record.errors import RecordUnreadableError
from provision.model.plan import HostFacts, Plan
from provision.version import VERSION

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:gpu-provision:verification-record:1"
VERDICTS = ("fit", "unfit", "no-verdict")
LEVELS = ("quick", "standard", "full")

_IMAGE = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_CHECK = re.compile(r"[a-z]{1,40}\.[a-z0-9-]{1,60}")
_MOST_CHECKS = 500
_CLOCK = "%Y-%m-%dT%H:%M:%SZ"
_GROUPS = {"passed": ("pass",), "failed": ("fail", "error"), "skipped": ("skip",)}
_PLAN_KEYS = ("cuda", "wheel_tag", "cudnn", "nccl", "python", "arch", "flavour")
_METRIC_KEYS = ("name", "value", "unit", "better", "repeats", "spread", "labels", "of_spec")
_SLUG_LENGTH = 60
_MOST_DIGESTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A record's content, as far as it is judged. `image` is "sha256:...", `also` are other digests
    of the same image, `host` as `host_to_json` writes it, `time` when the suite had ended, in UTC.
    `checks` are rows of a report, as far as a record keeps them.
    """

    name: str
    image: str
    time: str
    verdict: str
    level: str
    lock: str | None
    host: Mapping[str, Any]
    framework: str
    checks: tuple[Mapping[str, Any], ...]
    also: tuple[str, ...] = ()

    @property
    def ended(self) -> datetime:
        """`time`, to reckon with."""
        return datetime.strptime(self.time, _CLOCK).replace(tzinfo=timezone.utc)

    @property
    def images(self) -> frozenset[str]:
        """Every digest that the record speaks of."""
        return frozenset({self.image, *self.also})


def host_to_json(
    facts: HostFacts, *, kernel: str | None, engine: str | None = None
) -> dict[str, Any]:
    """What of a machine bears on the proof. No name of machine or user; of a GPU's UUID its hash,
    which tells whether it is the same card and not which one it is.
    """
    return {
        "arch": facts.arch,
        "driver": facts.driver,
        "driver_cuda": facts.driver_cuda,
        "kernel": kernel,
        "glibc": facts.glibc,
        "os": {"id": facts.os_id, "version": facts.os_version},
        "wsl": facts.wsl,
        "engine": engine,
        "gpus": None
        if facts.gpus is None
        else [
            {
                "name": gpu.name,
                "compute_capability": "{}.{}".format(*gpu.compute_capability)
                if gpu.compute_capability
                else None,
                "memory_mib": gpu.memory_mib,
                "mig": gpu.mig,
                "uuid_sha256": hashlib.sha256(gpu.uuid.encode()).hexdigest() if gpu.uuid else None,
            }
            for gpu in facts.gpus
        ],
    }


def host_class(host: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of machine: CPU architecture, and its GPUs by name, capability and MIG mode,
    in an order that no slot number decides. The driver is not of it: it can be changed.
    """
    gpus = host["gpus"]
    kinds = [[gpu["name"], gpu["compute_capability"], gpu["mig"] is True] for gpu in gpus or ()]
    return {
        "arch": host["arch"],
        "gpus": None if gpus is None else sorted(kinds, key=json.dumps),
    }


def gpus_in_words(host: Mapping[str, Any]) -> str:
    """ "2 x NVIDIA H100 80GB HBM3 (9.0)"."""
    kinds = host_class(host)["gpus"]
    if not kinds:
        return "no GPU" if kinds is not None else "GPUs not known"
    words = [
        f"{name or 'unnamed GPU'} ({capability or 'capability not known'}{', MIG' if mig else ''})"
        for name, capability, mig in kinds
    ]
    return ", ".join(f"{words.count(word)} x {word}" for word in dict.fromkeys(words))


def slug(host: Mapping[str, Any]) -> str:
    """The kind of machine as part of a file's name: readable, and unlike for unlike kinds."""
    words = re.sub(r"[^a-z0-9]+", "-", gpus_in_words(host).lower()).strip("-")
    text = json.dumps(host_class(host), sort_keys=True)
    return f"{words[:_SLUG_LENGTH].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def lock_digest(label: str | None) -> str | None:
    """The digest of the lock that an image's label names, if it is one."""
    return label if label and _SHA256.fullmatch(label) else None


def make_statement(
    report: Mapping[str, Any],
    *,
    report_sha256: str,
    name: str,
    image: str,
    plan: Plan,
    lock: str | None,
    host: Mapping[str, Any],
    level: str,
    now: datetime,
    also: Sequence[str] = (),
) -> dict[str, Any]:
    """The statement on one run of the suite.

    `also` are other digests of the same image: an engine knows it by that of its configuration, a
    registry by that of its manifest.
    """
    summary = {key: getattr(plan, key) for key in _PLAN_KEYS}
    framework = {"name": plan.framework, "version": plan.framework_version}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
            for digest in dict.fromkeys((image, *also))
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "schema": 1,
            "verifier": {"name": "gpu-provision", "version": VERSION},
            "time": now.astimezone(timezone.utc).strftime(_CLOCK),
            "verdict": report["verdict"],
            "level": level,
            "lock": {"sha256": lock} if lock_digest(lock) else None,
            "plan": {"framework": framework, **summary},
            "host": dict(host),
            "checks": _checks(report["checks"]),
            "report": {"sha256": report_sha256},
        },
    }


def _checks(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {
        group: [_check(row) for row in rows if row["status"] in words]
        for group, words in _GROUPS.items()
    }


def _check(row: Mapping[str, Any]) -> dict[str, Any]:
    measured = row["measured"]
    metrics = measured.get("metrics")
    said = {} if row["status"] == "pass" else {"message": row["message"]}
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
    """The statement in a payload whose signature was found right."""
    data = _object(read_json(payload), "the statement")
    if data.get("_type") != STATEMENT_TYPE or data.get("predicateType") != PREDICATE_TYPE:
        raise _unlike("its type is another")
    predicate = _object(data.get("predicate"), "predicate")
    if predicate.get("schema") != 1 or isinstance(predicate.get("schema"), bool):
        raise _unlike(f"predicate.schema is {predicate.get('schema')!r:.20}, not 1")
    name, (image, *also) = _subjects(data.get("subject"))
    lock = predicate.get("lock")
    plan = _object(predicate.get("plan"), "plan")
    _text(_object(predicate.get("report"), "report").get("sha256"), "report.sha256", _SHA256)
    return Statement(
        name=name,
        image=image,
        also=tuple(also),
        time=_time(predicate.get("time")),
        verdict=_one_of(predicate.get("verdict"), "verdict", VERDICTS),
        level=_one_of(predicate.get("level"), "level", LEVELS),
        lock=None if lock is None else _text(_object(lock, "lock").get("sha256"), "lock", _SHA256),
        host=_host(_object(predicate.get("host"), "host")),
        framework=_text(_object(plan.get("framework"), "plan.framework").get("name"), "framework"),
        checks=_rows(_object(predicate.get("checks"), "checks")),
    )


def _time(value: object) -> str:
    text = _text(value, "time", _TIME)
    try:
        datetime.strptime(text, _CLOCK)  # noqa: DTZ007  the pattern ends in Z
    except ValueError:
        raise _unlike(f"{text} is not a time") from None
    return text


def _rows(checks: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The rows of `_checks`, with the status that puts them into their group."""
    found: list[Mapping[str, Any]] = []
    for group, (status, *_) in _GROUPS.items():
        rows = checks.get(group)
        if not isinstance(rows, list) or len(rows) > _MOST_CHECKS:
            raise _unlike(f"checks.{group} is not as it should be")
        for row in rows:
            on_cpu = _object(row, f"checks.{group}").get("on_cpu")
            if not isinstance(on_cpu, bool):
                raise _unlike(f"checks.{group}.on_cpu is not as it should be")
            name = _text(row.get("id"), f"checks.{group}.id", _CHECK)
            found.append({"id": name, "status": status, "on_cpu": on_cpu})
    return tuple(found)


def _subjects(found: object) -> tuple[str, list[str]]:
    """One image under one name, by each of its digests."""
    if not isinstance(found, list) or not 0 < len(found) <= _MOST_DIGESTS:
        raise _unlike("it speaks of none or of several images")
    rows = [_object(row, "subject") for row in found]
    names = {_text(row.get("name"), "subject.name") for row in rows}
    if len(names) != 1:
        raise _unlike("it speaks of none or of several images")
    digests = [_object(row.get("digest"), "subject.digest").get("sha256") for row in rows]
    return names.pop(), [_text(f"sha256:{one}", "subject.digest", _IMAGE) for one in digests]


def _host(data: dict[str, Any]) -> dict[str, Any]:
    plain = ("arch", "driver", "kernel", "engine")
    found: dict[str, Any] = {key: _text_or_none(data.get(key), f"host.{key}") for key in plain}
    gpus = data.get("gpus")
    if gpus is not None and not isinstance(gpus, list):
        raise _unlike("host.gpus is no list")
    found["gpus"] = None if gpus is None else [_gpu(_object(g, "host.gpus")) for g in gpus]
    return found


def _gpu(data: dict[str, Any]) -> dict[str, Any]:
    texts = ("name", "compute_capability", "uuid_sha256")
    found: dict[str, Any] = {k: _text_or_none(data.get(k), f"host.gpus.{k}") for k in texts}
    mig, memory = data.get("mig"), data.get("memory_mib")
    if not isinstance(mig, bool | None) or not isinstance(memory, int | None):
        raise _unlike("host.gpus is not as it should be")
    return {**found, "mig": mig, "memory_mib": memory}


def read_json(data: bytes) -> object:
    """JSON, read strictly: of two values for one name, nobody may choose the one that suits."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_no_name_twice, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise _unlike("it is not JSON, or not whole") from error


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _unlike(what: str) -> RecordUnreadableError:
    return RecordUnreadableError(
        f"This is no record as this version writes it: {what}.",
        fix="Make it anew: provision verify IMAGE",
    )


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unlike(f"{path} is no object")
    return value


def _text(value: object, path: str, pattern: re.Pattern[str] | None = None) -> str:
    fits = isinstance(value, str) and (pattern is None or pattern.fullmatch(value))
    if not fits:
        raise _unlike(f"{path} is not as it should be")
    return str(value)


def _text_or_none(value: object, path: str) -> str | None:
    return None if value is None else _text(value, path)


def _one_of(value: object, path: str, words: Sequence[str]) -> str:
    if value not in words:
        raise _unlike(f"{path} is not as it should be")
    return str(value)
