"""What one source reported about the host, and helpers that keep its text printable."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from images.text.printable import printable
from provision.model.plan import Absent, Gpu

if TYPE_CHECKING:
    from typing import TypeAlias

Fact: TypeAlias = Literal["driver", "user_mode_driver", "driver_cuda", "gpus"]

REASON_LIMIT = 300

_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}")


class SourceFacts(NamedTuple):
    """One source's answers. `gives` is what it can provide; `failed` is why it gave nothing.

    `absent` has single facts that it could not give although the source itself answered.
    """

    source: str
    gives: tuple[Fact, ...]
    driver: str | None = None
    user_mode_driver: str | None = None
    driver_cuda: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    failed: str | None = None
    absent: tuple[Absent, ...] = ()


def one_line(text: str, *, limit: int = REASON_LIMIT) -> str:
    """Foreign text as one printable line: it will be shown on a terminal and written to JSON."""
    line = " ".join(printable(text, instead=" ").split())
    return printable(line, limit=limit)


def version_or_none(text: str | None) -> str | None:
    """The text if it is a dotted number ("515.65.01"), else None."""
    text = (text or "").strip()
    return text if _VERSION.fullmatch(text) else None
