"""A virtual environment for each framework, made once and kept in the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import need
from tests.kit.programs import run_program

ROOT = Path(__file__).parents[2]
# Builds that compute on a CPU. pip, not uv: a machine may be set up to find its own torch by pip.
PINS = {
    "pytorch": ("torch==2.13.0", "numpy"),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "jax": ("jax==0.10.2",),
}
INSTALL_LIMIT_S = 900
# The other lane computes, too, and a thread that waits in a loop keeps a core from it.
ENV = {**os.environ, "OMP_WAIT_POLICY": "passive"}


def python_of(framework: str) -> Path:
    """The interpreter that has the framework; it is installed where it is not there yet."""
    folder = ROOT / ".frameworks" / framework
    stamp, wanted = folder / "stamp", " ".join((sys.version.split()[0], *PINS[framework]))
    if not stamp.is_file() or stamp.read_text() != wanted:
        make = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)]
        subprocess.run(make, check=True, timeout=120)
        python = str(folder / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
        done = run_program(
            [*pip, "--disable-pip-version-check", *PINS[framework]], timeout=INSTALL_LIMIT_S
        )
        if done.returncode:
            need.lacking(f"{framework} cannot be installed: {done.stderr[-500:]}")
        stamp.write_text(wanted)
    return folder / "bin" / "python"


class Command(NamedTuple):
    """Words after `verify`, code that runs before it, and variables: see `forks`."""

    argv: tuple[str, ...]
    fault: str = ""
    env: Mapping[str, str] = {}


def run_forked(
    groups: Mapping[str, Sequence[Command]], cwd: Path = ROOT, env: Mapping[str, str] = ENV
) -> dict[str, list[subprocess.CompletedProcess[str]]]:
    """How the commands of each group ended, which ran with PyTorch at the same time."""
    done = run_program(
        [python_of("pytorch"), "-m", "tests.frameworks.forks"],
        given=json.dumps({name: [one._asdict() for one in some] for name, some in groups.items()}),
        cwd=cwd,
        env={**env, "PYTHONPATH": str(ROOT)},
        timeout=INSTALL_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        said = json.loads(line)
        assert len(said["ends"]) == len(groups[said["group"]]), said
        pairs = zip(groups[said["group"]], said["ends"], strict=True)
        found[said["group"]] = [subprocess.CompletedProcess(one.argv, *end) for one, end in pairs]
    return found
