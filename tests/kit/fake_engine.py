"""A small stand-in for a Docker engine: it answers what a verification asks of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from images.engines.docker_errors import EngineError
from images.engines.spec import RunJob, RunResult
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock
from provision.model.plan import Base, Framework, Gpu, HostFacts, Plan
from verify.checks import CHECKS
from verify.commands import main as cli

IMAGE = f"sha256:{'a1' * 32}"
TAG = "team/torch:1"
H100 = Gpu(name="NVIDIA H100 80GB HBM3", compute_capability=(9, 0), uuid="GPU-1")
PLAN = Plan(
    verdict="direct",
    framework="pytorch",
    framework_version="2.0.1",
    cuda="11.7",
    wheel_tag="cu117",
    python="3.11",
    arch="x86_64",
    base=Base(kind="registry", reference="python:3.11-slim", python="3.11", glibc="2.36"),
)
FACTS = HostFacts(driver="535.104.05", arch="x86_64", gpus=(H100,))
CODES = {"fit": 0, "unfit": 1, "no-verdict": 7}


def check(name: str, status: str = "pass", **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "cause": None,
        "fix": None,
        "measured": {},
        "expected": {},
        "seconds": 0.5,
    }
    return {"id": name, "title": name, "status": status, "message": f"of {name}", **told, **more}


def metric(value: float) -> dict[str, Any]:
    return {
        "name": "gemm",
        "value": value,
        "unit": "TFLOP/s",
        "better": "higher",
        "repeats": 9,
        "spread": 0.001,
        "labels": {},
        "spec": None,
        "of_spec": None,
    }


def report(verdict: str = "fit", gemm: float = 600.0) -> dict[str, Any]:
    """What an honest suite says at the standard level."""
    rows = [check("speed.gemm", measured={"metrics": [metric(gemm)]})]
    if verdict == "unfit":
        words = {"cause": "a broken GPU", "fix": "run nvidia-smi", "at_fault": "node"}
        rows.append(check("devices.kernel", "fail", **words))
    if verdict == "no-verdict":
        rows.append(check("memory.free", "skip"))
    known = {row["id"]: row for row in rows}
    chosen, _ = cli.choose(CHECKS["pytorch"], "standard", None, None)
    return {
        "schema": 1,
        "verdict": verdict,
        "level": "standard",
        "environment": {
            "started": "2026-11-21T09:30:00Z",
            "image": IMAGE,
            "python": "3.11.2",
            "framework": {"name": "pytorch", "version": "2.0.1"},
            "kernel": "6.1.0",
            "arch": "x86_64",
            "glibc": "2.36",
            "cpus": 2,
            "shm_bytes": 1 << 30,
            "container": "docker",
            "visible_devices": None,
            "device_nodes": 1,
            "driver": "535.104.05",
            "cuda_driver": "12.2",
            "gpus": [
                {"name": H100.name, "uuid": H100.uuid, "compute_capability": "9.0", "mig": None}
            ],
            "driver_error": None,
        },
        **({"at_fault": "node"} if verdict == "unfit" else {}),
        "checks": [known.get(one.id, check(one.id)) for one in chosen],
    }


def row_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """One check of a report."""
    (row,) = [row for row in found["checks"] if row["id"] == name]
    assert isinstance(row, dict)
    return row


Runner = Callable[[RunJob], RunResult]


def ended(code: int, out: str, err: str = "") -> RunResult:
    return RunResult(exit_code=code, stdout=out, stderr_tail=err)


def gpu_check(name: str) -> bool:
    """Whether the suite gives no verdict without this check having run on a GPU."""
    return any(one.gpu for checks in CHECKS.values() for one in checks if one.id == name)


def says(found: dict[str, Any]) -> Runner:
    """An honest suite that finds what this report says, of the checks that it is asked for."""
    return lambda job: claims(as_asked(found, job))(job)


def interrupted(found: dict[str, Any]) -> dict[str, Any]:
    """What an honest suite says that was ended by SIGTERM."""
    verdict = "unfit" if found["verdict"] == "unfit" else "no-verdict"
    environment = {**found["environment"], "interrupted": "SIGTERM"}
    return {**found, "verdict": verdict, "environment": environment}


def claims(found: dict[str, Any], code: int | None = None) -> Runner:
    """A suite that gives this very report, whatever it is asked."""
    ends = CODES.get(str(found.get("verdict")), 0) if code is None else code
    return lambda _: ended(ends, json.dumps(found, indent=2))


def as_asked(found: dict[str, Any], job: RunJob) -> dict[str, Any]:
    """The report that an honest suite would give where these are its findings."""
    options = cli._parser().parse_args(list(job.command[2:]))
    expect = json.loads(job.files[options.expect])
    name = expect["framework"]["name"]
    chosen, required = cli.choose(CHECKS[name], options.level, options.only, options.require)
    known = {row["id"]: row for row in found["checks"]}
    rows = [known.get(one.id, check(one.id)) for one in chosen]
    for row in rows:
        if row["status"] == "skip" and row["id"] in required:
            row.update(status="fail", cause="it did not run")
    states = {row["status"] for row in rows}
    gpu = {row["status"] for row, one in zip(rows, chosen, strict=True) if one.gpu}
    verdict = "no-verdict" if "skip" in gpu or expect.get("emulator") else "fit"
    environment = {**found["environment"], "image": expect["image"]["digest"]}
    environment["framework"] = {**environment["framework"], "name": name}
    return {
        **found,
        "verdict": "unfit" if states & {"fail", "error"} else verdict,
        "level": options.level,
        "environment": environment,
        "checks": rows,
    }


@dataclass
class Engine:
    """What a verification asks of an engine."""

    suite: Runner = field(default_factory=lambda: says(report()))
    framework: Framework = "pytorch"
    requirements: tuple[str, ...] = ()
    cut: tuple[tuple[int, int], ...] = ()
    jobs: list[RunJob] = field(default_factory=list)
    digest: str = IMAGE
    emulated: bool = False
    lines: list[str] = field(default_factory=lambda: [" 1/2  pass  devices.kernel  0.5 s"])

    def emulates(self, image: str) -> bool:
        self.image_id(image)
        return self.emulated

    def image_id(self, image: str) -> str:
        if image not in {TAG, self.digest}:
            raise EngineError(f"There is no image {image} on this engine.", fix="Build it.")
        return self.digest

    def labels(self, image: str) -> dict[str, str]:
        self.image_id(image)
        plan = PLAN._replace(framework=self.framework, requirements=self.requirements)
        return labels_for(Lock(text="the lock", plan=plan, wheels=()), "1", self.cut)

    @property
    def name(self) -> str:
        return "docker 26.1"

    def names(self) -> tuple[str, ...]:
        return (TAG,)

    def has(self, image: str) -> bool:
        return image in {TAG, self.digest}

    def run(self, job: RunJob, on_line: Callable[[str], None]) -> RunResult:
        for line in self.lines:
            on_line(line)
        self.jobs.append(job)
        return self.suite(job)


def broken(message: str = "The engine stopped <&> \x1b[31m") -> Runner:
    def run(_: RunJob) -> RunResult:
        raise EngineError(message, fix="See its log.", detail="line 1\n```\nline 2")

    return run
