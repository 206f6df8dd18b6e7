"""Data files -> rows. The first thing that is wrong is named by file, row, key.

Only the shape of a value is judged here, because that must be fast: every command starts with it.
How rows fit together is judged by `provision.catalog.check`, which the tests run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple, TypeVar

from provision.errors import CatalogError
from provision.model import ComputeCapability

Reader = Callable[[object], object]
Row = TypeVar("Row")


class WrongError(Exception):
    """A value or a row of the wrong shape; the caller knows where it stands."""


class Table(NamedTuple):
    """The keys of one table's rows. An optional key has its default in the row's class."""

    needed: Mapping[str, Reader]
    optional: Mapping[str, Reader]


class DataFile:
    """One data file, read row by row."""

    def __init__(self, directory: str, name: str) -> None:
        self.name = name
        self.raw = read_raw(directory, name)
        sources = self.raw.get("sources")
        if not isinstance(sources, dict):
            raise bad(name, "sources", "expected a table of source texts")
        self.sources: dict[str, object] = sources

    def text(self, key: str) -> str:
        """A text at the head of the file."""
        try:
            return _text(self.raw.get(key))
        except WrongError as wrong:
            raise bad(self.name, key, str(wrong)) from None

    def rows(self, table: str, make: Callable[..., Row]) -> tuple[Row, ...]:
        """The rows of one table, each made by `make` from its values."""
        entries = self.raw.get(table, [] if table in _MAY_BE_ABSENT else None)
        if not isinstance(entries, list):
            raise bad(self.name, table, "expected a list of rows")
        return tuple(self._rows(table, entries, make))

    def _rows(self, table: str, entries: list[object], make: Callable[..., Row]) -> Iterator[Row]:
        spec = _TABLES[table]
        readers = {**spec.needed, **spec.optional}
        for position, entry in enumerate(entries):
            key = ""
            try:
                values: dict[str, object] = {}
                for key, value in _keys_held(entry, spec, readers).items():
                    values[key] = self._resolve(value) if key in _SOURCES else readers[key](value)
                key = ""
                yield make(**values)
            except WrongError as wrong:
                where = f"{table}[{position}]" + (f".{key}" if key else "")
                raise bad(self.name, where, str(wrong)) from None

    def _resolve(self, value: object) -> str:
        """One key of the file's sources, or several -> the texts they stand for."""
        keys = value if type(value) is list else [value]
        texts: list[str] = []
        for key in keys:
            text = self.sources.get(key) if type(key) is str else None
            if type(text) is not str or not text:
                raise WrongError(f"expected keys of the file's sources, found {value!r}")
            texts.append(text)
        if not texts:
            raise WrongError("expected at least one key of the file's sources")
        return "; ".join(texts)


