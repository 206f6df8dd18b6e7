"""How the suite judges recorded machines, rates and texts: false alarms and misses, counted.

    python bench/recorded.py DIR            # machines.json, rates.json and texts.json of a folder
    python bench/recorded.py DIR --json     # the figures alone, for a program
    python bench/recorded.py                # those of tests/data

Machines answer through their driver's own functions (bench/recorded_machines.py), and every device,
health and memory check that needs no kernel judges them. Rates go to the judge of the check that
would have measured them (bench/recorded_rates.py). Texts are what ordinary programs print.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.recorded_machines import NotRecordedError, Recorded, offered  # noqa: E402
from bench.recorded_rates import judge_rate  # noqa: E402
from verify.backends.sight import Sight  # noqa: E402
from verify.checks import CHECKS  # noqa: E402
from verify.checks.devices import inventory as devices  # noqa: E402
from verify.checks.memory import free as memory  # noqa: E402
from verify.device import driver  # noqa: E402
from verify.device.telemetry import State  # noqa: E402
from verify.model.check import Context, Outcome, Status  # noqa: E402
from verify.running import symptoms  # noqa: E402  the checkout's, wherever it is run

DATA = ROOT / "tests" / "data" / "verify" / "recorded"
JUDGED = ("health.", "devices.", "memory.")
# Which check is to name a fault, by a word of its owner's.
NAMED_BY = {
    "remap": ("health.memory",),
    "ECC": ("health.memory",),
    "retired": ("health.memory",),
    "SRAM": ("health.memory",),
    "brake": ("health.clocks",),
    "slowdown": ("health.clocks", "health.temperature"),
    "throttl": ("health.clocks", "health.temperature"),
    "hot": ("health.clocks", "health.temperature"),
    "NVLink": ("health.nvlink", "health.fabric"),
    "LINK": ("health.nvlink", "health.fabric"),
    "fabric": ("health.fabric", "health.nvlink"),
    "lost": ("devices.nvml",),
    "reset": ("devices.nvml", "health.mode", "health.memory"),
    "PCIe": ("health.pcie",),
    "compute mode": ("health.mode",),
    "MIG": ("health.mode", "devices.count"),
}
# What a check says that reports such a thing and lets the machine pass, or cannot read it.
REPORTED = {"remap": "waits for remapping", "throttl": "NVML refuses"}
# What reading a record of another shape raises: it is left out, and the others are judged.
_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass
class Figures:
    """What was counted; each list holds the ids of records."""

    left_out: list[str] = field(default_factory=list)
    vouched_unfit: list[str] = field(default_factory=list)
    no_complaint_unfit: list[str] = field(default_factory=list)
    faults_visible: int = 0
    faults_named: int = 0
    healthy_rates_failed: list[str] = field(default_factory=list)
    texts_as_faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """What a check says of a record."""

    check: str
    message: str
    failed: bool


def failures(record: Mapping[str, Any]) -> list[Answer]:
    """What the suite finds wrong with a recorded machine. Raises NotRecordedError."""
    return [answer for answer in answers(record) if answer.failed]


def answers(record: Mapping[str, Any]) -> list[Answer]:
    """What each check says of a recorded machine. Raises NotRecordedError."""
    bad = (Status.FAIL, Status.ERROR)
    outcomes = _outcomes(Context(machine=Recorded(record)), offered(record))
    return [Answer(check, said.message, said.status in bad) for check, said in outcomes]


def _outcomes(context: Context, usable: int) -> Iterator[tuple[str, Outcome]]:
    for check in CHECKS["pytorch"]:
        if check.replays and check.id.startswith(JUDGED):
            yield check.id, check.run(context)
    error = driver.read(context.machine.load).error
    sight = Sight(torch_cuda="12.8", usable=0 if error else usable, error=error)
    counts = devices.read_counts(sight.usable, context.machine)
    yield "devices.count", devices.judge_count(counts, sight)
    held = _held(context.machine.state())
    if held:
        yield "memory.free", memory.judge_free(held)


def _held(seen: State) -> list[memory.HeldMemory]:
    """Each GPU's memory, as CUDA would report it."""
    return [
        memory.HeldMemory(
            gpu.index,
            gpu.name or "",
            gpu.memory_total_bytes - gpu.memory_used_bytes,
            gpu.memory_total_bytes,
            gpu.processes,
        )
        for gpu in seen.gpus
        if gpu.memory_total_bytes and gpu.memory_used_bytes is not None
    ]


