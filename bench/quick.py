"""What `verify --level quick` costs beyond `import torch`, in seconds.

    .frameworks/pytorch/bin/python bench/quick.py      # with a Python that has torch

Both are started in turn, in one run, so that a busy machine slows both; medians are compared. The
budget is 5 s over the import. The slowest checks follow, as the suite itself timed them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 7
BUDGET_S = 5.0
SLOWEST = 5


def seconds(argv: list[str]) -> tuple[float, str]:
    """Wall time of one run, and what it printed. The suite's exit code is its verdict."""
    began = time.perf_counter()
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, cwd=ROOT
    )
    return time.perf_counter() - began, done.stdout


def main() -> int:
    """Print the medians; 1 where the budget is not kept."""
    bare = [sys.executable, "-c", "import torch"]
    quick = [sys.executable, "-m", "verify", "--level", "quick", "--json"]
    imports, suites = [], []
    checks: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        imports.append(seconds(bare)[0])
        spent, text = seconds(quick)
        suites.append(spent)
        for row in json.loads(text)["checks"]:
            checks.setdefault(row["id"], []).append(row["seconds"])
    base, whole = statistics.median(imports), statistics.median(suites)
    print(f"import torch     {base:6.2f} s")
    print(f"verify, quick    {whole:6.2f} s, {whole / base:.1f} times the import")
    print(f"over the import  {whole - base:6.2f} s, of {BUDGET_S:.0f} s that are allowed")
    medians = {name: statistics.median(found) for name, found in checks.items()}
    for name in sorted(medians, key=lambda name: -medians[name])[:SLOWEST]:
        print(f"  {name:<22} {medians[name]:6.2f} s")
    return int(whole - base > BUDGET_S)


if __name__ == "__main__":
    sys.exit(main())
