"""Links: what PCIe, NVLink and peer access between the GPUs can do and do."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
