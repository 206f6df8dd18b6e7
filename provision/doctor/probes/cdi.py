"""CDI specifications: what they define, and whether it still exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from images.system.cdi import MOST_FILES, SpecError, parse_spec
from provision.doctor.probes.fact import Found, fact
from provision.host.cdi import SPEC_DIRS, SPEC_NAME
from provision.host.machine import ProbedMachine
from provision.host.proc import loaded_version

_PATHS_LIMIT = 500
_VERSION = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+(?:\.\d+)+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """A specification: its devices by full name, and the host files that it names."""

    path: str
    devices: tuple[str, ...]
    host_paths: tuple[str, ...]


def probe_cdi(machine: ProbedMachine) -> Iterator[Found]:
    listed = [machine.names(folder) for folder in SPEC_DIRS]
    specs = read_specs(machine)
    if all(names is None for names in listed):
        return
    where = specs[0].path if specs else SPEC_DIRS[0]
    devices = dict.fromkeys(name for spec in specs for name in spec.devices)
    yield from fact("cdi.devices", tuple(devices), where)
    yield from fact("cdi.conflict", conflict(specs), where)
    broken = next((spec.path for spec in specs if not spec.devices), None)
    yield from fact("cdi.invalid", broken is not None, broken or where)
    ours = [spec for spec in specs if any(d.startswith("nvidia.com/") for d in spec.devices)]
    if ours:
        yield from _state(machine, ours)


def read_specs(machine: ProbedMachine) -> tuple[SpecFile, ...]:
    paths = [path for folder in SPEC_DIRS for path in machine.paths(folder, SPEC_NAME)]
    texts = [(path, machine.text(path)) for path in paths[:MOST_FILES]]
    return tuple(read_spec(path, text) for path, text in texts if text is not None)


def read_spec(path: str, text: str) -> SpecFile:
    """What a file defines; nothing if it is not a specification."""
    try:
        found = parse_spec(text)
    except SpecError:
        return SpecFile(path=path, devices=(), host_paths=())
    return SpecFile(path=path, devices=found.names, host_paths=found.host_paths[:_PATHS_LIMIT])


def driver_of(paths: Iterable[str]) -> str | None:
    """The driver's version, from the names of its libraries."""
    return next((m[1] for path in paths if (m := _VERSION.search(path))), None)


def conflict(specs: Iterable[SpecFile]) -> bool:
    """Whether two files of one directory define the same device: engines then refuse the device. If
    the directories differ, the later one counts (CDI specification, "conflict resolution").
    """
    found = Counter(
        (spec.path.rpartition("/")[0], device) for spec in specs for device in set(spec.devices)
    )
    return any(count > 1 for count in found.values())


def is_stale(missing: Iterable[str], written_for: str | None, loaded: str | None) -> bool:
    """Whether a specification names files that are gone, or another driver version."""
    differs = written_for is not None and loaded is not None and written_for != loaded
    return any(True for _ in missing) or differs


def _state(machine: ProbedMachine, specs: list[SpecFile]) -> Iterator[Found]:
    paths = tuple(dict.fromkeys(path for spec in specs for path in spec.host_paths))
    missing = tuple(path for path in paths[:_PATHS_LIMIT] if not machine.exists(path))
    written_for = driver_of(paths)
    loaded, _ = loaded_version(machine)
    yield from fact("cdi.missing", missing, specs[0].path)
    yield from fact("cdi.driver_version", written_for, specs[0].path)
    yield from fact("cdi.stale", is_stale(missing, written_for, loaded), specs[0].path)
