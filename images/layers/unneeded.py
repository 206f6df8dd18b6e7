"""What a program that only runs does not need of a wheel: rules, and what they spare.

They are told by names alone. Where a file might be read at run time it stays:

- headers outside an `include` directory: PyTorch's compiler copies some into what it generates
- type stubs: packages that load their parts late read their own (`lazy_loader.attach_stub`)
- modules in a `tests` directory that are no tests: some packages import them (`astropy.tests`)
- all of a package in `_KEPT_WHOLE`

Who leaves headers out can build no C++ extension, and no code for the CPU by `torch.compile`; who
leaves static archives out can link nothing with nvcc.
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
    """What is left out: files, their bytes in the wheel, and their bytes on a disk."""

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
    """Whether a file of a wheel can be left out; `package` is its canonical name."""
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
    """Say what leaving out spares in a wheel of these members."""
    out = [member for member in members if is_unneeded(package, member.name)]
    return Spared(
        files=len(out),
        compressed=sum(member.compressed for member in out),
        unpacked=sum(member.size for member in out),
    )
