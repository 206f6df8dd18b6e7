"""One sample of the GPUs and the command's processes, and its format in a CSV or JSON file.

The CSV's GPU columns are those of `nvidia-smi --query-gpu=... --format=csv`, so recordings of both
are read the same way. A row is one GPU at one moment; the columns of the processes repeat.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
import time
from dataclasses import asdict, dataclass, fields
from typing import IO, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from verify.device.nvml_types import THROTTLE, throttle_names
from verify.device.telemetry import GpuState

MIB = 1 << 20
_TIME = "%Y/%m/%d %H:%M:%S"


@dataclass(frozen=True)
class Host:
    """The command's processes since the previous sample. Cores are CPU seconds per second."""

    machine_percent: Optional[float] = None  # of all CPUs of the machine, used by any process
    cores: Optional[float] = None  # kept busy by the command's processes
    cpus: Optional[int] = None  # available to them
    workers: Optional[int] = None  # processes forked by another one of them: they load data
    worker_cores: Optional[float] = None
    thread_cores: Optional[float] = None  # the busiest thread outside the workers
    rss_bytes: Optional[int] = None  # shared pages count once per process
    read_bytes_s: Optional[float] = None  # from storage, not from the page cache
    waiting: Optional[bool] = None  # one of them waits for storage


@dataclass(frozen=True)
class Sample:
    """One moment, in seconds since the command started."""

    seconds: float
    gpus: Tuple[GpuState, ...] = ()
    host: Optional[Host] = None


class FormatError(ValueError):
    """A recording that cannot be read."""


# column, field, and the factor from the column's unit to the field's
_GPU_COLUMNS = (
    ("utilization.gpu [%]", "utilization_percent", 1),
    ("utilization.memory [%]", "memory_utilization_percent", 1),
    ("memory.used [MiB]", "memory_used_bytes", MIB),
    ("memory.total [MiB]", "memory_total_bytes", MIB),
    ("power.draw [W]", "power_w", 1.0),
    ("enforced.power.limit [W]", "power_limit_w", 1.0),
    ("temperature.gpu", "temperature_c", 1),
    ("clocks.current.sm [MHz]", "clock_sm_mhz", 1),
    ("clocks.max.sm [MHz]", "clock_sm_max_mhz", 1),
)
_REASONS = "clocks_event_reasons.active"
_HOST_COLUMNS = (
    ("machine.cpu [%]", "machine_percent", 1.0),
    ("command.cpu [cores]", "cores", 1.0),
    ("command.cpus", "cpus", 1),
    ("command.workers", "workers", 1),
    ("command.workers.cpu [cores]", "worker_cores", 1.0),
    ("command.thread.cpu [cores]", "thread_cores", 1.0),
    ("command.rss [MiB]", "rss_bytes", MIB),
    ("command.read [MiB/s]", "read_bytes_s", float(MIB)),
    ("command.waiting", "waiting", 1),
)
HEADER = (
    "timestamp",
    "elapsed [s]",
    "index",
    "name",
    *(name for name, _, _ in _GPU_COLUMNS),
    _REASONS,
    *(name for name, _, _ in _HOST_COLUMNS),
)
# Other names of the same columns, in some versions of nvidia-smi.
_ALIASES = {
    "gpu_name": "name",
    "clocks.sm": "clocks.current.sm",
    "clocks.current.graphics": "clocks.current.sm",
    "clocks.gr": "clocks.current.sm",
    "clocks.max.graphics": "clocks.max.sm",
    "clocks.max.gr": "clocks.max.sm",
    "power.draw.instant": "power.draw",
    "power.draw.average": "power.draw",
    "power.limit": "enforced.power.limit",
    "clocks_throttle_reasons.active": _REASONS,
}
# The fields of a GPU that a recording keeps.
KEPT = ("index", "name", *(field for _, field, _ in _GPU_COLUMNS), "throttle_reasons")


def as_dict(sample: Sample) -> Dict[str, Any]:
    """A sample as in a JSON file."""
    return {
        "seconds": round(sample.seconds, 3),
        "gpus": [{name: getattr(gpu, name) for name in KEPT} for gpu in sample.gpus],
        "host": None if sample.host is None else asdict(sample.host),
    }


