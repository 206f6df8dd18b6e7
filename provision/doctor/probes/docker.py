"""Docker: what the engine reports, and what its files say if it does not run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from provision.doctor.model import Fact
from provision.doctor.probes import commands
from provision.doctor.probes.daemon_json import (
    SNAP,
    DaemonJson,
    conflicting,
    flags_of,
    read_daemon_json,
)
from provision.doctor.probes.fact import Found, fact
from provision.host.engines import parse_buildx, parse_object, parse_runtimes
from provision.host.machine import ProbedMachine
from provision.host.source_facts import one_line

INFO = "docker info"

_SCRIPT_LIMIT_BYTES = 4 << 10
_SOCKET = "/var/run/docker.sock"
_UNITS = (
    "/etc/systemd/system/docker.service",
    "/run/systemd/system/docker.service",
    "/usr/lib/systemd/system/docker.service",
    "/lib/systemd/system/docker.service",
)
_DROP_INS = ("/etc/systemd/system/docker.service.d", "/run/systemd/system/docker.service.d")
_PLUGINS = (
    "/usr/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
)


def probe_docker(machine: ProbedMachine) -> Iterator[Found]:
    program = machine.which("dockerd") or find_client(machine)
    info = read_info(machine)
    running = machine.processes("dockerd")
    installed = bool(program or info or running)
    yield from fact("docker.installed", installed, program or "PATH")
    is_up = bool(info.get("ServerVersion"))
    if is_up or running is not None:
        yield from fact("docker.running", is_up or bool(running), INFO if is_up else "/proc")
    if not installed:
        return
    daemon = read_daemon_json(machine)
    kind = list(_kind(machine, info, program))
    yield from kind
    yield from _presence(machine, info, dict(kind))
    yield from _engine(info)
    yield from _configured(machine, info, daemon)
    yield from _daemon_json(machine, daemon)
    yield from _access(machine, info)
    yield from _build_kit(machine)


def find_client(machine: ProbedMachine) -> str | None:
    """The docker program; None if it is podman's imitation, a link or a short script."""
    path = machine.which("docker")
    if path is None or (machine.real(path) or path).endswith("/podman"):
        return None
    return None if "podman" in (machine.text(path, _SCRIPT_LIMIT_BYTES) or "") else path


def read_info(machine: ProbedMachine) -> Mapping[str, Any]:
    """`docker info`, or an empty object. An answer without a server still describes the client."""
    if find_client(machine) is None:
        return {}
    done = commands.ask(machine, commands.DOCKER_INFO)
    return (parse_object(done.out) if done is not None else None) or {}


def was_changed_after(modified: int, started: int) -> bool | None:
    """Whether a file is newer than a process that reads it at start-up. The kernel counts start
    times in ticks since boot, hence a tolerance of a second.
    """
    return modified > started + 1 if started > 0 else None


def unit_exec_start(text: str) -> tuple[str, ...]:
    """The last command of a systemd unit's ExecStart; an empty one resets the earlier ones."""
    joined = re.sub(r"\\\n[ \t]*", " ", text)
    found = re.findall(r"^[ \t]*ExecStart=[-@:+!]*(.*)$", joined, re.MULTILINE)
    return tuple(found[-1].split()) if found else ()


def uses_cdi(info: Mapping[str, Any], keys: Mapping[str, Any]) -> bool | None:
    """Engines 25 and newer list the specification directories while CDI is on."""
    if info.get("ServerVersion"):
        return bool(info.get("CDISpecDirs"))
    features = keys.get("features")
    on = features.get("cdi") if isinstance(features, dict) else None
    return on if isinstance(on, bool) else None


def cgroup_driver(info: Mapping[str, Any], keys: Mapping[str, Any]) -> str | None:
    """ "systemd" or "cgroupfs": as the engine reports, else as its file sets it."""
    told = _word(info, "CgroupDriver")
    if told:
        return told
    options = keys.get("exec-opts")
    for option in options if isinstance(options, list) else ():
        name, _, value = str(option).partition("=")
        if name == "native.cgroupdriver" and value:
            return value
    return None


