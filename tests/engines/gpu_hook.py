#!/usr/bin/env python3
"""What NVIDIA's container runtime hook does, as far as an engine can tell: when GPUs were asked
for, the driver's library appears in the container. Ours is the fake one of tests/fake_driver.

dockerd looks for a program called nvidia-container-runtime-hook on its PATH when it starts, and
knows --gpus only if it finds one. It runs it before the container's process, with the OCI state on
standard input, and sets NVIDIA_VISIBLE_DEVICES in the container. The library is `lib` beside this
file; a file `refuse` beside it makes the hook fail with its text, as the real one would.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
INSIDE = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


def main() -> int:
    state = json.load(sys.stdin)
    spec = json.loads((Path(state["bundle"]) / "config.json").read_text())
    wanted = [e for e in spec["process"]["env"] if e.startswith("NVIDIA_VISIBLE_DEVICES=")]
    if sys.argv[1:2] != ["prestart"] or wanted in ([], ["NVIDIA_VISIBLE_DEVICES=void"]):
        return 0
    if (HERE / "refuse").exists():
        sys.stderr.write(f"nvidia-container-cli: {(HERE / 'refuse').read_text()}\n")
        return 1
    target = Path(state["bundle"], spec["root"]["path"], INSIDE)
    script = f": > '{target}' && mount --bind '{HERE / 'lib'}' '{target}'"
    # The container's mount namespace is there, and its root is not yet the namespace's.
    enter = ["nsenter", "--target", str(state["pid"]), "--mount", "sh", "-c", script]
    return subprocess.run(enter, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
