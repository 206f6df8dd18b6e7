"""What one source said of the host, and the small helpers that keep its words printable."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from images.printable import printable
from provision.model.plan import Absent, Gpu

if TYPE_CHECKING:
    from pathlib import Path

Fact: TypeAlias = Literal["driver", "user_mode_driver", "driver_cuda", "gpus"]

FILE_LIMIT_BYTES = 1 << 20
REASON_LIMIT = 300

_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One source's answers. `gives` is what it can be asked for; `failed` is why it gave none.

    `absent` holds single facts that it could not give although the source itself answered.
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


def read_text(path: Path) -> tuple[str | None, str]:
    """A small file's text, or None and why: "no such file", "permission denied", ..."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None, "no such file"
    except (OSError, ValueError) as exc:
        return None, _why(exc)
    if len(data) > FILE_LIMIT_BYTES:
        return None, f"larger than {FILE_LIMIT_BYTES} bytes"
    return data.decode("utf-8", "replace"), ""


def children(path: Path) -> tuple[tuple[Path, ...] | None, str]:
    """A directory's entries in name order, or None and why."""
    try:
        return tuple(sorted(path.iterdir())), ""
    except FileNotFoundError:
        return None, "no such directory"
    except (OSError, ValueError) as exc:
        return None, _why(exc)


def _why(exc: OSError | ValueError) -> str:
    if isinstance(exc, OSError) and exc.errno:
        return os.strerror(exc.errno).lower()
    return one_line(str(exc)) or type(exc).__name__
