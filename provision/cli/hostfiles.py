"""Finds and reads the host files of a fleet: files, and folders of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from images.text.printable import printable
from provision.catalog.catalog import Catalog
from provision.errors import HostFileError
from provision.host.pasted import parse_smi, read_host
from provision.model.plan import HostFacts

ENDING = ".json"
_ENDINGS = (ENDING, ".txt", ".log")  # what people call a file of what nvidia-smi printed
_SHOWN = 100
_OF_SMI = re.compile("nvidia-smi|NVML|No devices were found", re.IGNORECASE)
_MOST_READ = 1 << 20


class FleetHost(NamedTuple):
    """One node: its facts, labelled with its name, and the file that they are from."""

    facts: HostFacts
    path: str


def read_fleet_hosts(places: Sequence[str], catalog: Catalog) -> tuple[FleetHost, ...]:
    """The nodes of these files and folders, each file once: JSON, or what nvidia-smi printed (of a
    folder *.json, and *.txt and *.log with its output). A node has the name of its file; where two
    files have one name, their paths. HostFileError: a file is not a host file, or a folder has
    none.
    """
    paths: dict[str, str] = {}
    for place in places:
        for path in _files(place) if os.path.isdir(place) else [_file(place)]:  # noqa: PTH112
            paths.setdefault(os.path.realpath(path), path)
    names = [_name(path) for path in paths.values()]
    several = Counter(names)
    return tuple(
        FleetHost(
            catalog.with_capabilities(read_host(path))._replace(
                label=name if several[name] == 1 else path,
            ),
            path,
        )
        for name, path in zip(names, paths.values(), strict=True)
    )


def _file(path: str) -> str:
    """A file called "-", not standard input: the commands that build an image name the file."""
    return "./-" if path == "-" else path


def _files(folder: str) -> list[str]:
    shown = printable(folder, limit=_SHOWN)
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        raise HostFileError(
            f"{shown}: cannot be read: {error.strerror}.", fix="Make it readable by this user."
        ) from error
    files: dict[str, str] = {}
    for ending in _ENDINGS:  # a node's JSON before what nvidia-smi printed of it
        for name in names:
            if not name.endswith(ending) or name.startswith("."):
                continue
            if ending == ENDING or _is_of_smi(os.path.join(folder, name)):  # noqa: PTH118
                files.setdefault(name.removesuffix(ending), name)
    found = sorted(files.values(), key=_by_number)
    if not found:
        raise HostFileError(
            f"{shown}: has no host file (NAME.json, or NAME.txt or NAME.log of nvidia-smi).",
            fix=f"Read the nodes: provision fleet detect --on ssh:FILE --output {shown}",
        )
    return [os.path.join(folder, name) for name in found]  # noqa: PTH118


def _is_of_smi(path: str) -> bool:
    """Whether a text is output of nvidia-smi, also of one that failed: then its reader refuses it,
    as a node that was not read must not be left out.
    """
    if not os.path.isfile(path):  # noqa: PTH113
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read(_MOST_READ)
    except OSError:  # its reader says so
        return True
    return _OF_SMI.search(text) is not None or parse_smi(text) is not None


def _by_number(name: str) -> list[tuple[str, int]]:
    """node9 before node10."""
    return [
        (word, int(digits or 0)) for word, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name)
    ]


def _name(path: str) -> str:
    name = os.path.basename(path)  # noqa: PTH119
    ending = next((one for one in _ENDINGS if name.endswith(one)), "")
    return printable(name.removesuffix(ending) or name, limit=64)
