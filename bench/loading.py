"""What it costs `provision build` to see that the libraries of its packages will load.

    ./run python bench/loading.py [ROUNDS] [--verify]   # needs the package index: 2.3 GB a round

PyTorch 2.0.1 for CUDA 11.7 with torchvision, as a layout, without an engine; with --verify the
suite runs in it, as in every build that is not told otherwise.
Each build is made in turn as it is and without the look, in one run, so that a busy machine slows
both; medians are compared. "first": nothing is in the store, and all wheels are downloaded and
read. "again": the wheels are there, and the verdict is kept.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = ("build", "--cuda", "11.7", "--gpu", "A100", "--driver", "535.104.05", "--python", "3.11")
OPTIONS = ("--base", "bootstrap", "--builder", "oci", "--no-provenance")
CALL = "import sys; from provision.cli.main import main; sys.exit(main(sys.argv[1:]))"
WITHOUT = "import provision.build.load_check as p; p.check_loading = lambda *_, **__: None\n"


def seconds(code: str, home: Path, output: Path) -> float:
    """Wall time of one build; the layout is removed."""
    suite = () if "--verify" in sys.argv else ("--no-verify",)
    argv = [sys.executable, "-c", code, *WORDS, *OPTIONS, *suite, "--with", "torchvision"]
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(
        [*argv, "--output", str(output)], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"build: {done.stderr[-800:]}")
    took = time.perf_counter() - began
    shutil.rmtree(output)
    return took


def main() -> None:
    """Print the medians and their ratio."""
    numbers = [word for word in sys.argv[1:] if word.isdigit()]
    rounds = int(numbers[0]) if numbers else 3
    ways = {"as it is": CALL, "without the look": WITHOUT + CALL}
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        seconds(CALL, home, Path(folder) / "image")  # the base, and uv's cache
        for _ in range(rounds):
            for name, code in ways.items():
                shutil.rmtree(home / ".cache" / "gpu-provision" / "store-1")
                for case in ("first", "again"):
                    took = seconds(code, home, Path(folder) / "image")
                    times.setdefault((case, name), []).append(took)
                    print(f"{case:8} {name:20} {took:6.1f} s", flush=True)
    for case in ("first", "again"):
        one, other = (statistics.median(times[case, name]) for name in ways)
        print(f"{case:8} {one:5.1f} s, without the look {other:5.1f} s  {one / other:4.2f}")


if __name__ == "__main__":
    main()
