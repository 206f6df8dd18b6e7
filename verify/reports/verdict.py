"""The verdict on the node in the words of NVIDIA Health Validation, for programs that act on those.

`verdict.json` has its words; docs/health-validation.md says which names are NVIDIA's.
"""

from __future__ import annotations

import json
import pkgutil
import re
from typing import Any, Dict, Iterable, List, Optional, Sequence

from verify.model.report import CheckRow, GpuRow, Report
from verify.reports import compare_text
from verify.reports.formatting import clean, one_line, shortened, state, why
from verify.reports.report import dump
from verify.running.faults import decisive, fault_of, faults

_WORDS: Dict[str, Any] = json.loads(pkgutil.get_data("verify.reports", "verdict.json") or b"")
_TEXT_LIMIT = 2_000
_ONE = r"\d{1,3}(?:-\d{1,3})?"
# A list ends at what it is about, unlike the number in "GPU 1, 2 min ago: Xid 48".
_GPUS = re.compile(r"\bGPU (?:({0}(?:, {0})*)(?=:| \()|(\d{{1,3}})\b)".format(_ONE))


def render(report: Report) -> str:
    """The JSON document."""
    return dump(node_verdict(report))


def node_verdict(report: Report) -> Dict[str, Any]:
    """The verdict on the node, its affected parts, and each check."""
    fault = decisive(faults(report["checks"]))
    checks = [
        _check(check, severity(check, report["verdict"], fault and fault.at_fault), report)
        for check in report["checks"]
    ]
    checks += _comparison(report)
    whole = [_WORDS["verdicts"][report["verdict"]], *(["INFO"] if "only" in report else [])]
    return {
        "overall_severity": worst([*whole, *(check["severity"] for check in checks)]),
        "affected_components": components(checks),
        "check_verdicts": checks,
        "source": _source(report),
    }


def worst(severities: Iterable[str]) -> str:
    """The gravest."""
    return max(severities, key=_WORDS["severities"].index)


def severity(check: CheckRow, verdict: str, decided: Optional[str]) -> str:
    """The severity of a check. A failure counts for no more than what is at fault on the whole:
    with a broken image, a wrong result says nothing about the node.
    """
    found = state(check)
    if found == "pass":
        return "PASS"
    if found in ("skip", "pass-on-cpu"):  # not known, and "fit" and "unfit" do not depend on it
        return "UNKNOWN" if verdict == "no-verdict" else "INFO"
    own = _WORDS["faults"][fault_of(check).at_fault]
    whole = _WORDS["faults"][decided] if decided else own
    return str(min(own, whole, key=_WORDS["severities"].index))


def category(check: str) -> str:
    """Health Validation's category for one of our checks."""
    words = _WORDS["categories"]
    return str(words.get(check) or words.get(check.partition(".")[0]) or "node")


def steps(fix: Optional[str]) -> List[str]:
    """The actions that a fix asks for, in its order."""
    found = [(re.search(row["pattern"], fix or ""), row["step"]) for row in _WORDS["actions"]]
    return [step for _, step in sorted((match.start(), step) for match, step in found if match)]


def entities(check: CheckRow, gpus: Sequence[GpuRow]) -> List[str]:
    """The GPUs that a check found fault with: the first that each part of its message names, since
    further ones are those that it is compared with. CUDA may count GPUs in another order than NVML,
    so only what was read from NVML gets a UUID.
    """
    by_nvml = check["id"].startswith("health.") or check["id"] == "devices.nvml"
    numbers: Dict[int, None] = {}
    for part in check["message"].split("; "):
        match = _GPUS.search(part)
        for span in (match.group(1) or match.group(2)).split(", ") if match else ():
            first, _, last = span.partition("-")
            some = range(int(first), int(last or first) + 1)
            numbers.update(dict.fromkeys(number for number in some if number < len(gpus)))
    uuids = {number: gpus[number]["uuid"] for number in numbers if by_nvml}
    return [clean(uuids.get(number) or "GPU {}".format(number)) for number in numbers]


def components(checks: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The categories with a result other than PASS."""
    groups: Dict[str, List[Dict[str, Any]]] = {}
    for check in checks:
        if check["severity"] != "PASS":
            groups.setdefault(check["category"], []).append(check)
    return [
        {
            "category": name,
            "max_severity": worst(check["severity"] for check in group),
            "check_ids": [check["check_id"] for check in group],
            "entities": [*dict.fromkeys(one for check in group for one in check["entities"])],
        }
        for name, group in groups.items()
    ]


def _check(check: CheckRow, found: str, report: Report) -> Dict[str, Any]:
    grave = found == "CRITICAL"
    named = [] if found == "PASS" else entities(check, report["environment"]["gpus"])
    return {
        "check_id": check["id"],
        "name": one_line(check["title"]),
        "category": category(check["id"]),
        "provenance": "custom",
        "severity": found,
        "entities": named,
        "message": clean(shortened(why(check), _TEXT_LIMIT)),
        "recommended_action": (
            {"operational_state": "drain", "steps": steps(check["fix"])} if grave else None
        ),
    }


def _comparison(report: Report) -> List[Dict[str, Any]]:
    """A regression is not in any check: each may have passed."""
    if "comparison" not in report:
        return []
    found = report["comparison"]
    text = "\n".join(compare_text.worse(found)) or "no worse than the baseline"
    return [
        {
            "check_id": "baseline.comparison",
            "name": "Comparison with an earlier report",
            "category": "node",
            "provenance": "custom",
            "severity": "WARNING" if found["worse"] else "PASS",
            "entities": [],
            "message": clean(shortened(text, _TEXT_LIMIT)),
            "recommended_action": None,
        }
    ]


def _source(report: Report) -> Dict[str, Any]:
    """Where the verdict comes from: what no member of Health Validation says."""
    environment = report["environment"]
    return {
        "tool": "gpu-provision",
        "verdict": report["verdict"],
        "level": report["level"],
        "started": environment["started"],
        "node": environment.get("machine", {}).get("name"),
        "image": environment["image"],
        "only": report.get("only"),
        "replayed": environment.get("replayed"),
    }