def read_raw(directory: str, name: str) -> dict[str, object]:
    """A data file as JSON gives it."""
    path = os.path.join(directory, name)  # noqa: PTH118  pathlib costs more than all tables
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            raw = json.load(file)
    except (OSError, ValueError) as error:
        raise bad(name, "", f"cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise bad(name, "", "expected an object")
    return raw


def bad(name: str, where: str, what: str) -> CatalogError:
    """The error of one place in one file."""
    return CatalogError(
        f"{name}{where and ' '}{where}: {what}",
        fix="The tables came with gpu-provision and are broken: reinstall it, or report this.",
    )


def _keys_held(entry: object, spec: Table, readers: Mapping[str, Reader]) -> dict[str, object]:
    if not isinstance(entry, dict):
        raise WrongError("expected an object")
    if missing := spec.needed.keys() - entry.keys():
        raise WrongError(f"missing {', '.join(sorted(missing))}")
    if unknown := entry.keys() - readers.keys():
        raise WrongError(f"unknown key {', '.join(sorted(unknown))}")
    return entry


def _text(value: object) -> str:
    if type(value) is not str or not value:
        raise WrongError("expected text")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise WrongError("expected true or false")
    return value


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise WrongError("expected a whole number")
    return value


def _capability(value: object) -> ComputeCapability:
    """ "8.6" -> (8, 6)."""
    major, _, minor = value.partition(".") if type(value) is str else ("", "", "")
    if not (_digits(major) and _digits(minor)):
        raise WrongError('expected a compute capability such as "8.6"')
    return int(major), int(minor)


def _sm(value: object, prefix: str = "sm_") -> ComputeCapability:
    """ "sm_86" -> (8, 6), "sm_120" -> (12, 0): the last figure is the minor."""
    found = _architecture(value, prefix) if type(value) is str else None
    if found is None:
        raise WrongError(f"expected {prefix}NN")
    return found


@cache
def _architecture(text: str, prefix: str) -> ComputeCapability | None:
    number = text[len(prefix) :] if text.startswith(prefix) else ""
    return (int(number[:-1]), int(number[-1])) if len(number) > 1 and _digits(number) else None


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _sms(value: object) -> tuple[ComputeCapability, ...]:
    if type(value) is not list or not value:
        raise WrongError("expected list of sm_NN")
    try:
        return tuple([_sm(item) for item in value])
    except WrongError:
        raise WrongError("expected list of sm_NN") from None


def _ptx(value: object) -> ComputeCapability:
    return _sm(value, "compute_")


def _many(item: Reader, what: str, *, empty: bool = False) -> Reader:
    def read(value: object) -> object:
        if type(value) is not list or not (value or empty):
            raise WrongError(f"expected list of {what}")
        return tuple([item(entry) for entry in value])

    return read


def _maybe(item: Reader, absent: object = None) -> Reader:
    def read(value: object) -> object:
        return absent if value is None else item(value)

    return read


def _one_of(*words: str) -> Reader:
    allowed = frozenset(words)

    def read(value: object) -> object:
        if type(value) is not str or value not in allowed:
            raise WrongError(f"expected one of {', '.join(words)}")
        return value

    return read


_MAYBE_TEXT = _maybe(_text)
_MAYBE_NUMBER = _maybe(_number)
_NUMBERS = _many(_number, "whole numbers", empty=True)
_CAPABILITIES = _many(_capability, "compute capabilities", empty=True)
_ARCH = _one_of("x86_64", "aarch64")
_CONFIDENCE = _one_of("confirmed", "likely", "doubtful", "assumed")
_SOURCES = frozenset({"source", "sm_source", "type_source", "dropped_source", "numpy_source"})
_MAY_BE_ABSENT = frozenset({"conflicts", "exceptions"})

_TABLES: dict[str, Table] = {
    "families": Table({"major": _number, "min_driver": _text, "source": _text}, {}),
    "toolkits": Table(
        {
            "cuda": _text,
            "full": _text,
            "update": _number,
            "driver": _MAYBE_TEXT,
            "minor_version_compatibility": _flag,
            "sm_targets": _sms,
            "source": _text,
            "sm_source": _text,
        },
        {"confidence": _CONFIDENCE},
    ),
    "branches": Table(
        {
            "branch": _number,
            "max_cuda": _text,
            "first_version": _MAYBE_TEXT,
            "type": _maybe(_one_of("LTS", "production", "new feature", "developer")),
            "end_of_life": _MAYBE_TEXT,
            "dropped_below": _capability,
            "adds": _CAPABILITIES,
            "source": _text,
            "dropped_source": _text,
        },
        {
            "type_source": _text,
            "adds_confidence": _CONFIDENCE,
            "confidence": _CONFIDENCE,
            "note": _text,
        },
    ),
    "forward_compat": Table(
        {
            "package": _text,
            "provides_cuda": _text,
            "built_from_branch": _number,
            "official_base_branches": _maybe(_NUMBERS),
            "source": _text,
        },
        {"accepted_base_branches": _NUMBERS, "confidence": _CONFIDENCE, "note": _text},
    ),
    "gpus": Table(
        {
            "name": _text,
            "compute_capability": _capability,
            "architecture": _text,
            "kind": _one_of(
                "data-centre", "workstation", "geforce", "titan", "jetson", "dgx-spark"
            ),
            "data_centre": _flag,
            "forward_compat_eligible": _maybe(_flag),
            "memory_gb": _MAYBE_NUMBER,
            "source": _text,
        },
        {"confidence": _CONFIDENCE, "note": _text},
    ),
    "releases": Table(
        {
            "version": _text,
            "requires_python": _text,
            "torchvision": _MAYBE_TEXT,
            "torchaudio": _MAYBE_TEXT,
            "upload_time": _text,
            "yanked": _flag,
            "numpy": _MAYBE_TEXT,
            "source": _text,
        },
        {"numpy_source": _text, "pairing_note": _text},
    ),
    "builds": Table(
        {
            "version": _text,
            "tag": _text,
            "cuda": _MAYBE_TEXT,
            "arch": _ARCH,
            "python_tags": _many(_text, "Python tags"),
            "sm": _maybe(_sms, ()),
            "ptx": _maybe(_ptx),
            "cudnn": _MAYBE_TEXT,
            "nccl": _MAYBE_TEXT,
            "glibc": _MAYBE_TEXT,
            "existence": _one_of("confirmed", "likely", "doubtful"),
            "at": _many(_one_of("pytorch", "pypi"), "pytorch, pypi"),
            "source": _text,
        },
        {
            "sm_source": _text,
            "sm_confidence": _CONFIDENCE,
            "python_confidence": _CONFIDENCE,
            "glibc_confidence": _CONFIDENCE,
            "pins": _many(_text, "requirements"),
            "size_min_bytes": _number,
            "size_max_bytes": _number,
            "note": _text,
        },
    ),
    "debian_suites": Table(
        {"suite": _text, "release": _text, "python": _text, "glibc": _text, "source": _text}, {}
    ),
    "ubuntu_releases": Table(
        {"release": _text, "python": _text, "glibc": _text, "source": _text}, {}
    ),
    "python_images": Table(
        {"python": _text, "suite": _text, "source": _text},
        {"confidence": _CONFIDENCE, "note": _text},
    ),
    "devel_images": Table(
        {
            "cuda": _text,
            "full": _text,
            "ubuntu": _text,
            "tag": _text,
            "cudnn": _flag,
            "cudnn_version": _MAYBE_TEXT,
            "archs": _maybe(_many(_ARCH, "x86_64, aarch64")),
            "status": _one_of("supported", "end-of-life", "seen", "inferred"),
            "source": _text,
        },
        {"confidence": _CONFIDENCE},
    ),
    "compiler_wheels": Table({"cuda": _text, "requirement": _text, "source": _text}, {}),
    "conflicts": Table({"what": _text, "a": _text, "b": _text, "use": _text, "source": _text}, {}),
    "exceptions": Table({"rule": _text, "row": _text, "reason": _text, "source": _text}, {}),
}
