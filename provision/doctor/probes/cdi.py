"""CDI specifications: what they define, and whether it is still there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from provision.doctor.probes.driver import loaded_version
from provision.doctor.probes.machine import Found, Machine, fact
from provision.host.cdi import parse_cdi

FOLDERS = ("/etc/cdi", "/var/run/cdi")

_FILES_LIMIT = 64
_PATHS_LIMIT = 500
_LINE_LIMIT = 4096
_SPEC = r".*\.(?:json|ya?ml)"
# "path" is of the host for device nodes and hooks; a mount's own is "containerPath".
_HOST_PATH = re.compile(r"^[ \t]*(?:- +)?(?:hostPath|path): +[\"']?(/[^\"'\s#]*)", re.MULTILINE)
_VERSION = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+(?:\.\d+)+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A specification: its devices by full name, and the files of the host that it names."""

    path: str
    devices: tuple[str, ...]
    host_paths: tuple[str, ...]


def probe_cdi(machine: Machine) -> Iterator[Found]:
    listed = [machine.names(folder) for folder in FOLDERS]
    specs = read_specs(machine)
    if all(names is None for names in listed):
        yield from fact("cdi.specs", (), FOLDERS[0])
        return
    where = specs[0].path if specs else FOLDERS[0]
    yield from fact("cdi.specs", tuple(spec.path for spec in specs), where)
    devices = dict.fromkeys(name for spec in specs for name in spec.devices)
    yield from fact("cdi.devices", tuple(devices), where)
    yield from fact("cdi.conflict", conflict(specs), where)
    broken = next((spec.path for spec in specs if not spec.devices), None)
    yield from fact("cdi.invalid", broken is not None, broken or where)
    ours = [spec for spec in specs if any(d.startswith("nvidia.com/") for d in spec.devices)]
    if ours:
        yield from _state(machine, ours)


def read_specs(machine: Machine) -> tuple[Spec, ...]:
    paths = [path for folder in FOLDERS for path in machine.paths(folder, _SPEC)]
    texts = [(path, machine.text(path)) for path in paths[:_FILES_LIMIT]]
    return tuple(
        Spec(path=path, devices=parse_cdi(text), host_paths=host_paths(text))
        if is_readable(text)
        else Spec(path=path, devices=(), host_paths=())
        for path, text in texts
        if text is not None
    )


def is_readable(text: str) -> bool:
    """No generator writes longer lines into YAML, and its reader would need long for them."""
    is_json = text.lstrip().startswith("{")
    return is_json or all(len(line) <= _LINE_LIMIT for line in text.splitlines())


def host_paths(text: str) -> tuple[str, ...]:
    """Files of the host that a specification in JSON or YAML names, each once."""
    if text.lstrip().startswith("{"):
        try:
            found: Iterable[str] = list(_json_paths(json.loads(text), depth=0))
        except (ValueError, RecursionError):
            found = ()
    else:
        found = _HOST_PATH.findall(text)
    return tuple(dict.fromkeys(found))[:_PATHS_LIMIT]


def driver_of(paths: Iterable[str]) -> str | None:
    """The driver's version in the names of its libraries."""
    return next((m[1] for path in paths if (m := _VERSION.search(path))), None)


def conflict(specs: Iterable[Spec]) -> bool:
    """Whether two files of one directory define one device: engines then refuse the device. Of two
    directories the later one counts (CDI specification, "conflict resolution").
    """
    found = Counter(
        (spec.path.rpartition("/")[0], device) for spec in specs for device in set(spec.devices)
    )
    return any(count > 1 for count in found.values())


def is_stale(missing: Iterable[str], written_for: str | None, loaded: str | None) -> bool:
    """Whether a specification speaks of files that are gone, or of another driver."""
    differs = written_for is not None and loaded is not None and written_for != loaded
    return any(True for _ in missing) or differs


def _state(machine: Machine, specs: list[Spec]) -> Iterator[Found]:
    paths = tuple(dict.fromkeys(path for spec in specs for path in spec.host_paths))
    missing = tuple(path for path in paths[:_PATHS_LIMIT] if not machine.exists(path))
    written_for = driver_of(paths)
    loaded, _ = loaded_version(machine)
    yield from fact("cdi.missing", missing, specs[0].path)
    yield from fact("cdi.driver_version", written_for, specs[0].path)
    yield from fact("cdi.stale", is_stale(missing, written_for, loaded), specs[0].path)


def _json_paths(value: Any, *, depth: int) -> Iterator[str]:  # noqa: ANN401
    if depth > 12:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in {"hostPath", "path"} and isinstance(inner, str) and inner.startswith("/"):
                yield inner
            else:
                yield from _json_paths(inner, depth=depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _json_paths(inner, depth=depth + 1)
