"""Every check of the suite, as one file, catches every fault that the mutation table seeds, on the
real framework.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.frameworks.place import ENV, ROOT, python_of
from tests.kit.programs import run_program
from tests.mutations import Row, tables
from tools.release import write_suite
from verify.checks import CHECKS

pytestmark = pytest.mark.frameworks

TABLES = tables()
LIMIT_S = 2400
# As many rows run at a time as there are cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}


@pytest.fixture(scope="session")
def said(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[tuple[str, str], Mapping[str, Any]]]:
    """What each row's check said, run once: one process for each framework, one after another."""
    place = tmp_path_factory.mktemp("mutations")
    suite = write_suite(place / "verify.pyz")
    (place / "tests").symlink_to(ROOT / "tests")  # without the checkout's verify beside it
    found = {}
    for framework in TABLES:
        done = run_program(
            [python_of(framework), "-m", "tests.mutations.runner", framework],
            cwd=place,
            env={**ENV, **ONE_THREAD, "PYTHONPATH": str(suite)},
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found[framework] = {(row["check"], row["fault"]): row for row in rows}
    return found


@pytest.mark.parametrize(
    ("framework", "row"),
    [
        pytest.param(framework, row, id=f"{framework}: {row.check}: {row.fault}")
        for framework, rows in TABLES.items()
        for row in rows
    ],
)
def test_the_fault_is_caught(
    framework: str, row: Row, said: dict[str, dict[tuple[str, str], Mapping[str, Any]]]
) -> None:
    result = said[framework][row.check, row.fault]
    assert result["sound"]["status"] == "pass", result["sound"]
    seeded = result["seeded"]
    words = " | ".join(filter(None, (seeded["message"], seeded["cause"], seeded["fix"])))
    assert (seeded["status"], row.word in words) == (row.status, True), seeded
    if row.status != "pass":  # a fault that leaves the machine fit is only reported
        assert seeded["cause"]
        assert seeded["fix"]


@pytest.mark.parametrize(
    ("framework", "check"),
    [(framework, check.id) for framework, checks in CHECKS.items() for check in checks],
)
def test_every_check_has_a_fault(framework: str, check: str) -> None:
    assert check in {row.check for row in TABLES[framework]}