def _kind(machine: ProbedMachine, info: Mapping[str, Any], program: str | None) -> Iterator[Found]:
    real = machine.real(program) if program else None
    snap = machine.exists(SNAP) and _serves(real, _word(info, "DockerRootDir"))
    yield from fact("docker.snap", snap, SNAP if snap else program or "PATH")
    system = _word(info, "OperatingSystem")
    desktop = system == "Docker Desktop"
    home = machine.home()
    if not info.get("ServerVersion") and home:
        desktop = machine.exists(f"{home}/.docker/desktop")
    yield from fact("docker.desktop", desktop, INFO if system else "~/.docker/desktop")
    options = info.get("SecurityOptions")
    found = machine.processes("dockerd") or ()
    if isinstance(options, list):
        yield from fact("docker.rootless", any("rootless" in str(o) for o in options), INFO)
    elif found:
        yield from fact("docker.rootless", all(p.uid != 0 for p in found), "/proc")


def _presence(
    machine: ProbedMachine, info: Mapping[str, Any], kind: Mapping[str, Fact]
) -> Iterator[Found]:
    """Whether there is an engine beside the client, and why it does not answer."""
    dockerd = machine.which("dockerd")
    packed = next((n for n in ("docker.snap", "docker.desktop") if n in kind and kind[n].value), "")
    running = bool(info.get("ServerVersion") or machine.processes("dockerd"))
    where = dockerd or (kind[packed].where if packed else "PATH")
    yield from fact("docker.engine", bool(dockerd or packed or running), where)
    if not info.get("ServerVersion"):
        done = commands.ask(machine, commands.DOCKER_INFO)
        errors = info.get("ServerErrors")
        told = str(errors[0]) if isinstance(errors, list) and errors else done.err if done else ""
        yield from fact("docker.error", one_line(told) or None, INFO)
        if "docker.rootless" not in kind and "unix:///run/user/" in told:
            yield from fact("docker.rootless", value=True, where=INFO)


def _serves(program: str | None, root_dir: str | None) -> bool:
    """Whether the answering engine is the snap's: another one may be installed beside it."""
    if root_dir:
        return root_dir.startswith("/var/snap/docker/")
    # /snap/bin/docker leads to the program "snap"
    return program is not None and (program.startswith("/snap/") or program.endswith("/snap"))


def _engine(info: Mapping[str, Any]) -> Iterator[Found]:
    if not info.get("ServerVersion"):
        return
    yield from fact("docker.version", _word(info, "ServerVersion"), INFO)
    runtimes = info.get("Runtimes")
    if isinstance(runtimes, dict):
        yield from fact("docker.nvidia_runtime", parse_runtimes(dict(info)), INFO)
    yield from fact("docker.default_runtime", _word(info, "DefaultRuntime"), INFO)
    yield from fact("docker.root_dir", _word(info, "DockerRootDir"), INFO)


def _configured(
    machine: ProbedMachine, info: Mapping[str, Any], daemon: DaemonJson
) -> Iterator[Found]:
    """What the files say if the engine does not; and what it never reports."""
    keys = daemon.keys or {}
    process = next(iter(machine.processes("dockerd") or ()), None)
    argv = process.argv if process else _unit_argv(machine)
    flags = flags_of(argv)
    if not info.get("ServerVersion"):
        yield from _by_files(machine, keys, daemon.path)
    up = bool(info.get("ServerVersion"))
    yield from fact("docker.cgroup_driver", cgroup_driver(info, keys), INFO if up else daemon.path)
    yield from fact("docker.cdi", uses_cdi(info, keys), INFO if up else daemon.path)
    proxied = any(info.get(name) for name in ("HttpProxy", "HttpsProxy")) or bool(
        keys.get("proxies")
    )
    yield from fact(
        "docker.proxy", proxied or _unit_has_proxy(machine), INFO if up else daemon.path
    )
    conflict = conflicting(keys, flags)
    where = f"{daemon.path}: {', '.join(conflict)}" if conflict else daemon.path
    yield from fact("docker.flags_conflict", bool(conflict), where)


