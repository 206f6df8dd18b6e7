"""Control groups and the security modules that guard devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.doctor.probes.daemon_json import read_daemon_json
from provision.doctor.probes.devices import has_char_links
from provision.doctor.probes.docker import INFO, cgroup_driver, read_info
from provision.doctor.probes.fact import Found, fact
from provision.doctor.probes.system import in_container
from provision.doctor.probes.toolkit import read_mode
from provision.host.machine import ProbedMachine

_CGROUP = "/sys/fs/cgroup"
_ENFORCE = "/sys/fs/selinux/enforce"
_BOOLEAN = "/sys/fs/selinux/booleans/container_use_devices"
_LSM = "/sys/kernel/security/lsm"
_USERNS = "/proc/sys/user/max_user_namespaces"
_USERNS_DEBIAN = "/proc/sys/kernel/unprivileged_userns_clone"
_USERNS_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"


def probe_cgroup(machine: ProbedMachine) -> Iterator[Found]:
    yield from fact("cgroup.version", cgroup_version(machine), _CGROUP)
    if not any(re.fullmatch(r"nvidia\d+", name) for name in machine.names("/dev") or ()):
        return
    daemon, info = read_daemon_json(machine), read_info(machine)
    keys = daemon.keys or {}
    trap = reload_trap(
        driver=cgroup_driver(info, keys),
        mode=read_mode(machine),
        char_links=has_char_links(machine),
    )
    yield from fact("cgroup.reload_trap", trap, INFO if info else daemon.path)


def cgroup_version(machine: ProbedMachine) -> int | None:
    names = machine.names(_CGROUP)
    if not names:
        return None
    return 2 if "cgroup.controllers" in names else 1


def reload_trap(*, driver: str | None, mode: str | None, char_links: bool | None) -> bool | None:
    """Whether a `systemctl daemon-reload` would take the GPUs from running containers.

    It does where systemd manages the containers' cgroups (the engine's cgroup driver is "systemd"),
    the toolkit's hook grants the devices behind systemd's back (its mode is not "cdi"), and the
    device nodes have no links in /dev/char, through which systemd would find them again. If any of
    the three is known to be false, so is the answer; what is not known leaves it open. An engine
    that supports CDI proves nothing: `--gpus` may still use the hook.
    https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
    """
    if (driver is not None and driver != "systemd") or mode == "cdi" or char_links is True:
        return False
    return None if driver is None or char_links is None else True


def probe_security(machine: ProbedMachine) -> Iterator[Found]:
    enforce = machine.word(_ENFORCE)
    modules = machine.word(_LSM)
    if enforce in {"0", "1"}:
        yield from fact(
            "security.selinux", "enforcing" if enforce == "1" else "permissive", _ENFORCE
        )
    elif modules is not None and "selinux" not in modules.split(","):
        yield from fact("security.selinux", "disabled", _LSM)
    boolean = machine.word(_BOOLEAN)  # "1 1": the current value, and the pending one
    if boolean:
        yield from fact("security.selinux_device_boolean", boolean.startswith("1"), _BOOLEAN)
    restricted = machine.word(_USERNS_APPARMOR)
    if restricted in {"0", "1"}:
        yield from fact("security.apparmor_userns", restricted == "1", _USERNS_APPARMOR)
    if not in_container(machine):
        most, clone = machine.word(_USERNS), machine.word(_USERNS_DEBIAN)
        yield from fact(
            "kernel.user_namespaces",
            user_namespaces(most, clone),
            _USERNS_DEBIAN if clone == "0" else _USERNS,
        )


def user_namespaces(most: str | None, clone: str | None) -> bool | None:
    """From their maximum number, and from Debian's own switch if the kernel has it."""
    if most is None or not most.isdecimal():
        return None
    return int(most) > 0 and clone != "0"
