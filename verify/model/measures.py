"""Measured numbers in the shapes that reports, plots and comparisons use.

A check puts them into `Outcome.measured` with `pack`; `report.schema.json` describes the JSON.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

Cell = Union[str, float, int, None]
HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True)
class Metric:
    """A number that a later run can be compared with.

    `value` is the median of `repeats` measurements and `spread` their interquartile range divided
    by the median: smaller differences are noise. `spec` is the card's own figure in the same unit.
    """

    name: str  # snake_case, the same in every run: "gemm", "h2d_pinned"
    value: float
    unit: str  # "TFLOP/s", "GB/s", "samples/s", "s", "bytes"; GB and TFLOP are powers of ten
    better: str = HIGHER
    repeats: int = 1
    spread: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)  # {"dtype": "bf16", "gpu": "0"}
    spec: Optional[float] = None

    @property
    def of_spec(self) -> Optional[float]:
        """The share of the card's own figure, if that is known."""
        return self.value / self.spec if self.spec else None

    def as_dict(self) -> Dict[str, Any]:
        """As it stands in the report."""
        return {**asdict(self), "labels": dict(self.labels), "of_spec": self.of_spec}


@dataclass(frozen=True)
class Table:
    """Rows for people. Numbers are stored unrounded; renderers round them."""

    title: str
    columns: Tuple[str, ...]
    rows: Tuple[Tuple[Cell, ...], ...]

    def as_dict(self) -> Dict[str, Any]:
        """As it stands in the report."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
        }


@dataclass(frozen=True)
class Plot:
    """Lines over a shared axis: bandwidth over size, samples per second over workers."""

    title: str
    x: str  # the axis with its unit: "message size (bytes)"
    y: str
    lines: Tuple[Tuple[str, Tuple[Tuple[float, float], ...]], ...]  # (name, points)
    log_x: bool = False

    def as_dict(self) -> Dict[str, Any]:
        """As it stands in the report."""
        lines = [{"name": name, "points": [list(p) for p in points]} for name, points in self.lines]
        head = {"title": self.title, "x": self.x, "y": self.y, "log_x": self.log_x}
        return {**head, "lines": lines}


def pack(
    metrics: Sequence[Metric] = (), tables: Sequence[Table] = (), plots: Sequence[Plot] = ()
) -> Dict[str, Any]:
    """The part of `Outcome.measured` that reports can draw; empty kinds are left out."""
    kinds = {
        "metrics": [metric.as_dict() for metric in metrics],
        "tables": [table.as_dict() for table in tables],
        "plots": [plot.as_dict() for plot in plots],
    }
    return {kind: rows for kind, rows in kinds.items() if rows}


def median(samples: Sequence[float]) -> float:
    """The middle one, or the mean of the two."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def spread(samples: Sequence[float]) -> float:
    """The interquartile range divided by the median; 0.0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    middle = median(ordered)
    return (ordered[-1 - quarter] - ordered[quarter]) / middle if middle else 0.0


def of_samples(
    name: str,
    samples: Sequence[float],
    unit: str,
    *,
    better: str = HIGHER,
    labels: Optional[Mapping[str, str]] = None,
    spec: Optional[float] = None,
) -> Metric:
    """A metric from repeated measurements."""
    return Metric(
        name, median(samples), unit, better, len(samples), spread(samples), labels or {}, spec
    )


def seconds_each(
    work: Callable[[], object],
    *,
    repeats: int,
    wait: Callable[[], object] = lambda: None,
    warm_up: int = 1,
) -> List[float]:
    """Wall seconds of each of `repeats` calls; `wait` returns when the work is finished."""
    for _ in range(warm_up):
        work()
    wait()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        wait()
        found.append(time.perf_counter() - start)
    return found
