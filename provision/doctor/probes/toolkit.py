"""The NVIDIA Container Toolkit and its config.toml."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from provision.doctor.probes import commands
from provision.doctor.probes.fact import Found, fact
from provision.doctor.probes.packages import read_packages
from provision.host.machine import ProbedMachine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG = "/etc/nvidia-container-runtime/config.toml"

# A TOML parser needs minutes for a megabyte of dots, and the real file has one kilobyte.
_CONFIG_LIMIT_BYTES = 64 << 10
_PROGRAMS = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-cli")
_PACKAGE = r"(?:lib)?nvidia-container-toolkit"


def probe_toolkit(machine: ProbedMachine) -> Iterator[Found]:
    programs = [path for name in _PROGRAMS if (path := machine.which(name))]
    packages = read_packages(machine)
    packaged = packages.version(_PACKAGE) if packages is not None else None
    where = programs[0] if programs else packages.where if packages and packaged else "PATH"
    yield from fact("toolkit.installed", bool(programs or packaged), where)
    for name, program in (
        ("toolkit.hook", "nvidia-container-runtime-hook"),
        ("toolkit.cli", "nvidia-container-cli"),
    ):
        path = machine.which(program)
        yield from fact(name, path is not None, path or "PATH")
    yield from _version(machine)
    text = machine.text(CONFIG, _CONFIG_LIMIT_BYTES)
    if text is None:
        return
    config = parse_config(text)
    yield from fact("toolkit.config_invalid", config is None, CONFIG)
    if config is not None:
        yield from _settings(machine, config)


def parse_config(text: str) -> Mapping[str, Any] | None:
    """None if it is not valid TOML."""
    try:
        config: Mapping[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    return config


def read_mode(machine: ProbedMachine) -> str | None:
    """The runtime's mode from config.toml, if set there."""
    config = parse_config(machine.text(CONFIG, _CONFIG_LIMIT_BYTES) or "")
    return _string(_table(config or {}, "nvidia-container-runtime"), "mode")


def parse_version(text: str) -> str | None:
    """ "NVIDIA Container Toolkit CLI version 1.17.4"."""
    found = re.search(r"\bversion\s+v?(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def _version(machine: ProbedMachine) -> Iterator[Found]:
    done = commands.ask(machine, commands.CTK)
    version = parse_version(done.out) if done is not None and done.ok else None
    if version is not None:
        yield from fact("toolkit.version", version, "nvidia-ctk --version")
    elif (packages := read_packages(machine)) is not None:
        yield from fact("toolkit.version", packages.version(_PACKAGE), packages.where)


def _settings(machine: ProbedMachine, config: Mapping[str, Any]) -> Iterator[Found]:
    cli = _table(config, "nvidia-container-cli")
    no_cgroups = cli.get("no-cgroups", False)
    yield from fact("toolkit.no_cgroups", no_cgroups is True, CONFIG)
    ldconfig = _string(cli, "ldconfig")
    # "@" means: the host's; without it the path is inside the container
    if ldconfig and ldconfig.startswith("@/"):
        gone = not machine.exists(ldconfig[1:])
        yield from fact("toolkit.ldconfig_missing", gone, ldconfig[1:])
    root = _string(cli, "root")
    if root and root.strip("/"):
        # a root whose driver container is not running can exist, and be empty
        names = machine.names(root) if machine.exists(root) else ()
        yield from fact("toolkit.root_empty", None if names is None else not names, root)


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name)
    return table if isinstance(table, dict) else {}


def _string(table: Mapping[str, Any], name: str) -> str | None:
    value = table.get(name)
    return value if isinstance(value, str) and value else None
