"""What grew during the run, and what only seems so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.kit.cases import cases
from tests.mutations.health import healthy_gpu
from verify.checks.health.after import check_after, judge_after
from verify.device import baseline
from verify.device.baseline import Baseline
from verify.device.kernel_log import Line, Log
from verify.device.machine import Machine
from verify.device.telemetry import GpuProcess, GpuState, NvLink, Pair, State
from verify.model.check import Context, Status

WELL = State("580.65.06", (healthy_gpu(0), healthy_gpu(1)), found=True)
START = Baseline(WELL, log_s=20.0)
XID = "NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus."


def second(**fields: Any) -> State:
    return replace(WELL, gpus=(WELL.gpus[0], replace(WELL.gpus[1], **fields)))


def logged(*lines: Line) -> Log:
    return Log(lines, "/dev/kmsg")


@cases(
    "before after log minutes words",
    ("nothing changed", START, WELL, logged(), 2.0, "no new errors on 2 GPUs"),
    ("old errors are those of health.memory", Baseline(second(ecc_uncorrected=4), 20.0),
     second(ecc_uncorrected=4), logged(), 2.0, "no new errors"),
    ("a counter that is missing before is unknown", Baseline(second(ecc_uncorrected=None), 20.0),
     second(ecc_uncorrected=4), logged(), 2.0, "no new errors"),
    ("a counter that is missing after is unknown", START, second(remapped_rows=None), logged(),
     2.0, "no new errors"),
    ("a driver that was loaded again starts from 0", Baseline(second(pcie_replays=7000), 20.0),
     WELL, logged(), 2.0, "no new errors"),
    ("corrected errors are reported", START, second(ecc_corrected=9), logged(), 2.0,
     "GPU 1: 9 more corrected ECC errors"),
    ("some replays are reported", START, second(pcie_replays=150), logged(), 2.0,
     "GPU 1: 150 more PCIe replays"),
    ("a line from before the run is that of health.log", START, WELL, logged(Line(XID, 20.0)), 2.0,
     "no new errors on 2 GPUs"),
    ("an error of a program is reported", START, WELL,
     logged(Line("NVRM: Xid (PCI:0000:65:00): 13, pid=1, Graphics", 21.0)), 2.0, "Xid 13"),
    ("a log that cannot be read is unknown", START, WELL, Log(error="no"), 2.0,
     "the kernel log cannot be read here"),
    ("a log without times is unknown", replace(START, log_s=None), WELL, logged(Line(XID)), 2.0,
     "the kernel log cannot be read here"),
    ("it was slow before the run", Baseline(second(throttle_reasons=("hw_slowdown",)), 20.0),
     second(throttle_reasons=("hw_slowdown",)), logged(), 2.0, "no new errors"),
    ("a narrow link that was so before", Baseline(second(pcie_width=8), 20.0),
     second(pcie_width=8), logged(), 2.0, "no new errors"),
    ("a link whose lanes are not known after", START, second(pcie_width=None), logged(), 2.0,
     "no new errors"),
    ("a link that was down", Baseline(second(nvlinks=(NvLink(0, active=False),)), 20.0),
     second(nvlinks=(NvLink(0, active=False),)), logged(), 2.0, "no new errors"),
)  # fmt: skip
def test_what_did_not_grow_passes(
    before: Baseline, after: State, log: Log, minutes: float, words: str
) -> None:
    found = judge_after(before, [after], log, minutes)
    assert found.status is Status.PASS
    assert words in found.message


@cases(
    "after log minutes words",
    ("replays come faster than links may have them", second(pcie_replays=150), logged(), 0.1,
     "GPU 1: 150 more PCIe replays"),
    ("lanes fail under load", second(pcie_width=8), logged(), 2.0,
     "GPU 1: its PCIe link went from x16 to x8 during the run"),
    ("a counter and the log", second(ecc_uncorrected=1), logged(Line(XID, 21.0)), 2.0,
     "GPU 1: 1 more uncorrected ECC errors since the run began; logged since the run began: GPU 1"),
    ("the first of two GPUs is gone, so the second has its number",
     replace(WELL, gpus=(replace(WELL.gpus[1], index=0),)), logged(), 2.0,
     "GPU 0: it answered before the run, and no longer does"),
)  # fmt: skip
def test_what_grew_fails(after: State, log: Log, minutes: float, words: str) -> None:
    found = judge_after(START, [after], log, minutes)
    assert found.status is Status.FAIL
    assert found.message.startswith(words)
    assert found.fix


class TwoReadings(Machine):
    """A machine whose state and log are given."""

    def __init__(self, state: State, log: Log) -> None:
        self._state, self._log = state, log

    def state(self) -> State:
        """The given one."""
        return self._state

    def log(self) -> Log:
        """The given one."""
        return self._log

    def pause(self, seconds: float) -> None:
        """Nothing changes."""


@cases(
    "log end",
    ("the newest line counts", logged(Line("a", 3.0), Line("b", 9.5)), 9.5),
    ("an empty log has only newer lines", logged(), 0.0),
    ("lines without times", logged(Line("a")), None),
    ("no log", Log(error="no"), None),
)
def test_a_baseline_comes_through_the_pipe_as_it_was(log: Log, end: float | None) -> None:
    gpus = (replace(WELL.gpus[0], processes=(GpuProcess(7, 1),)), GpuState(1))
    state = replace(WELL, gpus=gpus, pairs=(Pair(0, 1, "NV4"),), problems=("refused",))
    taken = baseline.take(TwoReadings(state, log))
    assert taken.log_s == end
    assert baseline.from_dict(json.loads(json.dumps(taken.as_dict()))) == taken


@cases(
    "state before words",
    ("no driver", State(), None, "no NVIDIA driver library"),
    ("no reading before", WELL, None, "no reading from before"),
    ("no GPU before", WELL, Baseline(State(found=True)), "no reading from before"),
    ("no counters", State(gpus=(GpuState(0),), found=True),
     Baseline(State(gpus=(GpuState(0),), found=True)), "no counters"),
)  # fmt: skip
def test_what_cannot_be_compared_is_skipped(
    state: State, before: Baseline | None, words: str
) -> None:
    machine = TwoReadings(state, Log(error="no"))
    found = check_after(Context(machine=machine, before=before))
    assert found.status is Status.SKIP
    assert words in found.message
