"""Numerics: products, convolutions, attention and compiled kernels against known answers."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
