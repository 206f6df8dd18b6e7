"""A report's shape for the type checker; `report.schema.json` describes it for readers.

Reports are read from and written to JSON, by this version or a later one, so they stay plain dicts;
a test checks that these types and the schema name the same members.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict, Union


class FrameworkRow(TypedDict):
    """The framework that was tested."""

    name: str
    version: Optional[str]


class GpuRow(TypedDict):
    """One GPU as NVML describes it."""

    name: Optional[str]
    uuid: Optional[str]
    compute_capability: Optional[str]
    mig: Optional[bool]


class MachineRow(TypedDict):
    """The machine, as its owner and its maker call it."""

    name: Optional[str]
    product: Optional[str]


class _Environment(TypedDict):
    started: str
    image: Optional[str]
    python: str
    framework: FrameworkRow
    kernel: str
    arch: str
    glibc: Optional[str]
    cpus: int
    shm_bytes: Optional[int]
    container: Optional[str]
    visible_devices: Optional[str]
    device_nodes: int
    driver: Optional[str]
    cuda_driver: Optional[str]
    gpus: List[GpuRow]
    driver_error: Optional[str]


class Environment(_Environment, total=False):
    """Where the suite ran, and the signal that ended it, if one did."""

    emulator: str
    machine: MachineRow
    replayed: str
    interrupted: str


class MetricRow(TypedDict):
    """A measured number."""

    name: str
    value: float
    unit: str
    better: str
    repeats: int
    spread: float
    labels: Dict[str, str]
    spec: Optional[float]
    of_spec: Optional[float]


class TableRow(TypedDict):
    """A table that a check shows."""

    title: str
    columns: List[str]
    rows: List[List[Union[str, float, None]]]


class LineRow(TypedDict):
    """A line of a plot: points of x and y."""

    name: str
    points: List[List[float]]


class PlotRow(TypedDict):
    """A plot that a check shows."""

    title: str
    x: str
    y: str
    log_x: bool
    lines: List[LineRow]


class _Check(TypedDict):
    id: str
    title: str
    status: str
    seconds: float
    message: str
    cause: Optional[str]
    fix: Optional[str]
    measured: Dict[str, Any]
    expected: Dict[str, Any]


class CheckRow(_Check, total=False):
    """One check's outcome. `measured` has metrics, tables, plots and the check's own readings;
    `at_fault` is there if it failed.
    """

    at_fault: str


class RunRow(TypedDict):
    """One of the two runs that are compared."""

    started: str
    image: Optional[str]
    verdict: str
    level: str


class ChangeRow(TypedDict):
    """A fact of the environment that differs."""

    name: str
    baseline: Optional[str]
    current: Optional[str]


class MovedCheck(TypedDict):
    """A check with another status than before."""

    id: str
    baseline: str
    current: str
    message: str


class MetricKey(TypedDict):
    """Which number of which check."""

    check: str
    name: str
    labels: Dict[str, str]


class MovedMetric(MetricKey):
    """A number that changed by more than its allowance."""

    unit: str
    better: str
    baseline: float
    current: float
    change: float
    allowance: float


class MovedChecks(TypedDict):
    """The checks of two runs."""

    worse: List[MovedCheck]
    better: List[MovedCheck]
    changed: List[MovedCheck]
    missing: List[str]
    new: List[str]


class MovedMetrics(TypedDict):
    """The numbers of two runs."""

    compared: int
    worse: List[MovedMetric]
    better: List[MovedMetric]
    missing: List[MetricKey]
    new: List[MetricKey]


class ReportComparison(TypedDict):
    """A run compared with an earlier one."""

    schema: int
    worse: bool
    verdict: str
    tolerance: float
    baseline: RunRow
    current: RunRow
    unlike: List[str]
    environment: List[ChangeRow]
    checks: MovedChecks
    metrics: MovedMetrics


class _Report(TypedDict):
    schema: int
    verdict: str
    level: str
    environment: Environment
    checks: List[CheckRow]


class Report(_Report, total=False):
    """A run of the suite. `only` names the requested checks, if not all were requested; `at_fault`
    is there if one failed.
    """

    only: str
    at_fault: str
    comparison: ReportComparison
