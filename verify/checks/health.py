"""Health: memory errors, throttling, heat, the kernel log and the NVSwitch fabric, by NVML."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
