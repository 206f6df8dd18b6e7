"""How long `provision plan --host FILE --json` takes, as a multiple of a bare interpreter.

    ./run python bench/plan.py

Both are started in turn, in one run, so that a busy machine slows both; medians are compared. The
contract allows 10.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 31
HOST = {
    "driver": "515.65.01",
    "arch": "x86_64",
    "gpus": [{"name": "NVIDIA GeForce RTX 3090", "compute_capability": "8.6"}],
}


def seconds(argv: list[str]) -> float:
    """Wall time of one run."""
    began = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print the medians and their ratio."""
    with tempfile.TemporaryDirectory() as directory:
        host = Path(directory) / "host.json"
        host.write_text(json.dumps(HOST))
        bare = [sys.executable, "-c", "pass"]
        plan = [sys.executable, "-m", "provision", "plan"]
        plan += ["--host", str(host), "--cuda", "11.7", "--json"]
        times = [(seconds(bare), seconds(plan)) for _ in range(ROUNDS)]
    a, b = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"bare python   {a * 1000:6.1f} ms")
    print(f"plan --json   {b * 1000:6.1f} ms")
    print(f"ratio         {b / a:6.1f}")


if __name__ == "__main__":
    main()
