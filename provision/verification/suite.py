"""The suite, from outside: its options, how it is run in an image, and what its report shows.

The suite is never imported: inside an image it is a command, and here a separate process.
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from images.engines.spec import RunJob, RunResult
from images.errors import Failure
from images.system import process
from images.system.interruption import HandedOn
from images.system.scratch import scratch_directory
from images.text.printable import printable, printable_json
from provision.catalog.catalog import Catalog
from provision.errors import BadInputError, Exit
from provision.lock.labels import expectations
from provision.model.plan import ComputeCapability, HostFacts, Plan, Warned
from provision.output.console import Console
from provision.resolve.packages import asked_for
from provision.verification.scope import SuiteScope

_EXPECT_PATH = "/run/gpu-provision/expect.json"
_ENDED = {"pass": "passed", "fail": "failed", "error": "in error", "skip": "not run"}
_VERDICTS = {0: "fit", 1: "unfit", 7: "no-verdict"}  # the suite's exit codes
BURN = "health.burn"  # the check that --burn asks for
VERDICTS = tuple(_VERDICTS.values())
_SHM_BYTES = 1 << 30
STACK_BYTES = 64 << 20


_REPORT_CHARACTERS = 16 << 20  # a report has some hundred thousand
_DEEPEST = 64
_TOO_DEEP = "it is nested too deeply"
_MOST_LINES, _LONGEST_LINE = 1000, 500  # a run at the full level writes some hundred


class BrokenReportError(Failure):
    """The suite ended without a report."""

    code = "no-report"
    exit_code = Exit.UNFIT


class BadReportError(BrokenReportError):
    """A malformed report, or one of another run than the requested one."""

    code = "bad-report"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"The image's report is refused: {why}.",
            fix="If the image was built by another version, build it again: provision build. "
            "Otherwise do not rely on it.",
        )


class ContradictoryReportError(BrokenReportError):
    """A report whose verdict contradicts its checks."""

    code = "report-contradiction"

    def __init__(self, claimed: str, found: str) -> None:
        super().__init__(
            f"The image's report says {claimed}, but {found}.",
            fix="Do not rely on this image. Build it again: provision build",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRequest:
    """The suite's options: the level, the required checks, and the only checks to run (empty: all).
    `timeout_s` is for the whole run without the `burn_min` minutes for which all GPUs are loaded.
    `whole`: the user named the level, so nothing is left out.
    """

    level: str = "standard"
    whole: bool = False
    require: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    timeout_s: float = 1800.0
    burn_min: float | None = None

    def words(self) -> list[str]:
        """The suite's options that name checks; `burn_min` asks for its own at every level."""
        burn = () if self.burn_min is None else (BURN,)
        only = (*self.only, *burn) if self.only else ()
        named = (("--require", (*self.require, *burn)), ("--only", only))
        return [word for option, names in named if names for word in (option, ",".join(names))]


def run_here(words: Sequence[str], timeout_s: float = 120.0) -> process.Completed:
    """Runs the suite's own command line on this machine: for what it knows, not for what it
    proves.
    """
    argv = [sys.executable, "-m", "verify", *words]
    return process.run(argv, timeout_s=timeout_s, cwd=suite_directory().parent, apart=True)


def suite_directory() -> Path:
    """The directory of the verify package; it is copied, never imported."""
    found = find_spec("verify")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations)))


def check_names(request: SuiteRequest, framework: str) -> None:
    """Refuse, before anything slow, names of checks that the suite would refuse later. Raises
    BadInputError, which names the nearest.
    """
    if not request.words():
        return
    done = run_here(["--list", "--framework", framework, *request.words()])
    if not done.ok:
        raise BadInputError(
            done.last_lines(1).removeprefix("verify: "),
            fix=f"List all: verify --list --framework {framework}",
        )


def gpu_runtime_warning(facts: HostFacts) -> Warned | None:
    """Shown before the build, since the verification after it would be the first to fail. Only a
    warning: an engine that uses the toolkit's hook does not report a runtime.
    """
    docker = next((e for e in facts.engines or () if e.name == "docker"), None)
    if not facts.gpus or docker is None or docker.gpu_runtime is not False or docker.cdi_devices:
        return None
    return Warned(
        code="gpu-runtime-not-seen",
        message="This host has GPUs, but its Docker engine offers neither the NVIDIA runtime nor "
        "CDI devices; the suite may not get to them.",
        fix="Install the NVIDIA Container Toolkit, then: "
        "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
    )


