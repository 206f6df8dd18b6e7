"""Sizes as users type them, and the limit of the store."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.errors import BadInputError
from provision.model.request import quoted

LIMIT_VARIABLE = "PROVISION_STORE_SIZE"

_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))?\s*([KMGT]?)(I?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(name: str, text: str) -> int:
    """Read a size: "20GB" and "20G" are 20 * 10^9 bytes, "20GiB" is 20 * 2^30."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadInputError(
            f"{name} {quoted(text)} is not a size.", fix=f"For example: {name} 20GB, or 500MB"
        )
    whole, part, unit, ending = match.groups()
    step = 1024 if (ending or "").lower() == "ib" else 1000
    scale: int = step ** _POWERS[unit.upper()]
    digits = part or ""
    return int(whole) * scale + (int(digits) * scale // 10 ** len(digits) if digits else 0)


def store_limit(env: Mapping[str, str]) -> int | None:
    """The user's limit for the store; None if there is none."""
    text = env.get(LIMIT_VARIABLE)
    return parse_size(LIMIT_VARIABLE, text) if text else None
