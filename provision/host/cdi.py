"""CDI device names from the specifications on this host."""

from __future__ import annotations

from collections.abc import Sequence

from images.system.cdi import MOST_FILES, SPEC_DIRECTORIES, SpecError, parse_spec
from provision.host.machine import ProbedMachine
from provision.host.source_facts import one_line

SPEC_NAME = r".*\.(?:json|ya?ml)"
SPEC_DIRS = tuple(f"/{directory}" for directory in SPEC_DIRECTORIES)


def parse_cdi(text: str) -> tuple[str, ...]:
    """Fully qualified names: ("nvidia.com/gpu=0", "nvidia.com/gpu=all"); none where the text is no
    specification.
    """
    try:
        return tuple(map(one_line, parse_spec(text).names))
    except SpecError:
        return ()


def read_cdi(machine: ProbedMachine, folders: Sequence[str] = SPEC_DIRS) -> tuple[str, ...] | None:
    """Every device name, each once, in the order of the directories. None: not known, because the
    reader of YAML is not installed (on a node of a fleet).
    """
    found: dict[str, None] = {}
    try:
        for folder in folders:
            for path in machine.paths(folder, SPEC_NAME)[:MOST_FILES]:
                found.update(dict.fromkeys(parse_cdi(machine.text(path) or "")))
    except ImportError:
        return None
    return tuple(found)
