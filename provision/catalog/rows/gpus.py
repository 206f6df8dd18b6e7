"""GPUs and their makers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from provision.catalog.rows import Arch, Confidence
from provision.model.plan import ComputeCapability


class GpuModel(NamedTuple):
    """A GPU by the name that NVML prints; `aliases` are other names of the same chip.

    `chip` ("GB202") says which driver branches drive it (`DriverBranch.adds`); None: a chip older
    than the oldest branch of the table, or one of a Jetson. `driver_from` is the oldest driver
    whose own documents list the product. `host_arch` is that of every machine that has it; None: a
    card or module for any architecture. `forward_compat_eligible` None: only select server models
    of that card are. `tflops` are dense peak rates, by fp32, tf32, fp16, bf16, fp8; None:
    unsupported or unknown.
    """

    name: str
    compute_capability: ComputeCapability
    architecture: str
    kind: Literal["data-centre", "workstation", "geforce", "titan", "jetson", "dgx-spark"]
    data_centre: bool
    forward_compat_eligible: bool | None
    memory_gb: int | None
    memory_bandwidth_gbs: float | None
    tflops: Mapping[str, float | None]
    nvlink: bool | None
    source: str
    confidence: Confidence = "confirmed"
    note: str | None = None
    figures_confidence: Confidence = "doubtful"
    aliases: tuple[str, ...] = ()
    chip: str | None = None
    driver_from: str | None = None
    driver_source: str | None = None
    host_arch: Arch | None = None

    def __hash__(self) -> int:  # the peak rates are a dict
        return hash(self.name)


class BinaryNote(NamedTuple):
    """Whether code of the same major and a lower minor has been shown to run on a GPU."""

    compute_capability: ComputeCapability
    proven: bool
    source: str


class OtherVendor(NamedTuple):
    """A GPU vendor that this catalog has no rows for, and how to recognize its names."""

    vendor: str
    pattern: re.Pattern[str]
    source: str
