"""Data loading: workers, pinned memory, /dev/shm, open files, forks."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
