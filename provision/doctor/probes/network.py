"""The network, as far as it affects downloads, collectives and container bridges."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Mapping

from provision.doctor.probes.daemon_json import read_daemon_json
from provision.doctor.probes.fact import Found, fact
from provision.doctor.redact import without_login
from provision.host.machine import ProbedMachine
from provision.host.source_facts import one_line

_INTERFACES = "/sys/class/net"
_INFINIBAND = "/sys/class/infiniband"
_ROUTES = "/proc/net/route"
_BRIDGE = "docker0"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_CAS = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
_INDEXES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_UP = 0x1


def probe_proxy(machine: ProbedMachine) -> Iterator[Found]:
    used = [name for name in _PROXIES if variable(machine.env, name)]
    yield from fact("network.proxy", bool(used), used[0] if used else "the environment")
    own = next((name for name in _CAS if machine.env.get(name)), None)
    yield from fact("network.custom_ca", own is not None, own or "the environment")


def variable(env: Mapping[str, str], name: str) -> str:
    """A proxy variable, in lower or upper case."""
    return env.get(name) or env.get(name.upper()) or ""


def probe_interfaces(machine: ProbedMachine) -> Iterator[Found]:
    names = machine.names(_INTERFACES)
    if names is None:
        return
    up = tuple(name for name in names if name != "lo" and _is_up(machine, name))
    yield from fact("network.interfaces", up, _INTERFACES)
    yield from _mtu(machine)


def way_out(routes: str) -> str | None:
    """The interface of the default route with the lowest metric, from /proc/net/route."""
    found: list[tuple[int, str]] = []
    for line in routes.splitlines()[1:]:
        parts = line.split()
        if len(parts) >= 8 and parts[1] == parts[7] == "00000000" and parts[6].isdecimal():
            found.append((int(parts[6]), parts[0]))
    return min(found)[1] if found else None


def mtu_differs(bridge: str | None, out: str | None) -> bool | None:
    """Whether containers would send larger packets than the outgoing interface accepts."""
    if not bridge or not out or not bridge.isdecimal() or not out.isdecimal():
        return None
    return int(bridge) > int(out)


def probe_infiniband(machine: ProbedMachine) -> Iterator[Found]:
    names = machine.names(_INFINIBAND)
    if names is None:
        return
    yield from fact("network.infiniband", names, _INFINIBAND)
    states = [
        (port, state)
        for name in names
        for port in machine.paths(f"{_INFINIBAND}/{name}/ports", r"\d+")
        if (state := machine.word(f"{port}/state")) is not None
    ]
    if states:
        down = next((port for port, state in states if not state.endswith("ACTIVE")), None)
        yield from fact(
            "network.infiniband_down", down is not None, f"{down or states[0][0]}/state"
        )


def probe_index(machine: ProbedMachine) -> Iterator[Found]:
    """The index that pip or uv would use, if one is configured."""
    for name in _INDEXES:
        value = machine.env.get(name)
        if value:
            yield from fact("network.index_configured", _address(value), name)
            return
    home, venv = machine.home(), machine.env.get("VIRTUAL_ENV", "")
    own = machine.env.get("PIP_CONFIG_FILE", "")
    paths = [own] if own.startswith("/") else []
    paths += [f"{venv}/pip.conf"] if venv.startswith("/") else []
    paths += [f"{home}/.config/pip/pip.conf", f"{home}/.pip/pip.conf"] if home else []
    for path in (*paths, "/etc/pip.conf"):
        index = parse_pip_conf(machine.text(path) or "")
        if index:
            yield from fact("network.index_configured", _address(index), path)
            return


def parse_pip_conf(text: str) -> str | None:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    for section in ("install", "global"):
        for key in ("index-url", "index_url"):
            value = parser.get(section, key, fallback=None)
            if value:
                return value
    return None


def _address(index: str) -> str:
    return without_login(one_line(index)) or "an address that cannot be read"


def _is_up(machine: ProbedMachine, name: str) -> bool:
    flags = machine.word(f"{_INTERFACES}/{name}/flags") or "0"
    return re.fullmatch(r"0x[0-9a-f]+|0", flags) is not None and bool(int(flags, 16) & _UP)


def _mtu(machine: ProbedMachine) -> Iterator[Found]:
    out = way_out(machine.text(_ROUTES) or "")
    if out is None:
        return
    path = f"{_INTERFACES}/{_BRIDGE}/mtu"
    bridge = machine.word(path)
    daemon = read_daemon_json(machine)
    set_there = (daemon.keys or {}).get("mtu")
    if isinstance(set_there, int) and bridge is not None:
        # what containers get; an empty bridge may still show its initial value
        bridge, path = str(set_there), daemon.path
    differs = mtu_differs(bridge, machine.word(f"{_INTERFACES}/{out}/mtu"))
    yield from fact("network.mtu_differs", differs, path)
