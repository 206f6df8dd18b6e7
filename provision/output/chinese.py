"""One sentence in Chinese below the most common answers and errors, for users whose locale is
Chinese. Everything else, JSON and codes too, stays English.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

LABEL = "说明"


def is_wanted(env: Mapping[str, str]) -> bool:
    """Whether the messages of this locale are Chinese, by POSIX's order of variables."""
    named = (env.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return next(filter(None, named), "").startswith("zh")


def sentence(code: str | None, env: Mapping[str, str] | None = None) -> str:
    """What a verdict, an error or a cause means; "" without one, or in another language."""
    if not code or not is_wanted(os.environ if env is None else env):
        return ""
    return sentences().get(code, "")


def sentences() -> dict[str, str]:
    """All of them, by code."""
    from importlib.resources import files

    found: dict[str, str] = json.loads(
        files("provision.output").joinpath("data/zh.json").read_text(encoding="utf-8")
    )
    del found["about"]
    return found


def line(code: str | None) -> list[str]:
    """The row of a result: none where there is nothing to say."""
    said = sentence(code)
    return [f"{LABEL}        {said}"] if said else []
