"""Builds a wheel inside an image: a program for the image's Python, never imported by the rest.

`python3 inside.py WORK.json`, where WORK.json names the sdist, the wheels of its build
requirements (and which of them is pip, if the image has none), the output directory, variables, and
the memory of one compiler. What the build prints
goes to standard error. The output directory gets `wheel/` and `made.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_QUIET = ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--no-index", "--no-deps"]


def jobs(cores: int, free_bytes: int, each_bytes: int) -> int:
    """How many compilers run at a time: one for each core, if the memory is enough for them."""
    return max(1, min(cores, free_bytes // each_bytes))


def free_memory(root: Path) -> int:
    """The bytes that programs can still get: of the machine, and of the control group's limit."""
    fields = (line.split() for line in _lines(root / "proc/meminfo"))
    found = [int(words[1]) << 10 for words in fields if words[:1] == ["MemAvailable:"]]
    group = root / "sys/fs/cgroup"
    limit, used = (_lines(group / name)[:1] for name in ("memory.max", "memory.current"))
    if limit and limit[0].isdigit() and used and used[0].isdigit():
        found.append(max(0, int(limit[0]) - int(used[0])))
    return min(found, default=0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _run(argv: list[str], environment: dict[str, str]) -> int:
    return subprocess.run(
        argv, env=environment, stdout=sys.stderr, stderr=subprocess.STDOUT, check=False
    ).returncode


def _line_of(argv: list[str], environment: dict[str, str], sign: str) -> list[str]:
    """The line of a program's output that has a sign; [] if it cannot be run."""
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    except OSError:
        return []
    return [line.strip() for line in done.stdout.splitlines() if sign in line][:1]


def main() -> int:
    """Install the build requirements beside the image's packages, build, say with what."""
    work: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    output = Path(work["output"])
    scratch = output / "scratch"
    site, temporary = scratch / "site", scratch / "tmp"
    temporary.mkdir(parents=True)
    environment = {**os.environ, **work["environment"]}
    environment["TMPDIR"] = str(temporary)
    environment["HOME"] = str(temporary)
    pip = [sys.executable, "-m", "pip"]
    if work["wheels"]:
        first = [sys.executable, f"{work['pip']}/pip"] if work.get("pip") else pip
        argv = [*first, "install", *_QUIET, "--quiet", "--target", str(site), *work["wheels"]]
        if code := _run(argv, environment):
            return code
        environment["PYTHONPATH"] = str(site)
        environment["PATH"] = f"{site / 'bin'}:{environment['PATH']}"
    cores = len(os.sched_getaffinity(0))
    most = jobs(cores, free_memory(Path("/")), work["memory_per_job"])
    environment.setdefault("MAX_JOBS", str(most))
    environment.setdefault("NVCC_THREADS", "1")  # MAX_JOBS counts every compiler
    sys.stderr.write(f"gpu-provision: {environment['MAX_JOBS']} jobs\n")
    wheels = ["--wheel-dir", str(output / "wheel"), "--no-build-isolation", "--verbose"]
    code = _run([*pip, "wheel", *_QUIET, *wheels, work["sdist"]], environment)
    if code == 0:
        made = {
            "compiler": [
                *_line_of(["nvcc", "--version"], environment, "release"),
                *_line_of(["g++", "--version"], environment, "g++"),
            ]
        }
        (output / "made.json").write_text(json.dumps(made), encoding="utf-8")
    shutil.rmtree(scratch, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
