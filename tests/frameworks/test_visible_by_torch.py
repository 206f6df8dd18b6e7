"""Our reading of CUDA_VISIBLE_DEVICES beside PyTorch's own, which its makers tried against CUDA."""

from __future__ import annotations

import pytest

from tests.frameworks.place import ROOT, python_of
from tests.kit.programs import run_program

pytestmark = pytest.mark.frameworks

# torch.cuda.device_count() reads the variable by these functions where NVML counts for it.
SCRIPT = """
import os, random, sys
import torch.cuda as cuda
from verify.checks.devices.visible import VisibleCard, select

UUIDS = ["GPU-aa11bb22-0000", "GPU-aa99cc33-0000", "GPU-ff00dd44-0000"]
WORDS = ["0", "1", "2", "3", "7", "-1", "-0", "+1", " 2", "1 ", "1gpu", "one", "", "all", "0x1",
         "GPU-aa1", "GPU-aa", "GPU-ff", "GPU-", "GPU-zz", *UUIDS]

def by_torch(value):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    found = cuda._parse_visible_devices()
    if found and isinstance(found[0], str):
        return cuda._transform_uuid_to_ordinals(found, UUIDS)
    stop = next((i for i, number in enumerate(found) if number >= len(UUIDS)), len(found))
    return found[:stop]

chance = random.Random(7)
cards = [VisibleCard(uuid) for uuid in UUIDS]
for _ in range(20000):
    value = ",".join(chance.choice(WORDS) for _ in range(chance.randint(1, 5)))
    ours = list(select(value, cards).shown)
    if ours != by_torch(value):
        sys.exit(f"{value!r}: {ours} here, {by_torch(value)} by torch")
print("agreed")
"""


def test_pytorch_reads_the_variable_as_we_do() -> None:
    done = run_program([python_of("pytorch"), "-c", SCRIPT], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "agreed\n"
