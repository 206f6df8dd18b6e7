"""Finds and reads the host files of a fleet: files, and folders of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from images.text.printable import printable
from provision.errors import HostFileError
from provision.host.pasted import read_host
from provision.model.frozen import replace
from provision.model.plan import HostFacts

ENDING = ".json"
_SHOWN = 100


class FleetHost(NamedTuple):
    """One node: its facts, labelled with its name, and the file that they are from."""

    facts: HostFacts
    path: str


def read_fleet_hosts(places: Sequence[str]) -> tuple[FleetHost, ...]:
    """The nodes of these files and folders, each file once. A node has the name of its file; where
    two files have one name, their paths. HostFileError: a file is not a host file, or a folder has
    none.
    """
    paths: dict[str, str] = {}
    for place in places:
        for path in _files(place) if os.path.isdir(place) else [_file(place)]:  # noqa: PTH112
            paths.setdefault(os.path.realpath(path), path)
    names = [_name(path) for path in paths.values()]
    several = Counter(names)
    return tuple(
        FleetHost(replace(read_host(path), label=name if several[name] == 1 else path), path)
        for name, path in zip(names, paths.values(), strict=True)
    )


def _file(path: str) -> str:
    """A file called "-", not standard input: the commands that build an image name the file."""
    return "./-" if path == "-" else path


def _files(folder: str) -> list[str]:
    shown = printable(folder, limit=_SHOWN)
    try:
        names = sorted(os.listdir(folder), key=_by_number)  # noqa: PTH208
    except OSError as error:
        raise HostFileError(
            f"{shown}: cannot be read: {error.strerror}.", fix="Make it readable by this user."
        ) from error
    found = [name for name in names if name.endswith(ENDING) and not name.startswith(".")]
    if not found:
        raise HostFileError(
            f"{shown}: has no host file (NAME{ENDING}).",
            fix=f"Read the nodes: provision fleet detect --on ssh:FILE --output {shown}",
        )
    return [os.path.join(folder, name) for name in found]  # noqa: PTH118


def _by_number(name: str) -> list[tuple[str, int]]:
    """node9 before node10."""
    return [
        (word, int(digits or 0)) for word, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name)
    ]


def _name(path: str) -> str:
    name = os.path.basename(path)  # noqa: PTH119
    return printable(name.removesuffix(ENDING) or name, limit=64)
