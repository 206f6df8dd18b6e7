"""Whether there is a GPU. Needs pytest and torch only: `python3 -m pytest tests/gpu`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIMIT_S = 300

# Asked in a process of its own: one that has started CUDA cannot fork the suite's checks.
LOOK = """
import json
import torch
try:
    torch.cuda.init()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(json.dumps({"names": names}))
except Exception as error:
    print(json.dumps({"error": str(error).splitlines()[0]}))
"""


def pytest_configure(config: pytest.Config) -> None:
    """For a pytest that does not read this project's settings (before 9)."""
    config.addinivalue_line("markers", "gpu: needs a real NVIDIA GPU")


def look() -> tuple[list[str], str]:
    """The names of the GPUs, or why there are none."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        return [], f"torch cannot be imported: {last}"
    said = json.loads(done.stdout.splitlines()[-1])
    return said.get("names", []), said.get("error", "CUDA offers no device")


@pytest.fixture(scope="session")
def gpus() -> list[str]:
    """The GPUs' names; without one the test is skipped."""
    names, why = look()
    if not names:
        pytest.skip(f"no GPU: {why}")
    return names
