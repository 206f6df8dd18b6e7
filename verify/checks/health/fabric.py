"""Whether GPUs have joined their NVSwitch fabric: on an HGX board, or in an NVL72 rack.

On a board the node's Fabric Manager runs the switches. In a rack they are in trays of their own,
where NMX-Controller runs them; a node has only nvidia-imex, which shares memory between nodes.
Sources: NVIDIA's Fabric Manager, MNNVL, NMX-Controller and IMEX user guides.
"""

from __future__ import annotations

import re
from typing import List, Optional

from verify.checks.health.findings import Finding, judged, outcome, table, unread
from verify.device.nvml_types import FABRIC_FAULTS, FABRIC_SUMMARIES
from verify.device.telemetry import GpuState, State
from verify.model.check import Context, Outcome, gpus

RACK = re.compile(r"\bGB[23]00\b")
BOARD_FIX = (
    "start nvidia-fabricmanager of the driver's own version{} on the host (systemctl enable --now "
    "nvidia-fabricmanager); look at journalctl -u nvidia-fabricmanager"
)
TRAYS = "on the rack's NVLink switch trays, look at nv show cluster apps"
IMEX = "restart nvidia-imex on all nodes of its domain, and look at nvidia-imex-ctl -N"
_WAIT = "run the suite again in a minute; if it stays so, drain the node: "
# What each state means for work on the GPU, and what to do in a rack.
_MEANS = {
    "not-started": ("the GPU's NVLinks do not reach the switches, or NMX-Controller is not running",
                    TRAYS + " (nmx-controller)"),
    "in-progress": ("NMX-Controller is not running, or is still working",
                    "run the suite again in a minute; " + TRAYS + " (nmx-controller)"),
    "status": ("NMX-Controller gave up on this GPU", TRAYS + " (nmx-controller) and at its log"),
    "bandwidth": ("work runs, but slower: NVLinks or NVSwitches are down",
                  TRAYS + " (nmx-telemetry) for the links; drain the node and have them repaired"),
    "routes": ("work over NVLink waits or fails until that has ended",
               _WAIT + TRAYS + " (nmx-controller)"),
    "route": ("no work over NVLink can run: NVLinks or NVSwitches of this GPU have failed",
              "drain the node; " + TRAYS + " (nmx-telemetry), and have them repaired"),
    "access": ("another GPU did not answer in time: work that uses its memory fails",
               "end the job; " + _WAIT + IMEX),
    "unhealthy": ("no work over NVLink can run", "drain the node; " + TRAYS),
    "capacity": ("work runs on fewer NVLinks or GPUs than there are",
                 TRAYS + " (nmx-telemetry); have what is down repaired"),
    "configuration": ("NMX-Controller does not admit the GPU: partition, firmware or wiring",
                      TRAYS + " (nmx-controller), nv show sdn partition, and correct that there"),
}  # fmt: skip
_NAMES = dict(zip(FABRIC_FAULTS, ("bandwidth", "routes", "route", "access")))
_NAMES.update(zip(FABRIC_SUMMARIES.values(), ("unhealthy", "capacity")))


def check_fabric(context: Context) -> Outcome:
    """Read whether each GPU has joined the fabric."""
    return judged(context.machine.seen(), judge_fabric)


def judge_fabric(found: State) -> Outcome:
    """Whether every GPU that is part of an NVSwitch fabric has joined it."""
    columns = ("index", "fabric_state", "fabric_status", "fabric_health")
    measured = table("Fabric", columns, found.gpus)
    if all(gpu.fabric_state is None for gpu in found.gpus):
        return unread(found, found.gpus, "an NVSwitch fabric (drivers from 525 on do)")
    part = [gpu for gpu in found.gpus if gpu.fabric_state not in (None, "not-supported")]
    findings = [f for gpu in part for f in _findings(gpu, found.driver)]
    well = "{} joined the NVSwitch fabric".format(gpus(len(part)))
    well = well if part else "{} on no NVSwitch fabric".format(gpus(len(found.gpus)))
    return outcome(findings, well, measured, {"fabric_state": "completed"})


def _findings(gpu: GpuState, driver: Optional[str]) -> List[Finding]:
    if gpu.fabric_state != "completed":
        what = "has not joined the NVSwitch fabric: {}".format(gpu.fabric_state)
        cause = "Fabric Manager is not running, has another version, or is still working"
        return [_finding(gpu, str(gpu.fabric_state), what, cause, driver)]
    if gpu.fabric_status:
        what = "could not join the NVSwitch fabric: {}".format(gpu.fabric_status)
        return [_finding(gpu, "status", what, "Fabric Manager gave up on this GPU", driver)]
    what = "joined the NVSwitch fabric, but {}"
    return [
        _finding(gpu, _NAMES.get(word, "configuration"), what.format(word), "", driver)
        for word in gpu.fabric_health
    ]


def _finding(gpu: GpuState, name: str, what: str, on_board: str, driver: Optional[str]) -> Finding:
    """The finding, with the cause and fix that apply where the switches are."""
    cause, fix = _MEANS.get(name, _MEANS["in-progress"])
    if RACK.search(gpu.name or ""):
        return Finding(gpu.index, what, cause, fix)
    fix = BOARD_FIX.format(" ({})".format(driver) if driver else "")
    return Finding(
        gpu.index, what, on_board or cause.replace("NMX-Controller", "Fabric Manager"), fix
    )
