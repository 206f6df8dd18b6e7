"""Memory: how much is free, whether it holds what is written, whether steps leak it."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
