"""The doctor's data files, each read once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def table(name: str, folder: str = "data") -> Mapping[str, Any]:
    """A TOML file of the doctor's own, such as facts.toml, or one of another of its folders."""
    file = files("provision.doctor").joinpath(*folder.split("/")) / name
    found: Mapping[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    return found


def names() -> list[str]:
    """The files of the knowledge."""
    folder = files("provision.doctor") / "data"
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
