"""How much is tested of an image on a machine that may not be its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from images.engines.spec import RunJob
from provision.build.destination import Destination
from provision.build.next_commands import verify_words
from provision.catalog.loading import load
from provision.lock.labels import expectations
from provision.model.plan import Gpu, GpuVerdict, HostFacts, Plan, Verdict
from provision.output.console import Console
from provision.verification.scope import SuiteScope, scope_of
from provision.verification.suite import SuiteRequest, run_suite
from tests.kit.cases import cases
from verify.checks import CHECKS
from verify.model.check import is_outside
from verify.model.expectations import ExpectationsError, parse

NO_GPU = "this machine has no NVIDIA GPU"
H100 = ("NVIDIA H100 80GB HBM3", "9.0")
NOTHING = HostFacts(gpus=())


def plan(
    *gpus: tuple[str | None, str | None],
    driver: str | None = None,
    need: str | None = None,
    verdict: Verdict = "direct",
) -> Plan:
    return Plan(
        verdict=verdict,
        framework="pytorch",
        framework_version="2.9.1",
        driver_have=driver,
        driver_need=need,
        gpus=tuple(
            GpuVerdict(name=name, compute_capability=capability, runs="sm_90", ok=True)
            for name, capability in gpus
        ),
    )


def machine(*gpus: Gpu, driver: str | None = "580.95.05") -> HostFacts:
    return HostFacts(gpus=gpus, driver=driver)


@cases(
    "wanted here checks because",
    ("a plan for any machine, no GPU", plan(), NOTHING, "results", NO_GPU),
    ("the GPUs are not known", plan(), HostFacts(), "results", NO_GPU),
    ("an H100, on a laptop", plan(H100), NOTHING, "image",
     "the plan is for NVIDIA H100 80GB HBM3, and this machine has no NVIDIA GPU"),
    ("a capability, on a laptop", plan((None, "9.0")), NOTHING, "image",
     "the plan is for compute capability 9.0, and this machine has no NVIDIA GPU"),
    ("a driver, on a laptop", plan(driver="580.95.05"), NOTHING, "image",
     "the plan is for driver 580.95.05, and this machine has no NVIDIA driver"),
    ("another card of the same capability", plan(H100),
     machine(Gpu(name="NVIDIA H100 PCIe", compute_capability=(9, 0))), None, None),
    ("another GPU", plan(H100), machine(Gpu(name="Tesla T4", compute_capability=(7, 5))), "image",
     "the plan is for NVIDIA H100 80GB HBM3, and this machine has Tesla T4"),
    ("another GPU, whose capability the driver does not say", plan(H100),
     machine(Gpu(name="Tesla T4")), "image",
     "the plan is for NVIDIA H100 80GB HBM3, and this machine has Tesla T4"),
    ("a GPU that nobody knows may be the plan's", plan(H100),
     machine(Gpu(name="NVIDIA Unheard Of")), None, None),
    ("a plan for a GPU that nobody knows", plan(("X", None)),
     machine(Gpu(name="Tesla T4", compute_capability=(7, 5))), None, None),
    ("one of two GPUs is the plan's", plan(H100),
     machine(Gpu(name="Tesla T4", compute_capability=(7, 5)),
             Gpu(name="NVIDIA H100 PCIe", compute_capability=(9, 0))), None, None),
    ("a plan without a GPU, on a machine with one", plan(),
     machine(Gpu(name="Tesla T4", compute_capability=(7, 5))), None, None),
    ("a driver that is too old for the plan", plan(H100, need="580.65.06"),
     machine(Gpu(name="H", compute_capability=(9, 0)), driver="535.1"), "image",
     "the plan needs driver 580.65.06, and this machine has 535.1"),
    ("cuda-compat replaces the driver's library", plan(H100, need="580.65.06", verdict="forward"),
     machine(Gpu(name="H", compute_capability=(9, 0)), driver="535.1"), None, None),
)  # fmt: skip
def test_how_much_is_tested(
    wanted: Plan, here: HostFacts, checks: str | None, because: str | None
) -> None:
    found = scope_of(wanted, here, load())
    assert (found and found.checks, found and found.because) == (checks, because)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_which_checks_a_scope_leaves_out(framework: str) -> None:
    wanted = plan(H100)
    for checks in ("image", "results"):
        scope: Any = SuiteScope(checks=checks, because=NO_GPU)
        expected = expectations(wanted, NOTHING, None, scope=scope.to_json())
        read = parse(json.dumps(expected)).scope
        ids = {check.id for check in CHECKS[framework] if is_outside(check, read)}
        kept = {check.id for check in CHECKS[framework]} - ids
        assert {"devices.nvml", "devices.kernel", "libraries.packages"} <= kept
        assert ("memory.leak" in kept) == (checks == "results")
        assert {"speed.gemm", "collectives.bandwidth"} <= ids
        assert ("training.loss" in ids) == (checks == "image")
    assert not any(is_outside(check, None) for check in CHECKS[framework])


@cases(
    "checks gpus expected",
    ("the GPUs of another machine are not given to it", "image", "none", []),
    ("those of its own machine are", "results", "runtime", ["Tesla T4"]),
    ("everything is tested", None, "runtime", ["Tesla T4"]),
)
def test_which_gpus_an_image_gets(checks: Any, gpus: str, expected: list[str]) -> None:
    jobs: list[RunJob] = []

    class Ran(Exception):  # noqa: N818  ends the test where the image would run
        pass

    class Runner:
        name = "docker"

        def run(self, job: RunJob, on_line: object) -> Any:
            del on_line
            jobs.append(job)
            raise Ran

    scope = None if checks is None else SuiteScope(checks=checks, because=NO_GPU)
    here = machine(Gpu(name="Tesla T4", compute_capability=(7, 5)))
    with pytest.raises(Ran):
        run_suite(
            Runner(), "i", plan(H100), here, SuiteRequest(), image_id="sha256:1", gpus="runtime",
            catalog=load(), console=Console(), scope=scope,
        )  # fmt: skip
    (job,) = jobs
    (told,) = job.files.values()
    assert (job.gpus, [gpu["name"] for gpu in json.loads(told)["gpus"]]) == (gpus, expected)


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(ExpectationsError, match="expected image or results, found 'half'"):
        parse('{"schema": 1, "scope": {"checks": "half"}}')


@cases(
    "destination command",
    ("an engine", Destination(kind="engine"), "provision verify t:1"),
    ("one's own layout", Destination(kind="local"), "provision verify t:1"),
    ("a directory", Destination(kind="layout", where="out"), "provision verify oci:/p:t:1"),
    ("a file", Destination(kind="archive", where="out"), "provision verify oci-archive:/p"),
    ("a registry", Destination(kind="registry", where="r.example/t:2"),
     "provision verify r.example/t:2"),
)  # fmt: skip
def test_what_proves_the_rest(destination: Destination, command: str) -> None:
    assert verify_words(destination, "/p", "t:1") == command
