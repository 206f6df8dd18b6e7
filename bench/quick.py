"""What `verify --level quick` costs beyond `import torch`, in seconds.

    .frameworks/pytorch/bin/python bench/quick.py      # with a Python that has torch
    .frameworks/pytorch/bin/python bench/quick.py --level standard --before DIR

All are started in turn, in one run, so that a busy machine slows all; medians are compared. The
budget of `quick` is 5 s over the import. The slowest checks follow, as the suite itself timed them.
DIR is a checkout of an earlier version: the ratio to it says whether a level became slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET_S = 5.0
SLOWEST = 5


def seconds(argv: list[str], tree: Path) -> tuple[float, str]:
    """Wall time of one run, and what it printed. The suite's exit code is its verdict."""
    began = time.perf_counter()
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, cwd=tree
    )
    return time.perf_counter() - began, done.stdout


def main() -> int:
    """Print the medians; 1 where the budget is not kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", default="quick")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, metavar="DIR")
    args = parser.parse_args()
    bare = [sys.executable, "-c", "import torch"]
    suite = [sys.executable, "-m", "verify", "--level", args.level, "--json"]
    imports, suites, earlier = [], [], []
    checks: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        imports.append(seconds(bare, ROOT)[0])
        if args.before:
            earlier.append(seconds(suite, args.before)[0])
        spent, text = seconds(suite, ROOT)
        suites.append(spent)
        for row in json.loads(text)["checks"]:
            checks.setdefault(row["id"], []).append(row["seconds"])
    base, whole = statistics.median(imports), statistics.median(suites)
    print(f"import torch     {base:6.2f} s")
    print(f"verify, {args.level:<8} {whole:6.2f} s, {whole / base:.1f} times the import")
    if earlier:
        before = statistics.median(earlier)
        print(f"the same, before {before:6.2f} s: now {whole / before:.2f} of it")
    medians = {name: statistics.median(found) for name, found in checks.items()}
    late = False
    if args.level == "quick":
        print(f"over the import  {whole - base:6.2f} s, of {BUDGET_S:.0f} s that are allowed")
        late = whole - base > BUDGET_S
    for name in sorted(medians, key=lambda name: -medians[name])[:SLOWEST]:
        print(f"  {name:<22} {medians[name]:6.2f} s")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
