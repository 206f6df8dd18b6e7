"""The task of `fleet detect`: the facts of this node."""

from __future__ import annotations

from typing import Any

from provision.host.probe import detect
from provision.model.facts import host_to_json


def read_host(_: object) -> dict[str, Any]:
    """The node's host file."""
    return host_to_json(detect())
