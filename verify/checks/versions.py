"""Versions and neighbours: the mapped libraries against the lock, torchvision, a C compiler."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
