"""Rules for files of a wheel that are not needed to run it, and how much omitting them saves.

The rules look only at names. A file that might be read at run time stays:

- headers outside an `include` directory: PyTorch's compiler copies some into its generated code
- type stubs: packages with lazy loading read their own (`lazy_loader.attach_stub`)
- modules in a `tests` directory that are not tests: some packages import them (`astropy.tests`)
- all of a package in `_KEPT_WHOLE`

Without headers, C++ extensions and `torch.compile` for the CPU do not build; without static
archives, nvcc cannot link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_KEPT_WHOLE = re.compile(r"(pytorch-)?triton(-.+)?|cupy(-.+)?|numba(-.+)?|ninja|cmake|ziglang")
"""Packages that compile at run time, with the headers or the libraries that they bring."""

_HEADERS = (".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inl", ".ipp", ".tcc")
_ARCHIVES = (".a", ".lib")
_PYTHON = (".py", ".pyi", ".pyx", ".pxd", ".so")
_TEST_MODULE = re.compile(r"(test_.*|.*_tests?|conftest)\.pyi?")


class _File(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def compressed(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """What is omitted: the number of files, their bytes in the wheel, and their bytes on disk."""

    files: int = 0
    compressed: int = 0
    unpacked: int = 0

    def __add__(self, other: Spared) -> Spared:
        return Spared(
            files=self.files + other.files,
            compressed=self.compressed + other.compressed,
            unpacked=self.unpacked + other.unpacked,
        )


def is_unneeded(package: str, name: str) -> bool:
    """Whether a file of a wheel can be omitted; `package` is its canonical name."""
    *directories, file = name.split("/")
    if not directories or directories[0].endswith((".dist-info", ".data")):
        return False
    if _KEPT_WHOLE.fullmatch(package):
        return False
    if file.endswith(_ARCHIVES):
        return True
    if file.endswith(_HEADERS):
        return "include" in directories
    if "tests" not in directories:
        return False
    return _TEST_MODULE.fullmatch(file) is not None or not file.endswith(_PYTHON)


def spared(package: str, members: Iterable[_File]) -> Spared:
    """Count what is omitted from a wheel with these members."""
    out = [member for member in members if is_unneeded(package, member.name)]
    return Spared(
        files=len(out),
        compressed=sum(member.compressed for member in out),
        unpacked=sum(member.size for member in out),
    )
