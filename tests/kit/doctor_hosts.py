"""Hosts of tests/data/doctor/hosts, built as trees, with programs that print what is recorded."""

from __future__ import annotations

import base64
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.host.machine import Answer, ProbedMachine, Question
from provision.host.runner import ProgramResult
from provision.host.tree import tree_source
from tests import DATA

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOSTS = DATA / "doctor" / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.toml"))


class Printed:
    """Programs by name and first argument; what is not recorded is not installed."""

    def __init__(self, outputs: Mapping[str, str]) -> None:
        self._outputs = outputs
        self.started: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        del timeout_s
        self.started.append(tuple(argv))
        key = " ".join([argv[0].rpartition("/")[2], *argv[1:2]])
        if key not in self._outputs:
            return ProgramResult(problem=f"{argv[0]} was not found")
        return ProgramResult(
            code=0 if "Failed" not in self._outputs[key] else 18, out=self._outputs[key]
        )


def load_host(name: str) -> dict[str, Any]:
    host: dict[str, Any] = tomllib.loads((HOSTS / f"{name}.toml").read_text(encoding="utf-8"))
    return host


def build(host: Mapping[str, Any], root: Path, *, with_programs: bool = True) -> ProbedMachine:
    """The host's tree below `root`, and the machine that it is."""
    for path in host.get("folders", ()):
        _under(root, path).mkdir(parents=True, exist_ok=True)
    for path in host.get("programs", ()):
        _write(root, path, b"#!/bin/sh\n", mode=0o755)
    for path, text in host.get("files", {}).items():
        _write(root, path, text.encode())
    for path, text in host.get("base64", {}).items():
        _write(root, path, base64.b64decode(text))
    for path, control in host.get("acs", {}).items():
        _write(root, path, config_with_acs(control))
    for path, target in host.get("links", {}).items():
        place = _under(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    for path, mode in host.get("modes", {}).items():
        _under(root, path).chmod(mode)
    env = dict(host.get("env", {}))
    run = Printed(host.get("commands", {}))
    if not with_programs:
        return ProbedMachine(root=root, env=env)
    source = tree_source(root, run, env)

    def ask(question: Question) -> Answer:
        answer: Answer = host.get("nvml") if question == ("nvml",) else source(question)
        return answer

    return ProbedMachine(root=root, env=env, source=ask)


def config_with_acs(control: int) -> bytes:
    """A bridge's 4096 bytes: a serial number (0x0003) at 0x100, ACS (0x000D) at 0x110."""
    config = bytearray(4096)
    struct.pack_into("<HH", config, 0, 0x1000, 0xC030)
    struct.pack_into("<IQ", config, 0x100, 0x0003 | 1 << 16 | 0x110 << 20, 0x1122334455667788)
    struct.pack_into("<IHH", config, 0x110, 0x000D | 1 << 16, 0, control)
    return bytes(config)


def _write(root: Path, path: str, data: bytes, mode: int = 0o644) -> None:
    place = _under(root, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    place.chmod(mode)


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
