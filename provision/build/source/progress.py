"""What a build from source prints: how far it is, and why it failed. Pure."""

from __future__ import annotations

import re
from posixpath import basename

MOST_ERRORS = 8
_NINJA = re.compile(r"^\s*\[(\d+)/(\d+)\] (.*)")
_SOURCE = re.compile(r"(?:^|\s)(?:-c|--compile)\s+(\S+\.(?:cu|cpp|cc|cxx|c))(?=\s|$)")
_EXTENSION = re.compile(r"^\s*building '([\w.]+)' extension")
_JOBS = re.compile(r"^gpu-provision: (\d+) jobs$")
# gcc: "x.cpp:3:10: fatal error: y.h: ..."; nvcc: "x.cu(12): error: ...", "nvcc fatal : ...";
# the linker: "ld: cannot find -lx"
_OF_COMPILER = re.compile(
    r"[:)]\s*(?:fatal |catastrophic )?error\s*(?:#[\w-]+)?:|^nvcc (?:fatal|error)"
    r"|\bld: |undefined reference|\bKilled\b"
)
_OF_PYTHON = re.compile(r"^\s*(?:[\w.]*(?:Error|Exception)|error|ERROR): ")
_BY_PIP = re.compile(
    r"error: subprocess-exited|error: metadata-generation|ERROR: Failed (?:building|to build)"
)


def status_of(line: str) -> str | None:
    """How far the build is, if the line says it: "[12/48] x.cu", "x.cu", "building a.b"."""
    if found := _NINJA.match(line):
        source = _SOURCE.search(found[3])
        what = basename(source[1]) if source else found[3].split(" ")[0]
        return f"[{found[1]}/{found[2]}] {what[:60]}"
    if found := _JOBS.match(line):
        return f"{found[1]} compilers at a time"
    if found := _EXTENSION.match(line):
        return f"building {found[1][:60]}"
    if found := _SOURCE.search(line):
        return basename(found[1])[:60]
    return None


class FirstErrors:
    """Collects the first lines that say why a build failed: the compiler's, else Python's."""

    def __init__(self) -> None:
        self._compiler: list[str] = []
        self._python: list[str] = []

    def add(self, line: str) -> None:
        """One line of the output, in order."""
        if _OF_COMPILER.search(line):
            self._compiler += [line.strip()] if len(self._compiler) < MOST_ERRORS else []
        elif _OF_PYTHON.match(line) and not _BY_PIP.search(line):
            self._python += [line.strip()] if len(self._python) < MOST_ERRORS else []

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, the first one first."""
        return tuple(self._compiler or self._python)
