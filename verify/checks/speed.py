"""Speed: arithmetic, memory and copies beside what the card should do; CPU against GPU."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