def machines(records: Sequence[Mapping[str, Any]], figures: Figures) -> Iterator[str]:
    """Judge each machine and yield a line for each that was judged wrongly, or not at all."""
    for record in records:
        shown = record.get("visible_in") == "readings"
        try:
            said = answers(record)
        except NotRecordedError as error:
            figures.left_out.append(record["id"])
            yield f"{record['id']}: left out: {error}"
            continue
        except _SHAPE as error:
            figures.left_out.append(record["id"])
            yield f"{record['id']}: left out: not of the shape of these records ({error!r})"
            continue
        found = [one for one in said if one.failed]
        words = "; ".join(f"{one.check}: {one.message[:160]}" for one in found)
        if record["owner_verdict"] == "healthy" and found:
            vouched = record["verdict_basis"] in ("said", "ran")
            (figures.vouched_unfit if vouched else figures.no_complaint_unfit).append(record["id"])
            yield f"{record['id']}: {record['verdict_basis']}, yet unfit: {words}"
        if record["owner_verdict"] == "faulty" and shown:
            named = _named(record["fault"], said)
            figures.faults_visible += 1
            figures.faults_named += named
            if not named:
                yield f"{record['id']}: {record['fault']}: not named ({words or 'nothing found'})"


def _named(fault: str, said: Sequence[Answer]) -> bool:
    """Whether a check that is there for this kind of fault has failed, or reports it."""
    right = {check for word, checks in NAMED_BY.items() if word in fault for check in checks}
    reported = [words for word, words in REPORTED.items() if word in fault]
    return any(
        (one.failed or any(words in one.message for words in reported))
        and (one.check in right or not right)
        for one in said
    )


def rates(rows: Sequence[Mapping[str, Any]], figures: Figures) -> Iterator[str]:
    """Judge each rate and yield a line for each healthy one that failed, and a count."""
    counts: dict[str, int] = {}
    for row in rows:
        try:
            status, words = judge_rate(row)
        except _SHAPE as error:
            status, words = "not judged", repr(error)
        counts[status] = counts.get(status, 0) + 1
        if status == "fail" and row["believed_healthy"]:
            figures.healthy_rates_failed.append(row["id"])
            yield f"{row['id']}: healthy, yet failed: {words}"
        if status == "pass" and row["believed_healthy"] is False:
            yield f"{row['id']}: bad, yet passed: {words}"
    yield "rates: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))


def texts(rows: Sequence[Mapping[str, Any]], figures: Figures) -> Iterator[str]:
    """Yield a line for each ordinary text that is taken for a fault of the hardware."""
    for row in rows:
        if not row["hardware_fault"] and symptoms.kind(row["text"]) == "hardware":
            figures.texts_as_faults.append(row["id"])
            yield f"{row['id']}: taken for a hardware fault: {row['text']}"


def measure(folder: Path) -> tuple[Figures, list[str]]:
    """The figures of a folder, and the lines about what was judged wrongly."""
    figures, lines = Figures(), []
    for name, judge in (("machines", machines), ("rates", rates), ("texts", texts)):
        path = folder / f"{name}.json"
        if path.exists():
            lines += judge(json.loads(path.read_text(encoding="utf-8")), figures)
    return figures, lines


def main() -> int:
    """Print the figures. The exit code is 0 whatever they are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true", help="the figures alone, as JSON")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    figures, lines = measure(options.folder)
    if options.json:
        sys.stdout.write(json.dumps(vars(figures)) + "\n")
        return 0
    for line in lines:
        sys.stdout.write(line + "\n")
    named = f"{figures.faults_named} of {figures.faults_visible}"
    sys.stdout.write(
        f"\nmachines that were left out: {len(figures.left_out)}\n"
        f"machines whose owner vouches for them, called unfit: {len(figures.vouched_unfit)}\n"
        f"machines without a complaint, called unfit: {len(figures.no_complaint_unfit)}\n"
        f"faults that show in readings, named by the right check: {named}\n"
        f"healthy rates that failed: {len(figures.healthy_rates_failed)}\n"
        f"ordinary texts taken for faults: {len(figures.texts_as_faults)}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
