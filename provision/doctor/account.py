"""What the doctor says as JSON: `doctor.schema.json` beside this file is its shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, TypeAlias

from provision.doctor.mending.effects import effects
from provision.doctor.model import Cause, Diagnosis, Evidence, Facts, Fix, LogOrigin
from provision.doctor.overview import overview

Kind: TypeAlias = Literal["host", "log", "image", "bundle", "step"]
Place: TypeAlias = Literal["here", "image", "bundle"]
Verdict: TypeAlias = Literal["found", "unknown", "healthy"]
MACHINES: frozenset[Kind] = frozenset({"host", "bundle"})

# What a person who knows more would ask for next, where nothing was recognised.
COLLECT = (
    "a case to share, and words to search for: provision doctor --case case.txt --log FILE",
    "the whole text, from its first warning on: provision doctor --log FILE",
    "the machine: provision doctor collect bundle.tar.gz (redacted; look into it, then share it)",
    "the kernel's messages: sudo dmesg | provision doctor --log -",
)


def verdict_of(diagnosis: Diagnosis, *, asked_of_a_text: bool) -> Verdict:
    """Without a cause a text is unknown, as is one that ends badly after all that was recognized;
    a machine that was merely looked at is healthy then, and so is a text that ends well, whatever
    it warns of.
    """
    if asked_of_a_text:
        if diagnosis.ended_well:
            return "healthy"
        return "found" if diagnosis.causes and not diagnosis.unexplained else "unknown"
    return "found" if diagnosis.causes else "healthy"


def of_a_machine(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of a machine of whose log nobody asked: without the guesses at harmless lines,
    which the kernel logs on machines that work, too ("Persistence mode is deprecated"), and without
    its words for why something ended, which may be of any device.
    """
    causes = tuple(c for c in diagnosis.causes if (c.severity, c.confidence) != ("warns", "low"))
    return replace(diagnosis, causes=causes, reasons=())


def host_is_unfit(diagnosis: Diagnosis) -> bool:
    """Whether a cause that is sure keeps GPUs from working here."""
    return any(
        cause.severity == "blocks" and cause.confidence == "high" for cause in diagnosis.causes
    )


def account(
    diagnosis: Diagnosis,
    *,
    kind: Kind,
    names: Sequence[str],
    verdict: Verdict,
    place: Place | None,
) -> dict[str, Any]:
    """The whole answer. A machine that was looked at gets its overview, too. `place`: where facts
    were read; None: nowhere.
    """
    facts = diagnosis.facts
    readings = overview(facts, unfit=host_is_unfit(diagnosis)) if kind in MACHINES else ()
    return {
        "schema": 1,
        "kind": kind,
        "names": list(names),
        "verdict": verdict,
        "causes": causes_json(diagnosis.causes),
        "ruled_out": [
            {"code": one.code, "title": one.title, "evidence": _evidence(one.evidence)}
            for one in diagnosis.ruled_out
        ],
        "collect": list(COLLECT) if verdict == "unknown" else [],
        "reasons": [_evidence(one) for one in diagnosis.reasons],
        "failed": diagnosis.failed and _evidence(diagnosis.failed),
        "telling": [_evidence(one) for one in diagnosis.telling],
        "partly_read": [asdict(one) for one in diagnosis.partly],
        "overview": [{"what": one.what, "says": one.says, "where": one.where} for one in readings],
        "facts": _facts(facts),
        "machine": _machine(diagnosis.origin, place),
        "contradictions": [
            {
                "says": one.says,
                "evidence": [_evidence(line) for line in one.evidence],
                "source": one.source,
            }
            for one in diagnosis.contradictions
        ],
        "besides": [{"code": one.code, "title": one.title} for one in diagnosis.besides],
    }


def causes_json(causes: Sequence[Cause]) -> list[dict[str, Any]]:
    """Causes in their order, as they stand in `account` and beside a failed step."""
    return [
        {
            "code": one.code,
            "layer": one.layer,
            "title": one.title,
            "states": one.states,
            "cause": one.cause,
            "severity": one.severity,
            "confidence": one.confidence,
            "evidence": [_evidence(evidence) for evidence in one.evidence],
            "fixes": [_fix(fix) for fix in one.fixes],
            "confirm": one.confirm or None,
            "follows_from": one.follows_from,
            "links": list(one.sources),
        }
        for one in causes
    ]


def _machine(origin: LogOrigin | None, place: Place | None) -> dict[str, Any]:
    """The machine whose facts were used, and what the logs say of the one that they are from."""
    return {
        "judged": place if place and (origin is None or origin.counts) else "log",
        "log": origin and origin.agreement,
        "evidence": [_evidence(one) for one in origin.says] if origin else [],
    }


def _evidence(evidence: Evidence) -> dict[str, str]:
    return {"says": evidence.says, "where": evidence.where}


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "for": list(fix.on),
        "note": fix.note or None,
        "run": fix.run or None,
        "effects": list(effects(fix.run)),
        "automatic": fix.automatic,
        "backup": list(fix.backup),
        "reboot": fix.reboot,
    }


def _facts(facts: Facts) -> Mapping[str, dict[str, Any]]:
    return {
        name: {
            "value": list(fact.value) if isinstance(fact.value, tuple) else fact.value,
            "where": fact.where,
        }
        for name, fact in sorted(facts.items())
        if name != "machine.name"  # the answer may be shown to others
    }
