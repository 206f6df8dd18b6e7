"""The suite, from outside: what it is asked, how it is run in an image, and what its report shows.

The suite is never imported: inside an image it is a command, and here a process of its own.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from images import process
from images.errors import Failure
from images.spec import RunJob, RunResult
from provision.catalog import Catalog
from provision.console import Console
from provision.errors import BadInputError, Exit
from provision.labels import expectations
from provision.model import HostFacts, Plan, Warned

_EXPECT_PATH = "/run/gpu-provision/expect.json"
_ENDED = {"pass": "passed", "fail": "failed", "error": "in error", "skip": "not run"}
_VERDICTS = {0: "fit", 1: "unfit", 7: "no-verdict"}  # the suite's exit codes
_SHM_BYTES = 1 << 30
_STACK_BYTES = 64 << 20


class BrokenReportError(Failure):
    """The suite ended without a report."""

    code = "no-report"
    exit_code = Exit.UNFIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of the suite: how thorough, what may not be skipped, and what alone to run
    (empty: everything). `timeout_s` is for the whole run.
    """

    level: str = "standard"
    require: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    timeout_s: float = 1800.0

    def words(self) -> list[str]:
        """The suite's options that name checks."""
        named = (("--require", self.require), ("--only", self.only))
        return [word for option, names in named if names for word in (option, ",".join(names))]


def run_here(words: Sequence[str]) -> process.Completed:
    """The suite's own command line on this machine: for what it knows, not for what it proves."""
    argv = [sys.executable, "-m", "verify", *words]
    return process.run(argv, timeout_s=120.0, cwd=suite_directory().parent, apart=True)


def suite_directory() -> Path:
    """Where the verify package lies; it is copied, never imported."""
    from importlib.util import find_spec

    found = find_spec("verify")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations)))


def check_names(asked: Asked, framework: str) -> None:
    """Refuse, before anything slow, the names of checks that the suite would refuse after it."""
    if not asked.words():
        return
    done = run_here(["--list", "--framework", framework, *asked.words()])
    if not done.ok:
        raise BadInputError(
            done.last_lines(1).removeprefix("verify: "),
            fix=f"All of them: verify --list --framework {framework}",
        )


def gpu_runtime_warning(facts: HostFacts) -> Warned | None:
    """Told before the build, since the verification after it would be the first to fail. Only a
    warning: an engine that uses the toolkit's hook does not say so.
    """
    docker = next((e for e in facts.engines or () if e.name == "docker"), None)
    if not facts.gpus or docker is None or docker.gpu_runtime is not False or docker.cdi_devices:
        return None
    return Warned(
        code="gpu-runtime-not-seen",
        message="This host has GPUs, but its Docker engine shows neither the NVIDIA runtime nor "
        "CDI devices; the suite may not get to them.",
        fix="Install the NVIDIA Container Toolkit, then: "
        "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
    )


def gpus_to_request(facts: HostFacts | None) -> str:
    """How the engine is asked for GPUs: not at all where there are none, by CDI where only that
    is set up, by the NVIDIA runtime else.
    """
    if facts is None or not facts.gpus:
        return "none"
    docker = next((e for e in facts.engines or () if e.name == "docker"), None)
    if docker and not docker.gpu_runtime and docker.cdi_devices:
        return "cdi"
    return "runtime"


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
    asked: Asked,
    *,
    image_id: str,
    gpus: str,
    catalog: Catalog,
    console: Console,
    emulator: str = "",
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Run the suite inside the image, as `runner` calls it. Gives its report, and what could not
    be granted. `gpus`: how they are asked for (`RunJob.gpus`). `emulator`: what emulates the
    image's processor; such an image is given no GPU, since this machine's driver is not for it.
    """
    from images.layers.own import SUITE

    if emulator:
        gpus, facts = "none", None
    expect = expectations(plan, facts, image_id, catalog.gpus, emulator=emulator)
    command = ["python3", SUITE, "--json", "--level", asked.level, "--expect", _EXPECT_PATH]
    job = RunJob(
        image=image,
        command=(*command, *asked.words()),
        gpus=gpus,
        files={_EXPECT_PATH: json.dumps(expect).encode()},
        environment={"GPU_PROVISION_PROGRESS": "1"},  # a line for each check
        shm_bytes=_SHM_BYTES,
        stack_bytes=_STACK_BYTES,
        timeout_s=asked.timeout_s,
    )
    by = runner.name  # asked now: an engine that has gone later must not cost the report
    result = runner.run(job, console.suite_line)
    report = read_report(result.stdout)
    if report is None or report["verdict"] != _VERDICTS.get(result.exit_code):
        raise BrokenReportError(
            f"The suite ended with exit code {result.exit_code} and without a report.",
            fix="Its last lines say why. Run it by hand in the image: verify",
            detail=result.stderr_tail or result.stdout[-2000:],
        )
    console.result(f"{in_numbers(report)}, by {by}")
    return report, result.notes


def in_numbers(report: Mapping[str, Any]) -> str:
    """The verdict and how many checks ended how: "no-verdict: 9 passed, 27 not run"."""
    ended = Counter(
        "passed on the CPU"
        if check["status"] == "pass" and check["measured"].get("device") == "cpu"
        else _ENDED.get(check["status"], "not run")
        for check in report["checks"]
    )
    order = ("passed", "passed on the CPU", "failed", "in error", "not run")
    counts = ", ".join(f"{ended[word]} {word}" for word in order if ended[word])
    return f"{report['verdict']}: {counts}"


def read_report(stdout: str) -> dict[str, Any] | None:
    """The report in what the suite wrote, or None. An entrypoint may print its banner before it
    (those of nvidia/cuda do), and what only looks like a report is none.
    """
    decoder = json.JSONDecoder(parse_constant=_no_number)
    for start in re.finditer(r"^\{$", stdout, re.MULTILINE):
        try:
            found, _ = decoder.raw_decode(stdout, start.start())
        except (ValueError, RecursionError):
            continue
        if _is_report(found):
            return dict(found)
    return None


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def report_bytes(report: Mapping[str, Any]) -> bytes:
    """The report as a file holds it and --json prints it."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode("utf-8", "backslashreplace")  # half a pair becomes its JSON escape


def _is_report(found: object) -> bool:
    if not isinstance(found, dict) or found.get("verdict") not in _VERDICTS.values():
        return False
    checks = found.get("checks")
    return (
        isinstance(checks, list)
        and bool(checks)
        and all(
            isinstance(check, dict)
            and all(isinstance(check.get(part), str) for part in ("id", "status", "message"))
            and all(isinstance(check.get(part), str | None) for part in ("cause", "fix"))
            and isinstance(check.get("measured"), dict)
            for check in checks
        )
    )


def proven(report: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What the checks have shown, and what none has: a check that did not run, or that had to
    make do with the CPU, has shown nothing of the GPU.
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


def run_command(image: str, *, gpus: str, notes: Sequence[str]) -> str:
    """What a person types next."""
    words = ["docker", "run", "--rm", "-it"]
    words += {"runtime": ["--gpus", "all"], "cdi": ["--device", "nvidia.com/gpu=all"]}.get(gpus, [])
    words += ["--shm-size", "1g"]
    refused = " ".join(notes)
    for name, value in (("memlock", -1), ("stack", _STACK_BYTES)):
        if f"ulimit {name}" not in refused:
            words += ["--ulimit", f"{name}={value}"]
    return " ".join([*words, image])
