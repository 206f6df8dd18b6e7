"""How long it takes to judge the reports of 10,000 nodes, compare twins, and write the page.

    ./run python bench/fleet_verify.py [NODES]

The reports are a recorded one of an H200 with every number moved by 2 % of normal noise, in four
classes; 1 in 100 nodes has a failed check, 1 in 500 is 20 % slower in one number, 1 in 200 was not
reached. Beside time, memory and sizes it prints how many of those were found, and how many sound
nodes were called slow. The budget is 60 s, 500 MB, and 5 MB for the page.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
RECORDED = TOP / "tests" / "data" / "verify" / "h200" / "standard.json"
DRIVERS = ("535.104.05", "550.54.15", "570.124.06", "580.95.05")
NOISE = 0.02


def make(folder: Path, count: int) -> tuple[Path, dict[str, str]]:
    """The list, and what is wrong with the nodes with a fault, by name."""
    chance = random.Random(11)
    text = RECORDED.read_text(encoding="utf-8")
    faults: dict[str, str] = {}
    rows = []
    for number in range(count):
        name = f"node{number:05}"
        row: dict[str, Any] = {"node": name, "expect": None, "code": None, "failure": None}
        if number % 200 == 7:
            faults[name] = "not-tested"
            row["failure"] = {
                "code": "node-silent",
                "message": f"{name}: it does not answer.",
                "fix": "See whether it is up and reachable from here.",
            }
            rows.append(row)
            continue
        report = json.loads(text)
        report["environment"]["driver"] = chance.choice(DRIVERS)
        metrics = [
            metric for check in report["checks"] for metric in check["measured"].get("metrics", [])
        ]
        for metric in metrics:
            metric["value"] *= 1 + chance.gauss(0, NOISE)
        if number % 100 == 3:
            faults[name] = "unfit"
            check = chance.choice(report["checks"])
            wrong = f"wrong in {chance.randint(2, 999)} places"
            check.update(status="fail", message=wrong, cause="a seeded fault", fix="Replace it.")
            report["verdict"] = "unfit"
        elif number % 500 == 5:
            faults[name] = "slow"
            metric = chance.choice(metrics)
            metric["value"] *= 0.8 if metric["better"] == "higher" else 1.25
        path = folder / f"{name}.json"
        path.write_text(json.dumps(report), encoding="utf-8")
        rows.append({**row, "report": str(path)})
    made = folder / "list"
    made.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return made, faults


def main() -> None:
    """Make the reports, judge them in a process of its own, and print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made, faults = make(folder, count)
        files = {kind: folder / f"out.{kind}" for kind in ("html", "junit", "prometheus")}
        words = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
        argv = [sys.executable, "-m", "verify", "fleet", str(made), "--level", "standard", *words]
        began = time.perf_counter()
        done = subprocess.run(argv, cwd=TOP, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = used.ru_maxrss / 1024
        found = json.loads(done.stdout)
        standing = {node["name"]: node["standing"] for node in found["nodes"]}
        right = sum(standing[name] == fault for name, fault in faults.items())
        false = sum(standing[name] != "fit" for name in standing if name not in faults)
        size = sum(path.stat().st_size for path in folder.glob("node*"))
        print(f"nodes            {count:,}, {size >> 20} MiB of reports")
        busy = used.ru_utime + used.ru_stime
        print(f"seconds          {seconds:.1f}, {busy:.1f} of the processor")
        print(f"peak memory      {peak:.0f} MiB")
        print(f"comparisons      {found['comparisons']:,}")
        print(f"faults found     {right} of {len(faults)}")
        print(f"false alarms     {false}")
        for kind, path in files.items():
            print(f"{kind:<16} {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
