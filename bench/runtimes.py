"""What it costs `provision lock --with` to look at the CUDA that wheels are compiled for.

    ./run python bench/runtimes.py [PACKAGE ...]        # needs the package index

Each lock is made in turn as it is, and without the look, in one run, so that a busy machine and a
slow index slow both; medians are compared. The first round of each is not counted: it fills uv's
cache. The look may cost a tenth.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 5
PACKAGES = ("bitsandbytes", "transformers", "vllm")
HOST = ("--gpu", "H100", "--driver", "580.95.05", "--base", "bootstrap")
CALL = "import sys; from provision.cli.main import main; sys.exit(main(sys.argv[1:]))"
WITHOUT = "import provision.build.package_cuda as p; p.needed_cuda = lambda *_, **__: None\n"


def seconds(code: str, package: str, folder: Path, home: str) -> float:
    """Wall time of one lock."""
    argv = [sys.executable, "-c", code, "lock", *HOST, "--with", package]
    env = {**os.environ, "HOME": home, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"lock --with {package}: {done.stderr[-800:]}")
    return time.perf_counter() - began


def main() -> None:
    """Print the medians and their ratio."""
    for package in sys.argv[1:] or PACKAGES:
        with tempfile.TemporaryDirectory() as home:
            folder = Path(home) / "project"
            folder.mkdir()
            ways = {"as it is": CALL, "without the look": WITHOUT + CALL}
            times: dict[str, list[float]] = {name: [] for name in ways}
            for rnd in range(ROUNDS + 1):
                for name, code in ways.items():
                    took = seconds(code, package, folder, home)
                    if rnd:
                        times[name].append(took)
            one, other = (statistics.median(found) for found in times.values())
            print(f"{package:<20} {one:5.1f} s, without it {other:5.1f} s  {one / other:4.2f}")


if __name__ == "__main__":
    main()
