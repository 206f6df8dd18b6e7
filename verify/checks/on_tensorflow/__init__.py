"""TensorFlow: the checks that ask it, judged as those that ask PyTorch are."""

from __future__ import annotations

from typing import Tuple

from verify.core import Check

CHECKS: Tuple[Check, ...] = ()
