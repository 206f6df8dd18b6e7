"""What the driver's and the kernel's error lines mean, and NVIDIA's action for each.

The knowledge is in driver_errors.json, which names its sources.
"""

from __future__ import annotations

import json
import pkgutil
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Dict, List, Mapping, Pattern, Sequence, Tuple

ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
RECOVERY = 154  # names its own action: "GPU recovery action changed from ... to ..."
# "145, RLW_REMAP Nonfatal XC0 i0 Link 08 (0x00000004 0x00000100 ...)"
_UNIT = re.compile(r"(?:^|, )(?P<unit>[A-Z][A-Z0-9_]{1,30})\b(?P<words>[^(]{0,80})")
_SEVERITY = re.compile(r"\b(?:(?P<non>Non-?)?fatal)\b", re.IGNORECASE)
_REGISTERS = re.compile(r"\((0x[0-9a-fA-F]{1,8}(?:,? 0x[0-9a-fA-F]{1,8}){0,9})\)?")


@dataclass(frozen=True)
class Meaning:
    """What an error means; `action` and `later` are names of NVIDIA's catalogue."""

    what: str
    action: str
    later: str = ""
    also: str = ""

    @property
    def faulty(self) -> bool:
        """Whether the GPU is unfit until it is repaired."""
        return bool(knowledge()["actions"][self.action]["faulty"])

    @property
    def test(self) -> bool:
        """Whether it is no error at all."""
        return self.action == "TEST"

    @property
    def fix(self) -> str:
        """What to do, now and if the error recurs."""
        steps = knowledge()["actions"]
        now = [steps[self.action]["step"], self.also]
        more = self.later not in ("", "IGNORE", self.action)
        recurs = steps[self.later]["step"] if more else ""
        return "; ".join(filter(None, (*now, "if it recurs, " + recurs if recurs else "")))


@dataclass(frozen=True)
class LineRule:
    """A kind of line without an Xid.

    `repairs` says what works again after it: all GPUs, this GPU, or this port.
    """

    name: str
    pattern: Pattern[str]
    meaning: Meaning
    repairs: str = ""
    pcie: bool = False
    storm: bool = False


@lru_cache(maxsize=1)
def knowledge() -> Dict[str, Any]:
    """The data file."""
    data = pkgutil.get_data("verify.device", "driver_errors.json")
    found: Dict[str, Any] = json.loads(data or b"")
    return found


@lru_cache(maxsize=1)
def codes() -> Mapping[int, Meaning]:
    """The meaning of each Xid that a catalogue describes."""
    rows = knowledge()["codes"] + knowledge()["older"]["codes"]
    return {code: _meaning(row) for row in rows for code in row["codes"]}


@lru_cache(maxsize=1)
def line_rules() -> Tuple[LineRule, ...]:
    """The kinds of lines without an Xid."""
    return tuple(
        LineRule(
            row["name"],
            re.compile(row["pattern"].replace("{pci}", ADDRESS)),
            _meaning(row),
            row.get("repairs", ""),
            row.get("pcie", False),
            row.get("storm", False),
        )
        for row in knowledge()["lines"]["rules"]
    )


def _meaning(row: Mapping[str, Any]) -> Meaning:
    parts = {name: row.get(name, "") for name in ("what", "action", "later", "also")}
    return Meaning(**parts)


def of_xid(number: int, text: str) -> Meaning:
    """What an Xid means; `text` is the line after its number."""
    known = codes().get(number, Meaning("an Xid that NVIDIA's catalogue does not use", "UNKNOWN"))
    decode = {
        "XID_154": lambda: _of_recovery(known, text),
        "WORKFLOW_NVLINK_ERR": lambda: _of_hopper_link(known, text),
        "WORKFLOW_NVLINK5_ERR": lambda: _of_link(known, number, text),
    }.get(known.action)
    return decode() if decode else known


def of_switch(text: str) -> Meaning:
    """What an SXid means; its line says whether it is fatal."""
    said = _SEVERITY.search(text)
    fatal = said is not None and not said.group("non")
    what = "an NVSwitch had {} error".format("a fatal" if fatal else "a non-fatal")
    return Meaning(what, "RESET_FABRIC" if fatal else "IGNORE")


def _of_recovery(known: Meaning, text: str) -> Meaning:
    """Xid 154: every action but "None" is due, also one that is newer than the data."""
    said = re.search(r"\bto (?:0x[0-9a-fA-F]+ )?\(([^)]{1,60})\)", text)
    action = said.group(1) if said else "an action that it does not name"
    words = knowledge()["recovery"]["words"]
    due = [words[word] for word in words if word in action.lower()] if said else ["UNKNOWN"]
    name = (due or ["RESET_GPU"])[0]
    return Meaning("{}: {}".format(known.what, action), name)


def _registers(text: str) -> List[int]:
    found = _REGISTERS.search(text)
    return [int(one, 16) for one in re.findall("0x[0-9a-fA-F]+", found.group(1))] if found else []


def _of_hopper_link(known: Meaning, text: str) -> Meaning:
    """Xid 74: its registers may hold only bits that need no action."""
    masks = [int(mask, 16) for mask in knowledge()["links_74"]["harmless"]]
    read = _registers(text)
    harmful = [value & ~mask for value, mask in zip(read, masks + [0] * len(read))]
    return replace(known, action="IGNORE") if any(read) and not any(harmful) else known


def _of_link(known: Meaning, number: int, text: str) -> Meaning:
    """Xid 144 to 150, by unit, severity and registers. What they leave open is not a fault, unless
    the line says fatal: then the links are down until a reset.
    """
    said = _UNIT.search(text)
    word = _SEVERITY.search(said.group("words")) if said else None
    severity = ("nonfatal" if word.group("non") else "fatal") if word else None
    rules = [rule for rule in knowledge()["nvlink"]["rules"] if rule["code"] == number]
    if said:
        rules = [rule for rule in rules if said.group("unit") in rule["units"]]
    rules = [rule for rule in rules if severity in (None, rule["severity"])]
    registers = _registers(text)
    rules = [rule for rule in rules if _decodes(rule, registers)] or rules
    found = [replace(known, action=rule["action"], later=rule["later"]) for rule in rules]
    if not found and severity == "fatal":
        return replace(known, action="RESET_GPU", later="CONTACT_SUPPORT")
    bad = [one for one in found if one.faulty]
    if not found or (severity is None and 0 < len(bad) < len(found)):
        return known
    return (bad or found)[0]


def _decodes(rule: Mapping[str, Any], registers: Sequence[int]) -> bool:
    if len(registers) < 2:
        return False
    info, status = registers[:2]
    bits, values, reasons = (
        [int(value, 16) for value in rule.get(name, ())] for name in ("bits", "status", "reason")
    )
    return any(status & bit for bit in bits) or status in values or (info >> 20 & 0x3F) in reasons