def from_dict(row: Mapping[str, Any]) -> Sample:
    """The inverse of `as_dict`."""
    names = {field.name for field in fields(Host)}
    host = row.get("host")
    return Sample(
        float(row["seconds"]),
        tuple(_gpu_from_dict(gpu) for gpu in row.get("gpus", ())),
        None if host is None else Host(**{k: v for k, v in host.items() if k in names}),
    )


def _gpu_from_dict(row: Mapping[str, Any]) -> GpuState:
    kept = {name: row[name] for name in KEPT if name in row}
    reasons = kept.get("throttle_reasons")
    return GpuState(**{**kept, "throttle_reasons": None if reasons is None else tuple(reasons)})


def csv_rows(sample: Sample, started: float) -> Iterator[List[str]]:
    """A row per GPU, or one row without a GPU; `started` is the command's wall-clock start."""
    moment = started + sample.seconds
    stamp = time.strftime(_TIME, time.localtime(moment))
    head = ["{}.{:03d}".format(stamp, int(moment % 1 * 1000)), "{:.3f}".format(sample.seconds)]
    tail = [_cell(sample.host, field, unit) for _, field, unit in _HOST_COLUMNS]
    for gpu in sample.gpus or (None,):
        names = ["", ""] if gpu is None else [str(gpu.index), gpu.name or ""]
        body = [_cell(gpu, field, unit) for _, field, unit in _GPU_COLUMNS]
        yield [*head, *names, *body, _mask(gpu), *tail]


def _cell(row: Any, field: str, unit: float) -> str:
    value = getattr(row, field, None)
    if value is None:
        return ""
    scaled = float(value) / unit
    return str(int(scaled)) if scaled == int(scaled) else "{:.3f}".format(scaled)


def _mask(gpu: Optional[GpuState]) -> str:
    if gpu is None or gpu.throttle_reasons is None:
        return ""
    bits = {name: bit for bit, name in THROTTLE.items()}
    return "0x{:016x}".format(sum(bits.get(r) or int(r, 16) for r in gpu.throttle_reasons))


class Recorder:
    """Writes samples to files as they come, so that a long run does not fill memory."""

    def __init__(
        self,
        table: Optional[IO[str]],
        document: Optional[IO[str]],
        head: Mapping[str, Any],
        started: float = 0.0,
    ) -> None:
        self._table, self._document, self._started = table, document, started
        self._first = True
        self.failed: Optional[str] = None
        if table is not None:
            self._write(lambda: csv.writer(table, lineterminator="\n").writerow(HEADER))
        if document is not None:
            start = json.dumps({"schema": 1, **head})[:-1] + ', "samples": ['
            self._write(lambda: document.write(start))

    def add(self, sample: Sample) -> None:
        """Append one sample to each file, whole."""
        self._write(lambda: self._add(sample))

    def _add(self, sample: Sample) -> None:
        if self._table is not None:
            rows = csv_rows(sample, self._started)
            csv.writer(self._table, lineterminator="\n").writerows(rows)
            self._table.flush()
        if self._document is not None:
            text = json.dumps(as_dict(sample), allow_nan=False)
            self._document.write(("\n" if self._first else ",\n") + text)
            self._document.flush()
        self._first = False

    def finish(self, tail: Mapping[str, Any]) -> None:
        """Close the files."""
        text = "\n], " + json.dumps(tail, allow_nan=False)[1:] + "\n"
        if self._document is not None:
            document = self._document
            self._write(lambda: document.write(text))
        for file in (self._table, self._document):
            if file is not None:
                self._write(file.close)

    def _write(self, work: Any) -> None:
        """Write. A full disk ends the recording, never the run."""
        if self.failed is None:
            try:
                work()
            except OSError as error:
                self.failed = error.strerror or str(error)


def read(path: str) -> List[Sample]:
    """The samples of a recording: this module's CSV or JSON, or nvidia-smi's CSV with a header.
    Raises FormatError if it is neither.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return list(parse_json(file.read()) if _is_json(file) else parse_csv(file))
    except OSError as error:
        raise FormatError(error.strerror or str(error)) from error


def _is_json(file: IO[str]) -> bool:
    start = file.read(64).lstrip()[:1]
    file.seek(0)
    return start == "{"


def parse_json(text: str) -> Iterator[Sample]:
    """This module's JSON; of a truncated file, every complete line."""
    try:
        rows = json.loads(text).get("samples", [])
    except ValueError:
        rows = [row for line in text.splitlines() for row in _row(line)]
    try:
        found = [from_dict(row) for row in rows]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError("not a recording of verify monitor: {!r}".format(error)) from error
    if not found:
        raise FormatError("no samples in it")
    yield from found


