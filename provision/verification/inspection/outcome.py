"""The result of one check, and the texts and tables that it consists of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from images.inspect.image import Inspection
from provision.model.plan import Gpu

Status = Literal["pass", "fail", "skip"]
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionOutcome:
    """The result of one check."""

    status: Status
    message: str
    cause: str | None = None
    fix: str | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]
) -> dict[str, Any] | None:
    """A table of the report; None if there is nothing to show."""
    shown = [[_text(cell) for cell in row] for row in rows[:_MOST_ROWS]]
    return {"title": title, "columns": list(columns), "rows": shown} if shown else None


def tables(*tables: dict[str, Any] | None) -> dict[str, Any]:
    found = [table for table in tables if table is not None]
    return {"tables": found} if found else {}


def _text(cell: str | float | None) -> str | float | None:
    return cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell


def gpu_words(gpu: Gpu) -> str:
    """A GPU whose capability is known, for people: "NVIDIA L4 (8.9)"."""
    assert gpu.compute_capability is not None
    capability = "{}.{}".format(*gpu.compute_capability)
    return f"{gpu.name} ({capability})" if gpu.name else f"compute capability {capability}"


def path_of(found: Inspection, path: str) -> str:
    """A path as it is in an image; for a wheel the path inside it."""
    shown = path.removeprefix("/") if found.contents.kind == "wheel" else path
    return shown.encode("utf-8", "replace").decode()


def named(names: Iterable[str], most: int = 4) -> str:
    """Distinct names in a sentence: the first `most`, and how many more."""
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def and_more(count: int, one: str, many: str | None = None) -> str:
    return f"; and {counted(count, 'more ' + one, many and 'more ' + many)}" if count > 0 else ""


def yes(is_so: bool) -> str:  # noqa: FBT001  a cell of a table
    return "yes" if is_so else "no"


def in_units(count: float) -> str:
    """Bytes for people, in powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