def _by_files(machine: ProbedMachine, keys: Mapping[str, Any], path: str) -> Iterator[Found]:
    runtimes = keys.get("runtimes")
    if isinstance(runtimes, dict):
        known = any(str(name).startswith("nvidia") for name in runtimes)
        yield from fact("docker.nvidia_runtime", known, path)
    for name, key in (
        ("docker.default_runtime", "default-runtime"),
        ("docker.root_dir", "data-root"),
    ):
        yield from fact(name, _word(keys, key), path)
    if "data-root" not in keys and machine.exists("/var/lib/docker"):
        yield from fact("docker.root_dir", "/var/lib/docker", "/var/lib/docker")


def _daemon_json(machine: ProbedMachine, daemon: DaemonJson) -> Iterator[Found]:
    if not daemon.there:
        yield from fact("docker.daemon_json", "absent", daemon.path)
        return
    if daemon.keys is None and daemon.problem == "it cannot be read":
        return
    state = "invalid" if daemon.problem else "valid"
    yield from fact("docker.daemon_json", state, daemon.path)
    status = machine.status(daemon.path)
    started = [one.started for one in machine.processes("dockerd") or () if one.started]
    oldest = min(started, default=None)
    if status is not None and oldest is not None:
        newer = was_changed_after(status.modified, oldest)
        yield from fact("docker.daemon_json_newer", newer, daemon.path)


def _access(machine: ProbedMachine, info: Mapping[str, Any]) -> Iterator[Found]:
    path = _socket(machine)
    done = commands.ask(machine, commands.DOCKER_INFO)
    if info.get("ServerVersion"):
        yield from fact("docker.socket_accessible", value=True, where=INFO)
    elif done is not None and "permission denied" in (done.out + done.err).lower():
        yield from fact("docker.socket_accessible", value=False, where=INFO)
    elif path is not None:
        yield from fact("docker.socket_accessible", machine.usable(path), path)
    user = machine.user()
    line = next(iter(machine.lines("/etc/group", "docker:") or ()), "")
    parts = line.split(":")
    if user is None or parts[0] != "docker" or len(parts) < 4 or not parts[2].isdecimal():
        return
    listed = user.name in parts[3].split(",")
    active = int(parts[2]) in user.gids
    yield from fact("docker.user_in_group", listed, "/etc/group")
    yield from fact("docker.group_active", active, "groups of this process")


def _build_kit(machine: ProbedMachine) -> Iterator[Found]:
    done = commands.ask(machine, commands.DOCKER_BUILDX)
    if done is not None and done.problem is None:
        there = done.ok and parse_buildx(done.out) is not None
        yield from fact("docker.build_kit", there, "docker buildx version")
        return
    home = machine.home()
    folders = (*_PLUGINS, f"{home}/.docker/cli-plugins") if home else _PLUGINS
    path = next(filter(machine.exists, (f"{f}/docker-buildx" for f in folders)), None)
    yield from fact("docker.build_kit", path is not None, path or _PLUGINS[0])


def _unit_argv(machine: ProbedMachine) -> tuple[str, ...]:
    unit = next((text for path in _UNITS if (text := machine.text(path)) is not None), "")
    return unit_exec_start("\n".join((unit, *_drop_ins(machine))))


def _unit_has_proxy(machine: ProbedMachine) -> bool:
    text = "\n".join(_drop_ins(machine))
    return (
        re.search(r"^[ \t]*Environment=.*\bHTTPS?_PROXY=\S", text, re.MULTILINE | re.IGNORECASE)
        is not None
    )


def _drop_ins(machine: ProbedMachine) -> Iterator[str]:
    for folder in _DROP_INS:
        for path in machine.paths(folder, r".*\.conf"):
            yield machine.text(path) or ""


def _socket(machine: ProbedMachine) -> str | None:
    """The socket that a client here would use; None if it is not a socket, or does not exist."""
    host = machine.env.get("DOCKER_HOST", "")
    if host:
        path = host.removeprefix("unix://")
        return path if path.startswith("/") else None
    runtime = machine.env.get("XDG_RUNTIME_DIR", "")
    for path in (_SOCKET, "/run/docker.sock", f"{runtime}/docker.sock" if runtime else ""):
        if path and machine.exists(path):
            return path
    return None


def _word(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return one_line(value) or None if isinstance(value, str) else None
