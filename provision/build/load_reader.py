"""Gets from the store what the loader reads of wheels and a base, or reads it and stores it.

What the libraries of a wheel need and define depends on the wheel alone: it is kept under the
wheel's digest, and each wheel is read once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

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
from images.system.scratch import scratch_directory
from images.wheels.locked import Wheel
from provision.verification.inspection.outcome import named

if TYPE_CHECKING:
    from images.oci.sources import Image
    from images.store import Store

_LOAD_FACTS = "load-facts"
_MOST_PROCESSES = 4
_LEAST_BYTES = 32 << 20  # less is read before other processes have started


class LoadReader:
    """Reads the facts of wheels, whose files are at `paths` by digest, and of a base."""

    def __init__(
        self, store: Store, paths: Mapping[str, Path], tell: Callable[[str], None]
    ) -> None:
        self._store = store
        self._paths = paths
        self._tell = tell

    def wheels(self, wheels: Iterable[Wheel]) -> dict[str, LoadFacts]:
        """The facts of some wheels, by digest. WheelUnreadableError: one is damaged."""
        found: dict[str, LoadFacts] = {}
        unread: list[Wheel] = []
        for wheel in wheels:
            kept = facts_from_json(self._store.facts(_LOAD_FACTS, _key(wheel.sha256)))
            if kept is not None:
                found[wheel.sha256] = kept
            else:
                unread.append(wheel)
        if unread:
            self._tell(f"reading the libraries of {named(wheel.name for wheel in unread)}")
            found |= self._read(unread)
        return found

    def base(self, base: Image) -> LoadFacts:
        """The facts of a base. Raises what reading its layers raises."""
        place = f"{base.digest} {base.platform}"
        found = facts_from_json(self._store.facts(_LOAD_FACTS, _key(place)))
        if found is None:
            self._tell("reading the libraries of the base")
            found = facts_of_base(read_image(base))
            self._keep(place, found)
        return found

    def _read(self, wheels: Sequence[Wheel]) -> dict[str, LoadFacts]:
        sizes = {wheel.sha256: self._paths[wheel.sha256].stat().st_size for wheel in wheels}
        found = self._read_apart(sizes) if sum(sizes.values()) > _LEAST_BYTES else {}
        for sha256 in sizes:
            if sha256 not in found:
                found[sha256] = read_wheel_facts(str(self._paths[sha256]))
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
                            *(str(self._paths[sha256]) for sha256 in share),
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.DEVNULL,
                        cwd=Path(images.__file__).parent.parent,
                    )
                ended.callback(process.wait)
                ended.callback(process.kill)
                running.append((share, written, process))
            for share, written, process in running:
                process.wait()
                for sha256, line in zip(share, written.read_bytes().splitlines(), strict=False):
                    if (facts := _parsed(line)) is not None:
                        found[sha256] = facts
        return found

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
