"""Gets from the store what the loader reads of wheels and a base, or reads it and stores it.

What the libraries of a wheel need and define depends on the wheel alone: it is kept under the
wheel's digest, and each wheel is read once. Wheels may still be arriving: the small ones, which
arrive first (`read_first`), say which of the large ones have to be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from posixpath import basename

import images
from images.inspect.contents import read_image
from images.inspect.facts import (
    FORMAT,
    LoadFacts,
    facts_from_json,
    facts_of_base,
    facts_to_json,
    read_wheel_facts,
)
from images.layers.install import canonicalized, file_name
from images.layers.wheel_file import WheelFile
from images.oci.sources import Image
from images.store.store import Store
from images.system.process import environment
from images.system.scratch import scratch_directory
from images.wheels.remote_file import Wheel
from provision.verification.inspection.outcome import named

_LOAD_FACTS = "load-facts"
_MOST_PROCESSES = 4
_LEAST_BYTES = 32 << 20  # less is read before other processes have started
_SMALL_BYTES = 32 << 20
_PAUSE_S = 0.1


class Stopped(Exception):  # noqa: N818  never leaves this package
    """The result is not needed any more."""


def read_first(wheels: Iterable[Wheel], requested: Collection[str]) -> frozenset[str]:
    """The digests of the wheels to read before the others: small ones, and those of the packages
    that were asked for. They name the libraries that they need of others.
    """
    return frozenset(
        wheel.sha256
        for wheel in wheels
        if (wheel.size or 0) < _SMALL_BYTES or canonicalized(wheel.name) in requested
    )


def names_needed(facts: Iterable[LoadFacts]) -> frozenset[str]:
    """The libraries that files of these wheels name."""
    files = (one.elf for found in facts for one in found.files.values())
    return frozenset(name for elf in files if elf is not None for name in elf.needed)


class LoadReader:
    """Reads the facts of wheels and of a base.

    `arrivals` has a function for each wheel, by digest, that waits until the wheel is on this
    machine and returns its path. When `stopped` becomes true, `Stopped` is raised.
    """

    def __init__(
        self,
        store: Store,
        arrivals: Mapping[str, Callable[[], Path]],
        *,
        tell: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._store = store
        self._arrivals = arrivals
        self._tell = tell
        self._stopped = stopped
        self._found: dict[str, LoadFacts] = {}

    def path(self, sha256: str) -> Path:
        """Wait for a wheel. Raises the error of its download."""
        return self._arrivals[sha256]()

    def read_small(
        self, wheels: Sequence[Wheel], requested: Collection[str]
    ) -> dict[str, LoadFacts]:
        """Wait for the wheels that are read first, and read them."""
        first = read_first(wheels, requested)
        return self.wheels(wheel for wheel in wheels if wheel.sha256 in first)

    def read_large(self, wheels: Sequence[Wheel], requested: Collection[str]) -> None:
        """Read each other wheel, when it is here, that has a library which one of these names."""
        first = self.read_small(wheels, requested)
        needed = names_needed(first.values())
        others = [wheel for wheel in wheels if wheel.sha256 not in first]
        for wheel in sorted(others, key=lambda wheel: -(wheel.size or 0)):  # as they arrive
            with WheelFile(self.path(wheel.sha256), shown=file_name(wheel)) as opened:
                has = {basename(name) for name in opened.members}
            if not has.isdisjoint(needed):
                self.wheels([wheel])

    def wheels(self, wheels: Iterable[Wheel]) -> dict[str, LoadFacts]:
        """The facts of some wheels, by digest. WheelUnreadableError: one is damaged."""
        wanted = list(wheels)
        unread: list[Wheel] = []
        for wheel in wanted:
            if wheel.sha256 in self._found:
                continue
            kept = facts_from_json(self._store.facts(_LOAD_FACTS, _key(wheel.sha256)))
            if kept is not None:
                self._found[wheel.sha256] = kept
            else:
                unread.append(wheel)
        if unread:
            sizes = {w.sha256: self.path(w.sha256).stat().st_size for w in unread}
            self._tell(f"reading the libraries of {named(wheel.name for wheel in unread)}")
            self._found |= self._read(sizes)
        return {wheel.sha256: self._found[wheel.sha256] for wheel in wanted}

    def base(self, base: Image) -> LoadFacts:
        """The facts of a base. Raises what reading its layers raises."""
        place = f"{base.digest} {base.platform}"
        found = facts_from_json(self._store.facts(_LOAD_FACTS, _key(place)))
        if found is None:
            self._tell("reading the libraries of the base")
            found = facts_of_base(read_image(base))
            self._keep(place, found)
        return found

    def _read(self, sizes: Mapping[str, int]) -> dict[str, LoadFacts]:
        found = self._read_apart(sizes) if sum(sizes.values()) > _LEAST_BYTES else {}
        for sha256 in sizes:
            if self._stopped():
                raise Stopped
            if sha256 not in found:
                found[sha256] = read_wheel_facts(str(self.path(sha256)))
            self._keep(sha256, found[sha256])
        return found

    def _read_apart(self, sizes: Mapping[str, int]) -> dict[str, LoadFacts]:
        """Read in several processes; what one of them cannot read is left out."""
        found: dict[str, LoadFacts] = {}
        with scratch_directory() as scratch, ExitStack() as ended:
            running = []
            for number, share in enumerate(_shares(sizes)):
                written = scratch / f"{number}.json"  # a pipe would make them wait for each other
                with written.open("wb") as output:
                    process = subprocess.Popen(
                        [
                            *(sys.executable, "-m", "images.inspect.facts"),
                            *(str(self.path(sha256)) for sha256 in share),
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.DEVNULL,
                        env=environment(),
                        cwd=Path(images.__file__).parent.parent,
                    )
                ended.callback(process.wait)
                ended.callback(process.kill)
                running.append((share, written, process))
            for share, written, process in running:
                self._wait(process)
                for sha256, line in zip(share, written.read_bytes().splitlines(), strict=False):
                    if (facts := _parsed(line)) is not None:
                        found[sha256] = facts
        return found

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PAUSE_S)
                return
            if self._stopped():
                raise Stopped

    def _keep(self, content: str, facts: LoadFacts) -> None:
        self._store.remember_facts(_LOAD_FACTS, _key(content), facts_to_json(facts))


def _shares(sizes: Mapping[str, int]) -> list[list[str]]:
    """Divide wheels among processes so that all end at about the same time."""
    count = min(_MOST_PROCESSES, os.cpu_count() or 1, len(sizes))
    shares: list[list[str]] = [[] for _ in range(count)]
    totals = [0] * count
    for sha256 in sorted(sizes, key=lambda sha256: -sizes[sha256]):
        least = totals.index(min(totals))
        shares[least].append(sha256)
        totals[least] += sizes[sha256]
    return shares


def _parsed(line: bytes) -> LoadFacts | None:
    """None: the process ended while it wrote this line."""
    try:
        return facts_from_json(json.loads(line))
    except ValueError:
        return None


def _key(content: str) -> str:
    return f"{FORMAT} {content}"
