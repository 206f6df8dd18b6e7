"""podman, and containerd's own configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from provision.doctor.probes import commands
from provision.doctor.probes.fact import Found, fact
from provision.host.engines import NVIDIA_HOOKS, parse_object
from provision.host.machine import ProbedMachine
from provision.host.source_facts import one_line

INFO = "podman info"

_CONTAINERD = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
)
_CONTAINERD_DROP_INS = "/etc/containerd/conf.d"
_NVIDIA_RUNTIME = re.compile(r"^[ \t]*\[.*\bruntimes\.[\"']?nvidia[\"']?\b", re.MULTILINE)


def probe_podman(machine: ProbedMachine) -> Iterator[Found]:
    program = machine.which("podman")
    yield from fact("podman.installed", program is not None, program or "PATH")
    if program is None:
        return
    done = commands.ask(machine, commands.PODMAN_INFO)
    info: dict[str, Any] = (parse_object(done.out) if done is not None else None) or {}
    version = info.get("version")
    if isinstance(version, dict) and isinstance(version.get("Version"), str):
        yield from fact("podman.version", one_line(version["Version"]), INFO)
    user = machine.user()
    if user is not None:
        yield from fact("podman.rootless", user.uid != 0, "effective user id")
        if user.uid != 0:
            given = has_subids(machine, user.name, user.uid)
            yield from fact("podman.subids", given, "/etc/subuid")
    hook = next(filter(machine.exists, NVIDIA_HOOKS), None)
    yield from fact("podman.hook", hook is not None, hook or NVIDIA_HOOKS[0])


def has_subids(machine: ProbedMachine, name: str, uid: int) -> bool:
    """Whether the user has subordinate user and group ids, by name or by number."""
    keys = (f"{name}:", f"{uid}:")
    return all(
        any(line.startswith(key) for key in keys for line in machine.lines(path, key) or ())
        for path in ("/etc/subuid", "/etc/subgid")
    )


def probe_containerd(machine: ProbedMachine) -> Iterator[Found]:
    paths = [path for path in _CONTAINERD if machine.exists(path)]
    paths += machine.paths(_CONTAINERD_DROP_INS, r".*\.toml")
    texts = [(path, text) for path in paths if (text := machine.text(path)) is not None]
    if texts:
        known = next((path for path, text in texts if _NVIDIA_RUNTIME.search(text)), None)
        yield from fact("containerd.nvidia_runtime", known is not None, known or texts[0][0])
