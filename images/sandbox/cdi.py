"""Reads from the host's CDI specifications what a container needs for its GPUs.

A specification is JSON, or YAML as generators write it: block style, one scalar a line. That much
YAML is read here; a file with anything else in it is not understood, which is said, and then the
driver is looked for instead. Nothing is guessed from half a file.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPEC_DIRECTORIES = ("etc/cdi", "var/run/cdi")
KIND = "nvidia.com/gpu"

_MOST_BYTES = 4 << 20
_MOST_FILES = 64
_KEY = re.compile(r"""(?P<key>[\w./-]+|"[^"\\]*"|'[^']*'):(?:\s+(?P<value>.*))?$""")
_NOT_PLAIN = tuple("&*!|>%@`{[]},?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What is changed in a container. Paths come in pairs: the host's, the container's."""

    nodes: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Each: what it leads to, and where it is."""
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`edits` is None where no specification speaks of NVIDIA's GPUs."""

    edits: Edits | None
    notes: tuple[str, ...] = ()


class _NotUnderstoodError(ValueError):
    pass


def read_edits(root: Path) -> Found:
    """Read the edits for all of NVIDIA's GPUs from the specifications of a host."""
    notes: list[str] = []
    for file in _files(root):
        try:
            with file.open("rb") as opened:
                text = opened.read(_MOST_BYTES).decode("utf-8", "replace")
            edits = gpu_edits(parse_spec(text))
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"{file}: not understood, left out ({error})")
            continue
        if edits is not None:
            return Found(edits=edits, notes=tuple(notes))
    return Found(edits=None, notes=tuple(notes))


def _files(root: Path) -> list[Path]:
    found = [
        file
        for directory in SPEC_DIRECTORIES
        for suffix in (".json", ".yaml", ".yml")
        for file in sorted((root / directory).glob(f"*{suffix}"))
    ]
    return found[:_MOST_FILES]


def parse_spec(text: str) -> dict[str, Any]:
    """Read a specification; ValueError where it is none, or is not understood."""
    found = json.loads(text) if text.lstrip().startswith("{") else parse_yaml(text)
    if not isinstance(found, dict):
        raise _NotUnderstoodError("it is no mapping")
    return found


def gpu_edits(spec: dict[str, Any]) -> Edits | None:
    """Join the edits of all of NVIDIA's GPUs; None where the specification is about others."""
    if spec.get("kind") != KIND:
        return None
    devices = _dicts(spec.get("devices"))
    chosen = [device for device in devices if device.get("name") == "all"] or devices
    if not chosen:
        return None
    edits = [_edits(part.get("containerEdits")) for part in (spec, *chosen)]
    return Edits(
        nodes=_once(pair for one in edits for pair in one.nodes),
        mounts=_once(pair for one in edits for pair in one.mounts),
        links=_once(pair for one in edits for pair in one.links),
        env=tuple(dict.fromkeys(line for one in edits for line in one.env)),
    )


def _edits(found: object) -> Edits:
    edits = found if isinstance(found, dict) else {}
    hooks = [_texts(hook.get("args")) for hook in _dicts(edits.get("hooks"))]
    return Edits(
        nodes=tuple(
            (host, path)
            for node in _dicts(edits.get("deviceNodes"))
            if (path := _path(node.get("path"))) and (host := _path(node.get("hostPath")) or path)
        ),
        mounts=tuple(
            (host, path)
            for mount in _dicts(edits.get("mounts"))
            if (host := _path(mount.get("hostPath")))
            and (path := _path(mount.get("containerPath")))
        ),
        links=tuple(pair for words in hooks for pair in _links(words)),
        env=tuple(line for line in _texts(edits.get("env")) if "=" in line),
    )


