"""How long `provision plan --host FILE --json` takes, as a multiple of a bare interpreter.

    ./run python bench/plan.py

All are started in turn, in one run, so that a busy machine slows all; medians are compared. None
may take more than 9. The first run of each is not counted: it writes the byte code that an
installer writes, which PYTHONDONTWRITEBYTECODE must not keep it from. The cases beside the first
read tables that a PyTorch plan does without.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 21
HOST = {
    "driver": "535.104.05",
    "arch": "x86_64",
    "gpus": [{"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0"}],
}
CASES = {
    "pytorch, --cuda 11.7": ("--cuda", "11.7"),
    "pytorch": (),
    "pytorch, cuda-compat": ("--cuda", "13.0"),
    "pytorch, devel": ("--cuda", "11.7", "--flavour", "devel"),
    "tensorflow": ("--framework", "tensorflow"),
    "jax": ("--framework", "jax"),
}


def seconds(argv: list[str]) -> float:
    """Wall time of one run."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True, env=env)
    return time.perf_counter() - began


def main() -> None:
    """Print the medians and their ratios."""
    bare = [sys.executable, "-c", "pass"]
    with tempfile.TemporaryDirectory() as directory:
        host = Path(directory) / "host.json"
        host.write_text(json.dumps(HOST))
        plan = [sys.executable, "-m", "provision", "plan", "--json", "--host", str(host)]
        commands = {"bare python": bare, **{name: [*plan, *words] for name, words in CASES.items()}}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for argv in commands.values():
            seconds(argv)
        for _ in range(ROUNDS):
            for name, argv in commands.items():
                times[name].append(seconds(argv))
    unit = statistics.median(times["bare python"])
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{name:<22} {median * 1000:6.1f} ms {median / unit:6.1f}")


if __name__ == "__main__":
    main()
