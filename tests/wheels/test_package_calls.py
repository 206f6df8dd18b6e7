"""A row of the suite's table of calls, on the real package: whole, and with a broken library."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

from tests import ROOT
from tests.kit.index_wheels import downloaded
from tests.kit.programs import run_program
from verify.checks.libraries import native

WHEELS = ("numpy==2.4.6", "ctranslate2==4.8.5")
ASK = """
import json, sys
from verify.checks.libraries.packages import _import, judge_packages
found = _import(sys.argv[1])
outcome = judge_packages([found], gpus=0)
print(json.dumps([outcome.status.value, outcome.message]))
"""


def installed(folder: Path) -> Path:
    """The site directory that the wheels were unpacked into."""
    for requirement in WHEELS:
        wheel = downloaded(requirement, folder)
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(folder / "site")
        wheel.unlink()
    return folder / "site"


def judged(package: str, site: Path) -> list[str]:
    """Status and message of libraries.packages for a package in a folder of its own."""
    assert package in {row["package"] for row in native.table()["calls"]}
    done = run_program(
        [sys.executable, "-c", ASK, package],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_function_of_the_table_runs_unless_the_library_is_broken(tmp_path: Path) -> None:
    site = installed(tmp_path)
    assert judged("ctranslate2", site) == ["pass", "imported: ctranslate2 4.8.5"]
    (library,) = site.glob("ctranslate2.libs/libctranslate2-*")
    library.write_bytes(library.read_bytes()[:64])
    status, message = judged("ctranslate2", site)
    assert status == "fail", message
    assert message.startswith("ctranslate2 4.8.5 cannot be imported")
