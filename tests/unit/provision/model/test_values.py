"""The values of a plan are cheap to declare: every command starts with them."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT


def test_a_plan_is_made_without_dataclasses() -> None:
    """Their library takes as long to import as the interpreter takes to start."""
    code = (
        "import sys, provision.cli.main, provision.resolve; sys.exit('dataclasses' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
