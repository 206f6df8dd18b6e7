"""The whole suite, as one file, on each real framework: nothing fails but what a CPU build must."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.frameworks.place import ENV, PINS, ROOT, python_of
from tests.kit.programs import run_program
from tools.release import write_suite
from verify.checks import CHECKS
from verify.model.check import LEVELS

pytestmark = pytest.mark.frameworks

SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text())
LIMIT_S = 1800
# What the frameworks of `place` lack, in the words of the checks that need it.
_LACKING = re.compile(r"CPU build|compiled without CUDA|was built without (cuDNN|NCCL)")


@pytest.fixture(scope="module", params=list(PINS))
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, subprocess.CompletedProcess[str], Any]:
    """The framework, the page for people and the report for machines of one standard run."""
    framework: str = request.param
    path: Path = tmp_path_factory.mktemp(framework) / "report.json"
    suite = write_suite(path.with_name("verify.pyz"))
    done = run_program(
        [python_of(framework), suite, "--framework", framework, "--report", str(path)],
        cwd=path.parent,
        env=ENV,
        timeout=LIMIT_S,
    )
    assert path.is_file(), done.stderr
    return framework, done, json.loads(path.read_text())


Ran = tuple[str, "subprocess.CompletedProcess[str]", Any]


def test_only_what_a_cpu_build_lacks_fails(ran: Ran) -> None:
    _, done, report = ran
    for check in report["checks"]:
        said = f"{check['message']} | {check['cause']}"
        assert check["status"] != "error", check
        assert check["status"] != "fail" or _LACKING.search(said), check
    assert (report["verdict"], done.returncode) == ("unfit", 1)


def test_what_can_compute_on_a_cpu_does(ran: Ran) -> None:
    framework, _, report = ran
    passed = {check["id"] for check in report["checks"] if check["status"] == "pass"}
    families = ("numerics.", "training.", "speed.gemm")
    computing = {c.id for c in _standard(framework) if c.id.startswith(families)}
    assert computing - {"numerics.graphs"} <= passed  # CUDA's graphs are of a GPU


def test_no_gpu_check_is_proven_by_a_cpu(ran: Ran) -> None:
    framework, done, report = ran
    needed = {check.id for check in _standard(framework) if check.gpu}
    for check in report["checks"]:
        if check["id"] in needed and check["status"] == "pass":
            assert check["measured"]["device"] == "cpu", check
    proven = done.stdout.partition("\nproven ")[2].partition("\non the CPU ")[0]
    assert not needed & set(re.findall(r"[a-z]+\.[a-z-]+", proven))


def test_the_report_is_as_its_schema_says_and_complete(ran: Ran) -> None:
    framework, _, report = ran
    jsonschema.validate(report, SCHEMA)
    assert [check["id"] for check in report["checks"]] == [c.id for c in _standard(framework)]
    assert report["environment"]["framework"]["name"] == framework


def test_the_page_fits_a_terminal_and_tells_of_every_check(ran: Ran) -> None:
    framework, done, _ = ran
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert all(any(check.id in line for line in lines) for check in _standard(framework))
    assert "Traceback" not in done.stdout + done.stderr


def _standard(framework: str) -> list[Any]:
    upto = LEVELS[: LEVELS.index("standard") + 1]
    return [one for one in CHECKS[framework] if one.level in upto and not one.on_request]
