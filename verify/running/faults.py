"""What is at fault when a check fails: the node, the image, the configuration, or it is not known.

Only a fault of the node keeps jobs away from it: a drained node is lost to everybody, and an image
that is broken fails on each. docs/checks.md has the rule for each check.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, List, NamedTuple, Optional

from verify.model.check import CONFIGURATION, IMAGE, NODE, UNKNOWN, Result, Status
from verify.model.report import CheckRow
from verify.running.symptoms import kind

_BY_KIND = {
    "hardware": NODE,
    "driver": NODE,
    "build": IMAGE,
    "pairing": IMAGE,
    "config": CONFIGURATION,
    "host": CONFIGURATION,
}
# What a failure of a check or of a family means, if neither its judge nor a symptom says more.
_BY_CHECK = {
    "health": NODE,
    "health.burn": UNKNOWN,  # the framework computes, and its judge knows more
    "devices.peers": NODE,
    "libraries": IMAGE,
    "devices.architectures": IMAGE,
    "devices.placement": IMAGE,
    "memory.leak": IMAGE,
    "devices.nvml": CONFIGURATION,
    "devices.visible": CONFIGURATION,
    "loading.shm": CONFIGURATION,
    "loading.files": CONFIGURATION,
}
_OF_DRIVER = ("devices.nvml", "devices.peers")  # and the family health: no code of the image


class CheckFault(NamedTuple):
    """A failed check, what is at fault, and the kind of failure: that of the symptom in its text,
    or its status.
    """

    check: str
    at_fault: str
    kind: str

    @property
    def certain(self) -> bool:
        """Whether no image can cause it: the driver itself reports it (ECC, Xid, a lost GPU)."""
        read = self.check.startswith("health.") and self.check != "health.burn"
        read = read or self.check in _OF_DRIVER
        return self.at_fault == NODE and (read or self.kind in ("hardware", "driver"))


def of_text(text: str) -> Optional[str]:
    """What is at fault by an error text; None for a text without a symptom that says it."""
    return _BY_KIND.get(kind(text) or "")


def fault_of(row: CheckRow) -> CheckFault:
    """The fault of a failed check: as its judge says, or else by its text and its id. A report of
    an earlier version has no judge's word.
    """
    check, status = row["id"], row["status"]
    text = " ".join(filter(None, (row["message"], row["cause"])))
    found = row.get("at_fault")
    if found is None and status == Status.FAIL.value:
        family = check.partition(".")[0]
        default = _BY_CHECK.get(check) or _BY_CHECK.get(family)
        found = default if family == "health" and default == NODE else of_text(text) or default
    elif found is None:
        found = of_text(text)  # the check broke, so it has measured nothing
    return CheckFault(check, found or UNKNOWN, kind(text) or status)


def faults(rows: Iterable[CheckRow]) -> List[CheckFault]:
    """Those of a report, in its order."""
    return [fault_of(row) for row in rows if row["status"] in ("fail", "error")]


def decisive(found: Iterable[CheckFault]) -> Optional[CheckFault]:
    """The one that says what is at fault on a machine; None: there is none.

    A broken image also computes wrong results. So its fault counts before one of the node, unless
    no image can cause that.
    """
    order = (IMAGE, NODE, CONFIGURATION, UNKNOWN)
    ranked = sorted(found, key=lambda one: (not one.certain, order.index(one.at_fault)))
    return ranked[0] if ranked else None


def with_fault(result: Result) -> Result:
    """The result of a check with what is at fault, if it failed."""
    failed = result.outcome.status in (Status.FAIL, Status.ERROR)
    found = fault_of(result.as_dict()).at_fault if failed else None
    return replace(result, outcome=replace(result.outcome, at_fault=found))
