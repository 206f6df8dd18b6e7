"""Reads what a command's processes do from /proc: CPU time, memory, reading from storage.

A process is a *worker* if another process of the command forked it and it runs the same program
with the same arguments: that is how data loaders start workers. Ranks of a launcher and programs of
a shell run a different program than their parent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple

from verify.device import limits
from verify.monitoring.samples import Host

Key = Tuple[int, int]  # process id and start time: ids are reused


@dataclass(frozen=True)
class WatchedProcess:
    """A line of /proc/PID/stat."""

    pid: int
    parent: int
    start: int
    state: str
    ticks: int
    rss_pages: int

    @property
    def key(self) -> Key:
        """Distinguishes it from a later process with the same id."""
        return self.pid, self.start


class Tree:
    """A process and its descendants, from sample to sample."""

    def __init__(self, root: int, proc: str = "/proc") -> None:
        self._root, self._proc = root, proc
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._cpus = limits.cpus(limits.read())
        self._before: Optional[float] = None
        self._ticks: Dict[Key, int] = {}
        self._reads: Dict[Key, int] = {}
        self._threads: Dict[Tuple[Key, str], int] = {}
        self._machine: Optional[Tuple[int, int]] = None

    def sample(self, now: float) -> Optional[Host]:
        """All that are alive now; rates only from the second sample on. None if none is left."""
        family = self._family()
        if not family:
            return None
        seconds = None if self._before is None else now - self._before
        machine, used = self._machine_percent(), self._cpu(family)
        workers = self._workers(family)
        others = [process for process in family if process.key not in workers]
        thread = self._busiest_thread(others, used)
        read = self._read_bytes(family)
        self._before = now
        host = Host(
            cpus=self._cpus,
            workers=len(workers),
            rss_bytes=sum(process.rss_pages for process in family) * self._page,
            waiting=any(process.state == "D" for process in family),
        )
        if not seconds or seconds <= 0:
            return host
        per_core = 1 / (self._hertz * seconds)
        return Host(
            machine,
            sum(used.values()) * per_core,
            host.cpus,
            host.workers,
            sum(used.get(key, 0) for key in workers) * per_core,
            None if thread is None else thread * per_core,
            host.rss_bytes,
            None if read is None else read / seconds,
            host.waiting,
        )

    def _family(self) -> List[WatchedProcess]:
        """The root and its descendants. One whose parent ended first is no longer found."""
        everyone = {process.pid: process for process in self._everyone()}
        children: Dict[int, List[WatchedProcess]] = {}
        for process in everyone.values():
            children.setdefault(process.parent, []).append(process)
        found: List[WatchedProcess] = []
        left = [everyone[self._root]] if self._root in everyone else []
        while left:
            process = left.pop()
            found.append(process)
            left += children.get(process.pid, [])
        return [process for process in found if process.state not in "ZX"]

    def _everyone(self) -> Iterator[WatchedProcess]:
        for name in os.listdir(self._proc):
            if name.isdigit():
                process = parse_stat(self._text(name, "stat"))
                if process is not None:
                    yield process

    def _cpu(self, family: List[WatchedProcess]) -> Dict[Key, int]:
        """Ticks of each process since the previous sample; of a new one, all it has used."""
        used = {p.key: p.ticks - self._ticks.get(p.key, 0) for p in family}
        self._ticks = {process.key: process.ticks for process in family}
        return used

    def _workers(self, family: List[WatchedProcess]) -> "set[Key]":
        by_pid = {process.pid: process for process in family}
        lines = {process.pid: self._text(str(process.pid), "cmdline") for process in family}
        return {
            process.key
            for process in family
            if process.parent in by_pid
            and process.pid != self._root
            and lines[process.pid]
            and lines[process.pid] == lines[process.parent]
        }

    def _busiest_thread(self, family: List[WatchedProcess], used: Dict[Key, int]) -> Optional[int]:
        """Ticks of the busiest thread of the busiest process: Python runs in one thread at a time.

        None in the first sample after another process became the busiest one.
        """
        if not family:
            return None
        top = max(family, key=lambda process: used.get(process.key, 0))
        folder = os.path.join(self._proc, str(top.pid), "task")
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        rows = [
            (name, parse_stat(self._text(str(top.pid), "task", name, "stat"))) for name in names
        ]
        now = {(top.key, name): row.ticks for name, row in rows if row is not None}
        before, self._threads = self._threads, now
        grown = [ticks - before[key] for key, ticks in now.items() if key in before]
        return max(grown, default=None)

    def _read_bytes(self, family: List[WatchedProcess]) -> Optional[int]:
        """Bytes read from storage since the previous sample; None if no process reports it."""
        now = {process.key: self._io(process.pid) for process in family}
        told = {key: value for key, value in now.items() if value is not None}
        before, self._reads = self._reads, told
        if not told:
            return None
        return sum(max(0, value - before.get(key, 0)) for key, value in told.items())

    def _io(self, pid: int) -> Optional[int]:
        for line in self._text(str(pid), "io").splitlines():
            name, _, value = line.partition(":")
            if name == "read_bytes":
                return int(value)
        return None

    def _machine_percent(self) -> Optional[float]:
        """The share of all CPUs' time that was not idle."""
        words = self._text("stat").partition("\n")[0].split()[1:9]
        if len(words) < 5:
            return None
        times = [int(word) for word in words]  # user nice system idle iowait irq softirq steal
        busy, total = sum(times) - times[3] - times[4], sum(times)
        before, self._machine = self._machine, (busy, total)
        if before is None or total <= before[1]:
            return None
        return 100 * max(0, busy - before[0]) / (total - before[1])

    def _text(self, *parts: str) -> str:
        """The text of a file; empty if it is gone or may not be read."""
        try:
            with open(os.path.join(self._proc, *parts), errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def parse_stat(text: str) -> Optional[WatchedProcess]:
    """Parse /proc/PID/stat; the name in brackets may contain anything, brackets too."""
    head, _, rest = text.rpartition(")")
    words = rest.split()
    if not head or len(words) < 22:
        return None
    return WatchedProcess(
        pid=int(head.partition(" ")[0]),
        parent=int(words[1]),
        start=int(words[19]),
        state=words[0],
        ticks=int(words[11]) + int(words[12]),
        rss_pages=max(0, int(words[21])),
    )