def _row(line: str) -> List[Any]:
    with contextlib.suppress(ValueError):
        row = json.loads(line.strip().rstrip(","))
        if isinstance(row, dict) and "seconds" in row:
            return [row]
    return []


def parse_csv(lines: Iterable[str]) -> Iterator[Sample]:
    """A sample for each round of GPUs."""
    rows = csv.reader(lines, skipinitialspace=True)
    header = [_column(name) for name in next(rows, [])]
    if not {"elapsed", "timestamp"} & set(header):
        raise FormatError(
            "the header has no timestamp column; record it with --query-gpu=timestamp,..."
        )
    start: Optional[float] = None
    for moment in _moments(header, rows):
        seconds = _seconds(moment[0])
        if start is None:
            start = 0.0 if "elapsed" in header else seconds
        yield _sample(moment, seconds - start)
    if start is None:
        raise FormatError("no samples in it")


def _moments(header: Sequence[str], rows: Iterable[List[str]]) -> Iterator[List[Dict[str, str]]]:
    """Group rows by moment: a repeated GPU begins the next moment.

    In nvidia-smi's output the times of one round differ a little; in this module's they do not.
    """
    moment: List[Dict[str, str]] = []
    for cells in rows:
        row = dict(zip(header, (cell.strip() for cell in cells)))
        if len(cells) < len(header) or math.isnan(_seconds(row)):
            continue  # truncated, or the header again
        later = bool(moment) and row.get("elapsed") != moment[0].get("elapsed")
        if later or _gpu_key(row) in map(_gpu_key, moment):
            yield moment
            moment = []
        moment.append(row)
    if moment:
        yield moment


def _column(name: str) -> str:
    bare = name.partition("[")[0].strip().lower()
    return _ALIASES.get(bare, bare)


def _gpu_key(row: Mapping[str, str]) -> str:
    names = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
    return next((row[name] for name in names if row.get(name)), "")


def _sample(rows: Sequence[Mapping[str, str]], seconds: float) -> Sample:
    gpus = tuple(_gpu(row, i) for i, row in enumerate(rows) if _has_gpu(row))
    host = {field: _number(rows[0], name, unit) for name, field, unit in _HOST_COLUMNS}
    told = any(value is not None for value in host.values())
    if host["waiting"] is not None:
        host["waiting"] = bool(host["waiting"])
    return Sample(seconds, gpus, Host(**host) if told else None)


def _has_gpu(row: Mapping[str, str]) -> bool:
    return bool(row.get("index")) or any(row.get(_column(name)) for name, _, _ in _GPU_COLUMNS)


def _gpu(row: Mapping[str, str], place: int) -> GpuState:
    values = {field: _number(row, name, unit) for name, field, unit in _GPU_COLUMNS}
    index = row.get("index", "")
    number = int(index) if index.isdigit() else place
    return GpuState(number, row.get("name") or None, throttle_reasons=_reasons(row), **values)


def _reasons(row: Mapping[str, str]) -> Optional[Tuple[str, ...]]:
    """From the mask, or from one column per reason."""
    with contextlib.suppress(ValueError):
        return throttle_names(int(row.get(_REASONS, ""), 16))
    pairs = {name.rpartition(".")[2]: value for name, value in row.items() if "_reasons." in name}
    known = {name: value for name, value in pairs.items() if name in THROTTLE.values()}
    told = [value.lower() for value in known.values() if "active" in value.lower()]
    return tuple(n for n, v in known.items() if v.lower() == "active") if told else None


def _number(row: Mapping[str, str], column: str, unit: Any) -> Any:
    """The number in the field's unit; None for "[N/A]" and the like."""
    match = re.match(r"-?\d+(\.\d+)?", row.get(_column(column), ""))
    if not match:
        return None
    value = float(match.group()) * unit
    return value if isinstance(unit, float) else round(value)


def _seconds(row: Mapping[str, str]) -> float:
    """From the seconds column, or from the timestamp; NaN if neither can be read."""
    with contextlib.suppress(ValueError):
        return float(row.get("elapsed", ""))
    whole, _, part = row.get("timestamp", "").partition(".")
    try:
        return time.mktime(time.strptime(whole, _TIME)) + float("0.{}".format(part or 0))
    except (ValueError, OverflowError):
        return math.nan
