"""Reads registry mirrors from the settings of the engines on this host.

It reads docker's `registry-mirrors` (for Docker Hub, the only registry that docker uses them for)
and the mirrors in podman's and skopeo's registries.conf. It skips unencrypted mirrors that are not
on this machine, as everywhere here, and does not read containerd's hosts.toml.
https://docs.docker.com/docker-hub/image-library/mirror/
https://github.com/containers/image/blob/main/docs/containers-registries.conf.5.md
"""

from __future__ import annotations

import json
import os
import sys
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from images.errors import Failure
from images.net.address import is_loopback
from images.oci.reference import Reference, parse_reference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A host that has a registry's repositories, below `path` if it is set."""

    registry: str
    path: str = ""

    def of(self, reference: Reference) -> Reference:
        """The reference of the same image on this mirror."""
        repository = "/".join(filter(None, (self.path, reference.repository)))
        return replace(reference, registry=self.registry, repository=repository)


Mirrors = Mapping[str, tuple[Mirror, ...]]
"""Mirrors by registry: {"docker.io": (Mirror(...), ...)}."""


def read_mirrors(root: Path = Path("/"), home: Path | None = None) -> Mirrors:
    """Read this host's settings; unreadable or invalid files count as empty."""
    home = home or Path(os.environ.get("HOME") or "/nonexistent")
    found: dict[str, dict[Mirror, None]] = {}
    for registry, mirror in (*_of_docker(root, home), *_of_containers(root, home)):
        found.setdefault(registry, {})[mirror] = None
    return {registry: tuple(mirrors) for registry, mirrors in found.items()}


def parse_mirror(text: str) -> Mirror | None:
    """Parse a mirror: "host:5000/path", with or without https:// before it; None: unusable."""
    scheme, mark, rest = text.partition("://")
    place = (rest if mark else text).rstrip("/")
    try:
        # parsed as part of an image reference, which validates the host, too
        reference = parse_reference(f"{place}/x/x")
    except Failure:
        return None
    if reference.registry == "docker.io" or (mark and scheme not in {"http", "https"}):
        return None
    host = urllib.parse.urlsplit(f"//{reference.host}").hostname or ""
    if scheme == "http" and mark and not is_loopback(host):
        return None
    return Mirror(registry=reference.registry, path=reference.repository.removesuffix("x/x")[:-1])


def _of_docker(root: Path, home: Path) -> Iterator[tuple[str, Mirror]]:
    for path in (root / "etc/docker/daemon.json", home / ".config/docker/daemon.json"):
        listed = _read(path).get("registry-mirrors")
        for text in listed if isinstance(listed, list) else ():
            mirror = parse_mirror(text) if isinstance(text, str) else None
            if mirror is not None:
                yield "docker.io", mirror


def _of_containers(root: Path, home: Path) -> Iterator[tuple[str, Mirror]]:
    own = home / ".config/containers/registries.conf"
    system = root / "etc/containers/registries.conf"
    named = os.environ.get("CONTAINERS_REGISTRIES_CONF")
    main = Path(named) if named else own if own.is_file() else system
    for path in (main, *_parts(Path(f"{system}.d")), *_parts(Path(f"{own}.d"))):
        listed = _read(path).get("registry")
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, dict):
                yield from _of_entry(entry)


def _of_entry(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mirror]]:
    """Read one [[registry]]; skips entries for only a part of a registry."""
    place = entry.get("prefix") or entry.get("location")
    mirrors = entry.get("mirror")
    if not isinstance(place, str) or "/" in place or "*" in place or not isinstance(mirrors, list):
        return
    for one in mirrors:
        location = one.get("location") if isinstance(one, dict) else None
        mirror = parse_mirror(location) if isinstance(location, str) else None
        if mirror is not None:
            yield place, mirror


def _parts(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.glob("*.conf"))
    except OSError:
        return ()


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
