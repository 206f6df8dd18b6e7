"""dockerd's configuration: daemon.json beside the options of its command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.host.machine import ProbedMachine
from provision.host.source_facts import one_line

_DAEMON_JSON = "/etc/docker/daemon.json"
# dockerd merges these instead of refusing them.
_MERGED = frozenset({"runtimes", "config-file"})
# Options of dockerd that have another name in daemon.json, where they are lists.
_PLURALS = {
    "host": "hosts",
    "H": "hosts",
    "label": "labels",
    "log-opt": "log-opts",
    "storage-opt": "storage-opts",
    "exec-opt": "exec-opts",
    "insecure-registry": "insecure-registries",
    "registry-mirror": "registry-mirrors",
    "authorization-plugin": "authorization-plugins",
    "default-ulimit": "default-ulimits",
    "g": "data-root",
    "graph": "data-root",
    "s": "storage-driver",
    "D": "debug",
    "l": "log-level",
    "G": "group",
    "p": "pidfile",
}
_SNAP_DAEMON_JSON = "/var/snap/docker/current/config/daemon.json"
SNAP = "/snap/docker/current"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonJson:
    """daemon.json: its expected path, its keys, and what is wrong with it ("" if nothing)."""

    path: str
    there: bool = False
    keys: Mapping[str, Any] | None = None
    problem: str = ""


def read_daemon_json(machine: ProbedMachine) -> DaemonJson:
    """Of the installed engine: the snap's, a rootless one's, or the usual one."""
    path = _config_path(machine)
    status = machine.status(path)
    if status is None:
        return DaemonJson(path=path)
    text = machine.text(path)
    if text is None:
        return DaemonJson(path=path, there=True, problem="it cannot be read")
    keys, problem = parse_daemon_json(text)
    return DaemonJson(path=path, there=True, keys=keys, problem=problem)


def parse_daemon_json(text: str) -> tuple[Mapping[str, Any] | None, str]:
    """Its keys, or None and where the error is. dockerd treats an empty file as an empty object."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        return {}, ""
    try:
        keys = json.loads(text)
    except json.JSONDecodeError as error:
        return None, f"line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        return None, one_line(str(error))
    return (keys, "") if isinstance(keys, dict) else (None, "it holds no object")


def flags_of(argv: Sequence[str]) -> Mapping[str, str]:
    """Options on dockerd's command line, by their names in daemon.json."""
    found: dict[str, str] = {}
    words = list(argv[1:])
    for i, word in enumerate(words):
        match = re.fullmatch(r"--?([A-Za-z][\w-]*)(?:=(.*))?", word, re.DOTALL)
        if match is None:
            continue
        following = words[i + 1] if i + 1 < len(words) else ""
        value = match[2] if match[2] is not None else following if following[:1] != "-" else ""
        found.setdefault(_PLURALS.get(match[1], match[1]), value)
    return found


def conflicting(keys: Iterable[str], flags: Iterable[str]) -> tuple[str, ...]:
    """Keys that are set in both places: dockerd then refuses to start."""
    return tuple(sorted((set(keys) & set(flags)) - _MERGED))


def _config_path(machine: ProbedMachine) -> str:
    for process in machine.processes("dockerd") or ():
        flags = flags_of(process.argv)
        path = flags.get("config-file", "")
        if path.startswith("/"):
            return path
        if process.uid != 0 and (home := machine.home()):
            return f"{home}/.config/docker/daemon.json"
    if machine.exists(SNAP) and not machine.exists(_DAEMON_JSON):
        return _SNAP_DAEMON_JSON
    return _DAEMON_JSON