class Runs(Protocol):
    """What can run a command in an image: an engine, or a sandbox."""

    @property
    def name(self) -> str:
        """For people, and for the record: "docker 20.10.24"."""

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        """Run it to its end."""


def run_suite(
    runner: Runs,
    image: str,
    plan: Plan,
    facts: HostFacts | None,
    request: SuiteRequest,
    *,
    image_id: str,
    gpus: str,
    catalog: Catalog,
    console: Console,
    emulator: str = "",
    cut: Collection[ComputeCapability] = (),
    scope: SuiteScope | None = None,
    signals: HandedOn | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Run the suite inside the image, which `runner` knows by this name. Returns its report, and
    what could not be granted. `gpus`: how they are requested (`RunJob.gpus`). `emulator`: what
    emulates the image's processor; such an image gets no GPU, since this machine's driver is not
    for it. `cut`: as for `expectations`. `scope`: what is tested on a machine that is not the
    image's, whose GPUs then are not the image's either. `signals` are handed on: the report then
    says so (`interruption`). BrokenReportError: the container ended without a report.
    """
    from images.layers.own import SUITE

    if emulator:
        gpus, facts = "none", None
    if scope is not None and scope.checks == "image":
        gpus, facts = "none", HostFacts(gpus=())
    expect = expectations(
        plan,
        facts,
        image_id,
        catalog.gpus,
        machine=platform.node(),
        emulator=emulator,
        packages=asked_for(plan),
        cut=cut,
        scope=None if scope is None else scope.to_json(),
    )
    command = ["python3", SUITE, "--json", "--level", request.level, "--expect", _EXPECT_PATH]
    burn_min = request.burn_min or 0.0
    command += ["--burn", f"{burn_min:g}"] if burn_min else []
    job = RunJob(
        image=image,
        command=(*command, *request.words()),
        gpus=gpus,
        files={_EXPECT_PATH: json.dumps(expect).encode()},
        environment={"GPU_PROVISION_PROGRESS": "1"},  # a line for each check
        shm_bytes=_SHM_BYTES,
        stack_bytes=STACK_BYTES,
        timeout_s=request.timeout_s + 60 * burn_min,
        signals=signals,
    )
    by = runner.name  # queried now: an engine that stops later must not cost the report
    lines = _Lines(console)
    console.progress(f"starting the suite, using {by}")
    try:
        result = runner.run(job, lines.pass_on)
    finally:
        lines.tell_the_rest()
    report = read_report(result.stdout)
    if report is None:
        if signals is not None and signals.came:
            raise KeyboardInterrupt
        raise BrokenReportError(
            f"The suite ended with exit code {result.exit_code} and wrote no report.",
            fix="Its last lines say why. Run it by hand in the image: verify",
            detail=result.stderr_tail or result.stdout[-2000:],
        )
    _set_at_fault(report, _refuse_untrue(report, result.exit_code, request, expect))
    console.result(f"{in_numbers(report)}, using {by}")
    return report, result.notes


class _Lines:
    """What an image writes to standard error while it runs, for display: limited in lines and in
    line length. The runner keeps the end of the whole output.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._count = 0

    def pass_on(self, line: str) -> None:
        self._count += 1
        if self._count <= _MOST_LINES:
            self._console.suite_line(printable(line, limit=_LONGEST_LINE, keep="\t"))

    def tell_the_rest(self) -> None:
        left_out = self._count - _MOST_LINES
        if left_out > 0:
            self._console.note(f"{left_out:,} more lines of the image's output were omitted")


def _refuse_untrue(
    report: Mapping[str, Any], exit_code: int, request: SuiteRequest, expect: Mapping[str, Any]
) -> Recomputed:
    """Check a report against its own checks, and against the request."""
    claimed = report["verdict"]
    if "comparison" in report:
        raise BadReportError("it has a comparison, which was not requested")
    found = recompute(report, ["--level", request.level, *request.words()], expect)
    if found.verdict != claimed:
        raise ContradictoryReportError(
            claimed, f"its checks add up to {found.verdict}: {found.why}"
        )
    if exit_code != found.exit_code:
        raise ContradictoryReportError(claimed, f"the suite ended with exit code {exit_code}")
    return found


def _set_at_fault(report: dict[str, Any], found: Recomputed) -> None:
    """What is at fault, as it was computed here: an image of an earlier version does not say it."""
    report.pop("at_fault", None)
    if found.at_fault is not None:
        report["at_fault"] = found.at_fault
    for row in report["checks"]:
        if row["id"] in found.faults:
            row["at_fault"] = found.faults[row["id"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The verdict that the checks of a report amount to, and why; the suite's exit code for them;
    what is at fault if one failed, and for each that did.
    """

    verdict: str
    why: str
    exit_code: int
    at_fault: str | None
    faults: Mapping[str, str]


def recompute(
    report: Mapping[str, Any], words: Sequence[str], expect: Mapping[str, Any]
) -> Recomputed:
    """The verdict of this version's suite, which runs here and not in the image. `words` are the
    suite's options. BadReportError: the report is malformed, or of another run.
    """
    with scratch_directory() as made:
        path, wanted = made / "report.json", made / "expect.json"
        path.write_bytes(report_bytes(report))
        wanted.write_text(json.dumps(expect), encoding="utf-8")
        done = run_here(["judge", str(path), "--json", "--expect", str(wanted), *words])
    if done.code not in _VERDICTS:
        said = done.last_lines(1).removeprefix("verify: ").removeprefix(f"{path}: ")
        raise BadReportError(said or "the suite of this version cannot read it")
    found = json.loads(done.stdout)
    names = ("verdict", "why", "exit_code", "at_fault", "faults")
    return Recomputed(**{name: found[name] for name in names})


def interruption(report: Mapping[str, Any]) -> str | None:
    """The signal that ended the run before all checks had run; None: none did."""
    name: str | None = report["environment"].get("interrupted")
    return name


def in_numbers(report: Mapping[str, Any]) -> str:
    """The verdict and how many checks ended how: "no-verdict: 9 passed, 27 not run"."""
    ended = Counter(
        "passed on the CPU"
        if check["status"] == "pass" and check["measured"].get("device") == "cpu"
        else _ENDED[check["status"]]
        for check in report["checks"]
    )
    order = ("passed", "passed on the CPU", "failed", "in error", "not run")
    counts = ", ".join(f"{ended[word]} {word}" for word in order if ended[word])
    return f"{report['verdict']}: {counts}"


def read_report(stdout: str) -> dict[str, Any] | None:
    """The report in the suite's output, or None: the last JSON object that begins and ends on a
    separate line. An entrypoint may print its banner before it (those of nvidia/cuda do).

    The text is searched once, from its end: the image controls it, and could make it slow to parse.
    """
    if len(stdout) > _REPORT_CHARACTERS:
        raise BadReportError(
            f"the image wrote more than {_REPORT_CHARACTERS >> 20} MiB to standard output"
        )
    text = f"\n{stdout}\n"
    end = text.rfind("\n}\n")
    start = text.rfind("\n{\n", 0, end + 1)
    if end < 0 or start < 0:
        return None
    try:
        found = json.loads(text[start : end + 2], parse_constant=_double, parse_float=_double)
    except ValueError:
        return None
    except RecursionError:
        raise BadReportError(_TOO_DEEP) from None
    if _is_too_deep(found):
        raise BadReportError(_TOO_DEEP)
    is_report = isinstance(found, dict) and {"verdict", "checks"} <= found.keys()
    return found if is_report else None


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _double(text: str) -> float:
    """JSON has one number type; a report may hold only numbers that fit a double."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def report_bytes(report: Mapping[str, Any]) -> bytes:
    """The report in the form that a file holds and --json prints."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{printable_json(text)}\n".encode()


def proven(report: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What the checks have shown, and what none has: a check that did not run, or that fell back to
    the CPU, has shown nothing about the GPU.
    """
    shown: list[str] = []
    missing: list[str] = []
    for check in report["checks"]:
        line = f"{check['id']}: {check['message']}"
        if check["status"] == "skip" or check["measured"].get("device") == "cpu":
            missing.append(line)
        elif check["status"] == "pass":
            shown.append(line)
    return shown, missing
