"""The live view: a block at the bottom of the terminal, below everything the command prints.

The terminal scrolls only the rows above the block, so the command's output and the block do not
overwrite each other. Each update is one write that leaves the cursor where the command had it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Iterator, List, Optional, Tuple

from verify.device.telemetry import GpuState
from verify.monitoring.render import WIDTH, duration, size
from verify.monitoring.samples import Sample

_SAVE, _RESTORE, _DOWN = "\x1b7", "\x1b8", "\x1bD"
_LEAST_ROWS_LEFT = 6  # for the command's own output
_MOST_GPUS = 8


def lines(sample: Sample, width: int = WIDTH) -> List[str]:
    """The block's text."""
    rows = [_head(sample)]
    rows += [_gpu(gpu) for gpu in sample.gpus[:_MOST_GPUS]]
    if len(sample.gpus) > _MOST_GPUS:
        rows.append("and {} GPUs more".format(len(sample.gpus) - _MOST_GPUS))
    return [row[:width] for row in rows]


def _head(sample: Sample) -> str:
    host, words = sample.host, ["verify monitor", duration(sample.seconds)]
    if host is not None:
        if host.cores is not None:
            words.append("CPU {:.1f} of {} cores".format(host.cores, host.cpus))
        if host.rss_bytes is not None:
            words.append(size(host.rss_bytes))
        if host.read_bytes_s is not None:
            words.append("read {}/s".format(size(host.read_bytes_s)))
    return "  ".join(words)


def _gpu(gpu: GpuState) -> str:
    busy = gpu.utilization_percent
    bar = "#" * round((busy or 0) / 10)
    words = ["GPU {:<2}[{:<10}] {:>3} %".format(gpu.index, bar, "?" if busy is None else busy)]
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        used, total = (value / 2**30 for value in (gpu.memory_used_bytes, gpu.memory_total_bytes))
        words.append("{:5.1f}/{:.0f} GiB".format(used, total))
    if gpu.power_w is not None:
        limit = "/{:.0f}".format(gpu.power_limit_w) if gpu.power_limit_w else ""
        words.append("{:>4.0f}{} W".format(gpu.power_w, limit))
    if gpu.temperature_c is not None:
        words.append("{} C".format(gpu.temperature_c))
    if gpu.clock_sm_mhz is not None:
        words.append("{} MHz".format(gpu.clock_sm_mhz))
    slow = [
        reason for reason in gpu.throttle_reasons or () if "thermal" in reason or "hw" in reason
    ]
    return "  ".join([*words, *(["SLOWED"] if slow else [])])


class View:
    """The block on one terminal. It draws nothing where there is no room for it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._shown: Optional[Tuple[int, int, int]] = None  # columns, rows, height of the block
        self._lock = threading.Lock()
        self._closed = False

    def draw(self, sample: Sample) -> None:
        """Show this sample in place of the one before."""
        with self._lock:
            if not self._closed:
                self._draw(sample)

    def _draw(self, sample: Sample) -> None:
        columns, rows = self._size()
        text = lines(sample, min(WIDTH, columns))
        if rows - len(text) < _LEAST_ROWS_LEFT:
            self._clear()
            return
        out, shape = "", (columns, rows, len(text))
        if self._shown != shape:
            out = self._closing() + _opening(rows, len(text))
            self._shown = shape
        first = rows - len(text) + 1
        body = "".join(_row(first + i, line) for i, line in enumerate(text))
        self._write(out + _SAVE + body + _RESTORE)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Remove the block while another program uses the terminal; the next sample restores it."""
        with self._lock:
            self._clear()
            yield

    def close(self) -> None:
        """Remove the block for good and give the whole terminal back."""
        with self._lock:
            self._clear()
            self._closed = True

    def _clear(self) -> None:
        self._write(self._closing())
        self._shown = None

    def _closing(self) -> str:
        if self._shown is None:
            return ""
        _, rows, height = self._shown
        blank = "".join(_row(row, "") for row in range(rows - height + 1, rows + 1))
        return _SAVE + "\x1b[r" + blank + _RESTORE

    def _size(self) -> Tuple[int, int]:
        try:
            size_now = os.get_terminal_size(self._descriptor)
        except OSError:
            return 0, 0
        return size_now.columns, size_now.lines

    def _write(self, text: str) -> None:
        try:
            os.write(self._descriptor, text.encode("ascii", "replace"))
        except OSError:  # the terminal is gone; the command may go on
            self._shown = None


def _opening(rows: int, height: int) -> str:
    """Make room below the cursor, then keep it out of what scrolls.

    Setting the rows that scroll moves the cursor, so it is saved before and restored after.
    """
    room = _DOWN * height + "\x1b[{}A".format(height)
    return room + _SAVE + "\x1b[1;{}r".format(rows - height) + _RESTORE


def _row(number: int, text: str) -> str:
    return "\x1b[{};1H\x1b[2K{}".format(number, text)
