"""Reads the host's CDI specifications: the devices, and what a container gets for them.

A specification is JSON or YAML. Engines read scalars as text where they expect text, and support
neither anchors nor tags; this reader does the same. A file that it does not understand is an
error, never half a device.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SPEC_DIRECTORIES = ("etc/cdi", "var/run/cdi")
SUFFIXES = (".json", ".yaml", ".yml")
MOST_FILES = 64
KIND = "nvidia.com/gpu"

_MOST_JSON_BYTES = 4 << 20
# A GPU takes about 4 KB, a MIG device 1 KB; the reader needs 4 s for a megabyte.
_MOST_YAML_BYTES = 1 << 19
_DEEPEST = 12  # nested lists and mappings; the format has 7


class Edits(NamedTuple):
    """Changes to a container. Paths are pairs: the host's, the container's."""

    nodes: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Pairs: the link's target, the link's path."""
    env: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    """The host's programs that engines start as hooks."""

    @property
    def host_paths(self) -> tuple[str, ...]:
        """Every host file that they name, without duplicates."""
        pairs = (*self.nodes, *self.mounts)
        return tuple(dict.fromkeys([*(host for host, _ in pairs), *self.programs]))


class CdiSpec(NamedTuple):
    """One specification: the devices by name ("0", "all"), and the edits for all of them."""

    kind: str
    edits: Edits
    devices: tuple[tuple[str, Edits], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' full names, as for engines: "nvidia.com/gpu=all"."""
        return tuple(f"{self.kind}={name}" for name, _ in self.devices)

    @property
    def host_paths(self) -> tuple[str, ...]:
        """Every host file that it names, without duplicates."""
        every = [self.edits, *(edits for _, edits in self.devices)]
        return tuple(dict.fromkeys(path for edits in every for path in edits.host_paths))


class GpuEdits(NamedTuple):
    """The edits for all GPUs; `edits` is None if no specification defines NVIDIA GPUs."""

    edits: Edits | None
    notes: tuple[str, ...] = ()


class SpecError(ValueError):
    """A file that is not a CDI specification, or is not understood."""


def read_edits(root: Path) -> GpuEdits:
    """Read the edits for all NVIDIA GPUs from the specifications of a host."""
    notes: list[str] = []
    for file in _files(root):
        try:
            with file.open("rb") as opened:
                text = opened.read(_MOST_JSON_BYTES + 1).decode("utf-8", "replace")
            edits = gpu_edits(parse_spec(text))
        except (OSError, SpecError) as error:
            notes.append(f"{file}: not understood, left out ({error})")
            continue
        if edits is not None:
            return GpuEdits(edits=edits, notes=tuple(notes))
    return GpuEdits(edits=None, notes=tuple(notes))


def _files(root: Path) -> list[Path]:
    found = [
        file
        for directory in SPEC_DIRECTORIES
        for suffix in SUFFIXES
        for file in sorted((root / directory).glob(f"*{suffix}"))
    ]
    return found[:MOST_FILES]


def parse_spec(text: str) -> CdiSpec:
    """Parse a specification; SpecError: it is invalid, or not understood."""
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(str(error) or "it is nested too deeply") from error
    kind = found.get("kind") if isinstance(found, dict) else None
    if not isinstance(kind, str) or "/" not in kind:
        raise SpecError("it names no kind of device")
    devices = [
        (name, _edits(device.get("containerEdits")))
        for device in _dicts(found.get("devices"))
        if isinstance(name := device.get("name"), str) and name
    ]
    return CdiSpec(kind=kind, edits=_edits(found.get("containerEdits")), devices=tuple(devices))


def gpu_edits(spec: CdiSpec) -> Edits | None:
    """Merge the edits of all NVIDIA GPUs; None if the specification has none."""
    chosen = [one for name, one in spec.devices if name == "all"]
    chosen = chosen or [one for _, one in spec.devices]
    if spec.kind != KIND or not chosen:
        return None
    edits = [spec.edits, *chosen]
    return Edits(
        nodes=first_of_each(pair for one in edits for pair in one.nodes),
        mounts=first_of_each(pair for one in edits for pair in one.mounts),
        links=first_of_each(pair for one in edits for pair in one.links),
        env=tuple(dict.fromkeys(line for one in edits for line in one.env)),
        programs=tuple(dict.fromkeys(path for one in edits for path in one.programs)),
    )


def _edits(found: object) -> Edits:
    edits = found if isinstance(found, dict) else {}
    hooks = _dicts(edits.get("hooks"))
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
        links=tuple(pair for hook in hooks for pair in _links(_texts(hook.get("args")))),
        programs=tuple(path for hook in hooks if (path := _path(hook.get("path")))),
        env=tuple(line for line in _texts(edits.get("env")) if "=" in line),
    )


def _links(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The links that a hook makes: `create-symlinks --link TARGET::PATH`."""
    if "create-symlinks" not in words:
        return
    for before, word in zip(words, words[1:]):  # noqa: B905, RUF007  not before Python 3.10
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
    """The value if it is an absolute path, else an empty string."""
    fits = isinstance(found, str) and found.startswith("/") and "\0" not in found
    return str(found) if fits else ""


def first_of_each(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Keep the first pair for each path in the container, which is the second of a pair."""
    places: dict[str, str] = {}
    for host, path in pairs:
        places.setdefault(path, host)
    return tuple((host, path) for path, host in places.items())


def _yaml(text: str) -> Any:  # noqa: ANN401  like json.loads
    """Parse a document, with every scalar as text; ValueError: it is not valid YAML."""
    from ruamel.yaml import YAML, events
    from ruamel.yaml.error import YAMLError

    if len(text) > _MOST_YAML_BYTES:
        raise SpecError(f"its YAML is longer than {_MOST_YAML_BYTES >> 10} KiB")
    document: list[Any] = []
    # open containers: a list with None, or a mapping with the key that waits for its value
    stack: list[tuple[Any, str | None]] = [(document, None)]
    try:
        for event in YAML(typ="base", pure=True).parse(text):
            if isinstance(event, events.AliasEvent):
                raise SpecError(f"it has an alias, *{event.anchor}")
            if len(stack) > _DEEPEST:
                raise SpecError("it is nested too deeply")
            if isinstance(event, (events.SequenceEndEvent, events.MappingEndEvent)):
                stack.pop()
            elif isinstance(event, events.ScalarEvent):
                _put(stack, event.value)
            elif isinstance(event, events.SequenceStartEvent):
                stack.append((_put(stack, []), None))
            elif isinstance(event, events.MappingStartEvent):
                stack.append((_put(stack, {}), None))
    except YAMLError as error:
        raise SpecError(f"it is not valid YAML: {getattr(error, 'problem', '')}") from error
    if len(document) != 1:
        raise SpecError("it is not one document")
    return document[0]


def _put(stack: list[tuple[Any, str | None]], value: Any) -> Any:  # noqa: ANN401
    """Add a value to the innermost open container, and return it."""
    place, key = stack[-1]
    if isinstance(place, list):
        place.append(value)
    elif key is None:
        if not isinstance(value, str):
            raise SpecError("a key of it is not text")
        if value in place:
            raise SpecError(f"it says {value} twice")
        stack[-1] = (place, value)
    else:
        place[key] = value
        stack[-1] = (place, None)
    return value