def _links(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The links that a hook makes: `create-symlinks --link TARGET::PATH`."""
    if "create-symlinks" not in words:
        return
    for before, word in itertools.pairwise(words):
        value = word if before == "--link" else ""
        if before.startswith("--link="):
            value = before.partition("=")[2]
        target, colons, path = value.partition("::")
        if colons and target and path:
            yield target, path


def _dicts(found: object) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _texts(found: object) -> list[str]:
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _path(found: object) -> str:
    """An absolute path, or nothing."""
    fits = isinstance(found, str) and found.startswith("/") and "\0" not in found
    return str(found) if fits else ""


def _once(pairs: Iterator[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Each place in the container once; the first to speak of it is heard."""
    places: dict[str, str] = {}
    for host, path in pairs:
        places.setdefault(path, host)
    return tuple((host, path) for path, host in places.items())


Line = tuple[int, str]


def parse_yaml(text: str) -> object:
    """Read the part of YAML that generators of specifications write; every scalar is a text."""
    lines = []
    for line in text.splitlines():
        content = line.strip()
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise _NotUnderstoodError("it has a tab for an indent")
        if content and not content.startswith("#") and content != "---":
            lines.append((len(line) - len(line.lstrip(" ")), content))
    found, at = _block(lines, 0, 0)
    if at != len(lines):
        raise _NotUnderstoodError(f"its indents are uneven at {lines[at][1]!r}")
    return found


def _block(lines: list[Line], at: int, indent: int) -> tuple[object, int]:
    if at < len(lines) and lines[at][0] == indent:
        return (_sequence if _is_item(lines[at][1]) else _mapping)(lines, at, indent)
    raise _NotUnderstoodError("something is missing")


def _is_item(content: str) -> bool:
    return content == "-" or content.startswith("- ")


def _sequence(lines: list[Line], at: int, indent: int) -> tuple[list[object], int]:
    items: list[object] = []
    while at < len(lines) and lines[at][0] == indent and _is_item(lines[at][1]):
        rest = lines[at][1][1:].lstrip(" ")
        if not rest:
            at += 1
            item, at = _block(lines, at, lines[at][0]) if _deeper(lines, at, indent) else ("", at)
        elif _KEY.match(rest) or _is_item(rest):
            # what stands behind the dash is a block that begins in its own column
            inner = indent + len(lines[at][1]) - len(rest)
            lines[at] = (inner, rest)
            item, at = _block(lines, at, inner)
        else:
            item, at = _scalar(rest), at + 1
        items.append(item)
    return items, at


def _mapping(lines: list[Line], at: int, indent: int) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    while at < len(lines) and lines[at][0] == indent and not _is_item(lines[at][1]):
        match = _KEY.match(lines[at][1])
        if match is None:
            raise _NotUnderstoodError(f"{lines[at][1]!r} is no key")
        key, text = str(_scalar(match["key"])), (match["value"] or "").strip()
        if key in found:
            raise _NotUnderstoodError(f"it says {key} twice")
        at += 1
        if text and not text.startswith("#"):
            found[key] = _scalar(text)
        elif _deeper(lines, at, indent):
            found[key], at = _block(lines, at, lines[at][0])
        elif at < len(lines) and lines[at][0] == indent and _is_item(lines[at][1]):
            found[key], at = _sequence(lines, at, indent)
        else:
            found[key] = ""
    return found, at


def _deeper(lines: list[Line], at: int, indent: int) -> bool:
    return at < len(lines) and lines[at][0] > indent


def _scalar(text: str) -> object:
    quoted = re.fullmatch(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')(?:\s+#.*)?""", text)
    if quoted and quoted[1].startswith('"'):
        return json.loads(quoted[1])
    if quoted:
        return quoted[1][1:-1].replace("''", "'")
    plain = re.split(r"\s+#", text, maxsplit=1)[0].rstrip()
    if plain in {"[]", "{}"}:
        return [] if plain == "[]" else {}
    if plain.startswith((*_NOT_PLAIN, '"', "'")) or ": " in plain or plain.endswith(":"):
        raise _NotUnderstoodError(f"{plain[:80]!r} is not plain YAML")
    return plain
