"""Parallel training: the same step on several devices gives what one device gives."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
