"""The checks on pretended GPUs: their GPU branches do not crash or hang, and say what is so."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from tests.frameworks.place import ENV, ROOT, python_of
from tests.kit.programs import run_program
from tests.mutations.pretended import LEFT_OUT
from verify.checks import CHECKS

pytestmark = pytest.mark.frameworks

# Skipped on this CPU build for reasons of its own, whatever is pretended.
MAY_SKIP = {
    "libraries.files": "no CUDA library is loaded",
    "libraries.versions": "no CUDA library is loaded",
    "libraries.vision": "torchvision is not installed",
    "libraries.packages": "no package was asked for",
    "numerics.compile": "torch.compile cannot work here",
}
ONE_GPU = ("one GPU", "1 GPU")
START = (
    "devices.count",
    "devices.architectures",
    "devices.kernel",
    "memory.free",
    "numerics.matmul",
    "training.loss",
    "loading.workers",
)


FULL = ("full at once", "full at the third move")
SECOND = "the second computes wrongly"
COPIES = "copies to the second are wrong"
PREDICTS = "the second predicts wrongly"
LINKS = "links count errors"
ON_EACH = (
    "numerics.determinism",
    "numerics.attention",
    "numerics.compile",
    "training.loss",
    "training.same",
    "training.amp",
)
# Which checks run with a fault, on two GPUs.
ASKED = {
    **{f"error {number}": START for number in (2, 46, 100, 802, 803, 999)},
    **dict.fromkeys(FULL, ("devices.kernel", "numerics.matmul", "training.loss", "training.same")),
    SECOND: ("devices.kernel", "numerics.matmul"),
    COPIES: ON_EACH,
}
OWN = {
    "pytorch": {LINKS: ("collectives.bandwidth",)},
    "jax": {},
    "tensorflow": {PREDICTS: ("training.keras",)},
}
COUNTS = {"pytorch": (1, 2, 8), "jax": (2,), "tensorflow": (2,)}


@functools.cache
def said(framework: str) -> dict[tuple[int, str], dict[str, dict[str, Any]]]:
    """What each check said in each world: one process, which imports the framework once."""
    asked = {**ASKED, **OWN[framework]}
    worlds = [
        *(str(count) for count in COUNTS[framework]),
        *(f"2:{fault}:{','.join(words)}" for fault, words in asked.items()),
    ]
    done = run_program(
        [str(python_of(framework)), "-m", "tests.mutations.pretended", framework, *worlds],
        cwd=ROOT,
        env={**ENV, "OMP_NUM_THREADS": "1"},
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    found: dict[tuple[int, str], dict[str, dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            found.setdefault((row["count"], row["fault"]), {})[row["check"]] = row
    return found


@pytest.mark.parametrize(
    ("framework", "count"),
    [(framework, count) for framework, counts in COUNTS.items() for count in counts],
)
def test_every_check_comes_to_its_end_on_sound_gpus(framework: str, count: int) -> None:
    found = said(framework)[count, ""]
    assert set(found) == {check.id for check in CHECKS[framework]} - set(LEFT_OUT[framework])
    wrong = [row for row in found.values() if row["status"] in ("fail", "error")]
    assert wrong == []
    for name, row in found.items():
        if row["status"] == "skip":
            alone = count == 1 and row["message"].startswith(ONE_GPU)
            assert alone or MAY_SKIP.get(name, "-") in row["message"], row


DOES_NOT_START = [
    ("error 2", "fail", "no GPU memory is left"),
    ("error 46", "skip", "another process uses the GPU"),
    ("error 100", "fail", "no GPU is visible to CUDA"),
    ("error 802", "fail", "fabric is not up"),
    ("error 803", "fail", "libcuda in the container is not the one of the host's driver"),
    ("error 999", "fail", "nvidia-uvm"),
]


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
@pytest.mark.parametrize(("fault", "status", "cause"), DOES_NOT_START)
def test_a_cuda_that_does_not_start_has_one_cause_everywhere(
    framework: str, fault: str, status: str, cause: str
) -> None:
    asked = [check.id for check in CHECKS[framework] if check.id in START]
    found = said(framework)[2, fault]
    assert {name: row["status"] for name, row in found.items()} == dict.fromkeys(asked, status)
    assert all(cause in row["cause"] for row in found.values()), found


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
@pytest.mark.parametrize("fault", FULL)
def test_a_full_gpu_is_said_to_be_full(framework: str, fault: str) -> None:
    found = said(framework)[2, fault]
    for row in found.values():
        words = " | ".join(filter(None, (row["message"], row["cause"], row["fix"])))
        assert row["status"] in ("fail", "error", "skip", "pass"), row
        assert row["status"] == "pass" or "memory" in words, row
    assert any(row["status"] != "pass" for row in found.values())


@pytest.mark.parametrize(
    ("framework", "fault", "asked", "word"),
    [
        ("pytorch", LINKS, "collectives.bandwidth", "GPU 1"),
        ("pytorch", SECOND, "devices.kernel", "GPU 1"),
        ("pytorch", SECOND, "numerics.matmul", "GPU 1"),
        ("jax", SECOND, "devices.kernel", "GPU 1"),
        ("jax", SECOND, "numerics.matmul", "GPU 1"),
        ("tensorflow", SECOND, "devices.kernel", "GPU 1"),
        ("tensorflow", SECOND, "numerics.matmul", "GPU 1"),
        ("tensorflow", PREDICTS, "training.keras", "GPU 1: "),
        *(
            (framework, COPIES, name, "GPU 1")
            for framework in COUNTS
            for name in ON_EACH
            if name not in LEFT_OUT[framework]
        ),
    ],
)
def test_the_gpu_that_is_at_fault_is_named(
    framework: str, fault: str, asked: str, word: str
) -> None:
    row = said(framework)[2, fault][asked]
    assert row["status"] == "fail", row
    assert word in " | ".join(filter(None, (row["message"], row["cause"], row["fix"]))), row


@pytest.mark.parametrize("probe", ["load", "collective", "soak", "faults"])
def test_a_probe_of_the_recording_measures(probe: str) -> None:
    done = run_program(
        [str(python_of("pytorch")), "-m", "tests.gpu.probes", "--pretend", probe],
        cwd=ROOT,
        env={**ENV, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {row["probe"] for row in rows} == {probe}
    errors = [row["error"] for row in rows if "error" in row]
    assert set(errors) == ({"a pretended GPU has no such fault"} if probe == "faults" else set())
