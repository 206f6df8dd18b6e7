"""Faults of packages that were asked for: a real one in a folder on Python's path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable

from tests.mutations import rows
from tests.mutations.library_files import folder, write

EXPECT = {"packages": ["requested-one"]}


def installed() -> None:
    """A package of the name that the expectations have."""
    site = folder()
    info = site / "requested_one-1.0.dist-info"
    write(info / "METADATA", "Metadata-Version: 2.1\nName: requested-one\nVersion: 1.0\n")
    write(info / "RECORD", "requested_one/__init__.py,,\n")
    write(site / "requested_one" / "__init__.py", "")
    sys.path.insert(0, str(site))


def saying(text: str) -> Callable[[], None]:
    """The package's module is this program."""

    def seed() -> None:
        write(Path(sys.path[0]) / "requested_one" / "__init__.py", text)

    return seed


def removed() -> None:
    """The package is not in the image."""
    sys.path.pop(0)


_SYMBOL = "raise ImportError('requested_one/_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa')\n"
_WITHOUT = "print('Disabling PyTorch because PyTorch >= 2.6 is required but found 2.0.1')\n"
_ROWS = rows(
    "libraries.packages",
    ("a symbol is missing", saying(_SYMBOL), "cannot be imported"),
    ("it goes on without the framework", saying(_WITHOUT), "goes on without a part of it"),
    ("it crashes", saying("import os; os.abort()\n"), "SIGABRT"),
    ("it is not there", removed, "is not installed"),
    sound=installed,
    expect=EXPECT,
    on_cpu=True,
)
ROWS = {"pytorch": _ROWS, "tensorflow": _ROWS, "jax": _ROWS}
