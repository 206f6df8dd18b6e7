"""How long `provision lock` takes, as a multiple of `uv pip compile` for the same answer.

    ./run python bench/lock.py [--rounds N] [--output FILE]

uv gets what the lock decided: the release of the framework, the other requirements, the Python and
the platform; it must answer with the same versions. Both are started in turn, in one run, with
uv's cache and ours as the run before left them, and their medians are compared. The first run of
each is not counted. The package index must be reachable; where PyTorch's index or the registry of
the base is not, that is part of the measurement, and the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provision.lock.lockfile import Lock, parse_lock, read_lock_file
from provision.lock.network import ca_bundle
from provision.lock.uv import compile_argv, target_of, uv_environment
from provision.model.plan import PACKAGES

GOAL = 1.3
HOST = {
    "driver": "580.95.05",
    "arch": "x86_64",
    "gpus": [{"name": "NVIDIA L40S", "compute_capability": "8.9"}],
}
CASES = {
    "transformers and accelerate": ("--with", "transformers", "--with", "accelerate"),
    "vllm": ("--with", "vllm"),
}


def seconds(argv: list[str], env: dict[str, str], text: str = "") -> float:
    """Wall time of one run."""
    began = time.perf_counter()
    subprocess.run(argv, input=text, text=True, capture_output=True, check=True, env=env)
    return time.perf_counter() - began


def versions(text: str) -> dict[str, str]:
    """The packages of a lock of either tool."""
    return {str(package.name): str(package.version) for package in parse_lock(text).packages}


def baseline(lock: Lock, out: Path) -> tuple[list[str], dict[str, str], str]:
    """uv's command line, environment and input for the answer of a lock."""
    changes = uv_environment(os.environ, ca_bundle(None, os.environ))
    plan = lock.plan
    if plan.index_url not in {None, "pypi"}:
        changes["UV_INDEX"] = plan.index_url
    env = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    lines = [plan.index_urles[0].requirement, *plan.requirements]
    argv = compile_argv(target_of(plan), out, offline=False)
    return argv, env, "".join(f"{line}\n" for line in lines)


def measure(words: tuple[str, ...], rounds: int, place: Path) -> dict[str, object]:
    """The medians of one case, measured in an empty directory."""
    host, ours, theirs = place / "host.json", place / "pylock.toml", place / "uv" / "pylock.toml"
    theirs.parent.mkdir()
    host.write_text(json.dumps(HOST))
    argv = [sys.executable, "-m", "provision", "lock", "--host", str(host), *words]
    argv += ["--output", str(ours)]
    env = dict(os.environ)
    seconds(argv, env)
    lock = read_lock_file(ours)
    command, uv_env, text = baseline(lock, theirs)
    seconds(command, uv_env, text)
    times: dict[str, list[float]] = {"lock": [], "uv": []}
    for _ in range(rounds):
        theirs.unlink()  # uv would prefer the versions of a lock that is there
        times["uv"].append(seconds(command, uv_env, text))
        times["lock"].append(seconds(argv, env))
    mine, other = read_lock_file(ours), theirs.read_text("utf-8")
    assert versions(mine.text) == versions(other), "another answer"
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        "wheels": len(mine.wheels),
        "index": mine.plan.index_url,
        "base": mine.plan.base.kind if mine.plan.base else "",
        "framework": f"{PACKAGES[mine.plan.framework]} {mine.plan.framework_version}",
        "seconds": {name: [round(one, 2) for one in taken] for name, taken in times.items()},
        "median": {name: round(one, 2) for name, one in middle.items()},
        "ratio": round(middle["lock"] / middle["uv"], 2),
    }


def main() -> None:
    """Measure each case, and print or write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", choices=CASES, action="append")
    args = parser.parse_args()
    found = {}
    for name in args.case or CASES:
        with tempfile.TemporaryDirectory() as place:
            found[name] = measure(CASES[name], args.rounds, Path(place))
        median, ratio = found[name]["median"], found[name]["ratio"]
        print(f"{name:<28} {median}  {ratio} x uv (goal {GOAL})", flush=True)
    if args.output:
        args.output.write_text(json.dumps({"goal": GOAL, "cases": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
