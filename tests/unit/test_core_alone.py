"""The core stands alone: without the fleet, the doctor and the page it plans, locks, builds and
verifies, and its tests pass.

Any import of them in the core breaks this: the tree is copied without them, and commands and tests
run there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from provision.cli.registry import HOUSES
from tests import ROOT
from tests.kit.programs import run_program

TESTS = (
    "tests/unit/provision/cli/test_help.py",
    "tests/unit/provision/cli/test_start.py",
    "tests/unit/provision/cli/commands/test_export.py",
    "tests/unit/provision/verification/test_cut.py",
)
COMMANDS = (
    ("plan", "--gpu", "RTX 4090", "--driver", "580.95.05"),
    ("plan", "--gpu", "RTX 4090", "--driver", "580.95.05", "--matrix", "--json"),
    ("build", "--dry-run", "--gpu", "RTX 4090", "--driver", "580.95.05"), ("lock", "--help-all"),
    ("run", "--help"), ("verify", "--help"), ("export", "kubernetes", "--help"), ("detect",),
)  # fmt: skip


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without the houses and their tests."""
    place = tmp_path_factory.mktemp("core")
    houses = {f"provision/{name}" for name in HOUSES}
    houses |= {f"tests/unit/{name}" for name in houses}

    def ignored(directory: str, names: list[str]) -> list[str]:
        here = Path(directory).relative_to(ROOT)
        return [one for one in names if one == "__pycache__" or str(here / one) in houses]

    for name in ("provision", "images", "verify", "tests", "docs", "tools"):
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    for name in ("pyproject.toml", "Dockerfile.cuda", "README.md"):
        shutil.copy(ROOT / name, place)
    return place


def run(core: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(core), "PYTHONSAFEPATH": "1"}
    return run_program([sys.executable, *words], cwd=core, env=env, timeout=300)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_core_works(core: Path, words: tuple[str, ...]) -> None:
    done = run(core, "-m", "provision", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("words", [("fleet", "plan", "."), ("doctor",), ("train.log",)], ids=str)
def test_a_command_that_is_not_there_is_unknown(core: Path, words: tuple[str, ...]) -> None:
    done = run(core, "-m", "provision", *words)
    assert done.returncode == 2
    assert "names no command" in done.stderr


def test_the_tests_of_the_core_pass(core: Path) -> None:
    done = run(core, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS)
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_file_of_the_core_imports_a_house(core: Path) -> None:
    """Nor does a test of it, at its top or in a function."""
    imports = re.compile(rf"^\s*(?:from|import) provision\.(?:{'|'.join(HOUSES)})\b", re.MULTILINE)
    files = [*(core / "provision").rglob("*.py"), *(core / "tests/unit/provision").rglob("*.py")]
    assert [file for file in files if imports.search(file.read_text("utf-8"))] == []
    assert len(files) > 300
