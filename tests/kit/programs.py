"""Programs that tests run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_program(
    argv: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    given: str = "",
    check: bool = False,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a program, with `given` as its input; what it wrote is text. `check`: it must succeed."""
    return subprocess.run(
        argv,
        cwd=cwd,
        env=env,
        input=given,
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
    )
