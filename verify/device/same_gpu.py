"""Which of NVML's GPUs is torch's GPU number i: CUDA_VISIBLE_DEVICES may hide and reorder them."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

from verify.device.telemetry import GpuState


def find(index: int, gpus: Sequence[GpuState]) -> Optional[GpuState]:
    """NVML's GPU for torch's index; None where that cannot be known."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)  # since torch 2.4
    return match(index, uuid, torch.cuda.device_count(), gpus)


def match(index: int, uuid: Any, visible: int, gpus: Sequence[GpuState]) -> Optional[GpuState]:
    """Match by UUID; without one by index, if every GPU is visible and all are of one kind.

    CUDA puts the fastest first unless CUDA_DEVICE_ORDER says otherwise; NVML sorts by bus id.
    """
    if uuid is not None:
        wanted = str(uuid).replace("GPU-", "")
        return next((gpu for gpu in gpus if (gpu.uuid or "").replace("GPU-", "") == wanted), None)
    if visible != len(gpus) or os.environ.get("CUDA_VISIBLE_DEVICES"):
        return None
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    alike = len({gpu.name for gpu in gpus}) == 1
    return gpus[index] if by_bus or alike else None
