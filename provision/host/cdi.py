"""CDI device names from the specs on this host (/etc/cdi, /var/run/cdi).

A spec is JSON or YAML. Only `kind` and `devices[].name` matter here, and generators write those as
plain block YAML, so a few lines read them and the YAML dependency stays out. What this reader does
not understand yields no device, never a wrong one. https://github.com/cncf-tags/container-device-interface
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.host.reading import children, one_line, read_text

SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")

_FILE_LIMIT = 64
_KEY = re.compile(r"(?P<indent> *)(?P<dash>- +)?(?P<key>[A-Za-z_][\w-]*):(?:\s+(?P<value>.*))?$")


def parse_cdi(text: str) -> tuple[str, ...]:
    """Fully qualified names: ("nvidia.com/gpu=0", "nvidia.com/gpu=all")."""
    kind, names = _from_json(text) if text.lstrip().startswith("{") else _from_yaml(text)
    if not kind or "/" not in kind:
        return ()
    return tuple(f"{one_line(kind)}={one_line(name)}" for name in names if name)


def read_cdi(root: Path, dirs: Sequence[str] = SPEC_DIRS) -> tuple[str, ...]:
    """Every device name, each once, in the order of the directories."""
    found: dict[str, None] = {}
    for directory in dirs:
        entries, _ = children(root / directory.lstrip("/"))
        specs = [e for e in entries or () if e.suffix in {".json", ".yaml", ".yml"}]
        for path in specs[:_FILE_LIMIT]:
            found.update(dict.fromkeys(parse_cdi(read_text(path)[0] or "")))
    return tuple(found)


def _from_json(text: str) -> tuple[str, list[str]]:
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError):
        return "", []
    devices = spec.get("devices") if isinstance(spec, dict) else None
    kind = spec.get("kind") if isinstance(spec, dict) else None
    if not isinstance(kind, str) or not isinstance(devices, list):
        return "", []
    names = [d.get("name") for d in devices if isinstance(d, dict)]
    return kind, [name for name in names if isinstance(name, str)]


def _from_yaml(text: str) -> tuple[str, list[str]]:
    kind = ""
    names: list[str] = []
    for block, column, key, value in _yaml_keys(text):
        if block == "kind" and column == 0:
            kind = value
        elif block == "devices" and key == "name":
            names.append(value)
    return kind, names


def _yaml_keys(text: str) -> Iterator[tuple[str, int, str, str]]:
    """(top-level key, column, key, value) of top-level keys and of the keys of list items there."""
    block, item_column = "", -1
    for line in text.splitlines():
        match = _KEY.match(line.rstrip())
        if match is None:
            continue
        column = len(match["indent"]) + len(match["dash"] or "")
        if column == 0:
            block, item_column = match["key"], -1
        elif match["dash"] and item_column == -1:
            item_column = column
        if column in {0, item_column}:
            yield block, column, match["key"], _scalar(match["value"] or "")


def _scalar(text: str) -> str:
    text = text.strip()
    quoted = re.match(r"\"([^\"\\]*)\"|'([^']*)'", text)
    if quoted:
        return quoted[1] or quoted[2] or ""
    return re.split(r"\s+#", text, maxsplit=1)[0].strip()
