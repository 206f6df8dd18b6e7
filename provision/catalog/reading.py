"""Data files -> rows. The first thing that is wrong is named by file, row, key.

Only the shape of a value is judged here, because that must be fast: every command starts with it.
How rows fit together is judged by `provision.catalog.check`, which the tests run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from provision.errors import CatalogError
from provision.model.plan import ComputeCapability

if TYPE_CHECKING:
    from provision.catalog.overlay import Overlay

Reader = Callable[[object], object]
Row = TypeVar("Row")


class WrongError(Exception):
    """A value or a row of the wrong shape; the caller knows where it stands."""


class Table(NamedTuple):
    """The keys of one table's rows. An optional key has its default in the row's class."""

    needed: Mapping[str, Reader]
    optional: Mapping[str, Reader]


class DataFiles:
    """The data files of one directory, each read when it is first asked for."""

    def __init__(self, directory: str, overlay: Overlay | None = None) -> None:
        self._directory = directory
        self._overlay = overlay
        self._read: dict[str, DataFile] = {}

    def __getitem__(self, name: str) -> DataFile:
        if name not in self._read:
            self._read[name] = DataFile(self._directory, name, self._overlay)
        return self._read[name]


class DataFile:
    """One data file, read row by row, with the rows of an overlay laid over its own."""

    def __init__(self, directory: str, name: str, overlay: Overlay | None = None) -> None:
        self.name = name
        self.raw = read_raw(directory, name)
        sources = self.raw.get("sources")
        if not isinstance(sources, dict):
            raise bad(name, "sources", "expected a table of source texts")
        self.sources: dict[str, object] = sources
        self.overlay = overlay

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
        if self.overlay is None or table not in self.overlay.tables:
            return tuple(self._rows(table, entries, make))
        try:
            return tuple(self._rows(table, self._with_overlay(table, entries), make))
        except CatalogError as error:
            from provision.catalog.overlay import unfit

            raise unfit(error.message) from error

    def _with_overlay(self, table: str, entries: list[object]) -> list[object]:
        """Our keys of sources and the overlay's may be the same word: its own get a prefix."""
        from provision.catalog.overlay import merged, with_source_keys

        shipped = [entry for entry in entries if isinstance(entry, dict)]
        if self.overlay is None or len(shipped) < len(entries):
            return entries
        self.sources |= {f"overlay {key}": text for key, text in self.overlay.sources.items()}
        overlaid = [with_source_keys(row, "overlay {}") for row in self.overlay.tables[table]]
        return list(merged(table, shipped, overlaid, self.text("date")))

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


def overlay_file(env: Mapping[str, str]) -> str:
    """Where the user's own copy lies; a relative XDG_DATA_HOME is to be ignored.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    base = env.get("XDG_DATA_HOME") or ""
    if not base.startswith(os.sep):
        base = os.path.join(env.get("HOME") or os.sep, ".local", "share")  # noqa: PTH118
    return os.path.join(base, "gpu-provision", "catalog.json")  # noqa: PTH118


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


def _pattern(value: object) -> re.Pattern[str]:
    """A regular expression that has to cover whole words."""
    try:
        return re.compile(rf"\b(?:{_text(value)})\b", re.ASCII)
    except re.error as error:
        raise WrongError(f"expected a regular expression: {error}") from None


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise WrongError("expected true or false")
    return value


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise WrongError("expected a whole number")
    return value


def _quantity(value: object) -> float:
    if (type(value) is int or type(value) is float) and 0 <= value < 1e12:
        return value
    raise WrongError("expected a number")


def _rates(value: object) -> dict[str, float | None]:
    """Peak rates by kind of number; each kind is named."""
    if type(value) is not dict or value.keys() != _RATES:
        raise WrongError(f"expected an object of {', '.join(sorted(_RATES))}")
    for rate in value.values():
        if rate is not None:
            _quantity(rate)
    return value


def _brands(value: object) -> dict[int, object]:
    """Brands of GPUs by driver branch; [] where they were not read."""
    if type(value) is not dict or not all(_digits(branch) for branch in value):
        raise WrongError("expected an object of brands by driver branch")
    return {int(branch): _BRANDS_OF_ONE(brands) for branch, brands in value.items()}


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
    return text.isascii() and text.isdigit() and len(text) < 10


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
_MAYBE_QUANTITY = _maybe(_quantity)
_RATES = frozenset({"fp32", "tf32", "fp16", "bf16", "fp8"})
_BRANDS_OF_ONE = _many(_text, "brands", empty=True)
_PYTHON_TAGS = _many(_text, "Python tags")
_CHIPS = _many(_text, "chips", empty=True)
_ARCH = _one_of("x86_64", "aarch64")
_ARCHS = _many(_ARCH, "x86_64, aarch64", empty=True)
_CONFIDENCE = _one_of("confirmed", "likely", "doubtful", "assumed")
_SOURCES = frozenset(
    {
        "source",
        "sm_source",
        "type_source",
        "dropped_source",
        "adds_source",
        "numpy_source",
        "driver_source",
        "latest_source",
        "modules_source",
        "toolkits_source",
        "extra_source",
        "ptx_only_source",
    }
)
_MAY_BE_ABSENT = frozenset({"conflicts", "exceptions"})

_TABLES: dict[str, Table] = {
    "families": Table(
        {"major": _number, "min_driver": _text, "min_driver_windows": _text, "source": _text}, {}
    ),
    "toolkits": Table(
        {
            "cuda": _text,
            "full": _text,
            "update": _number,
            "driver": _MAYBE_TEXT,
            "minor_version_compatibility": _flag,
            "sm_targets": _sms,
            "on_pypi": _flag,
            "source": _text,
            "sm_source": _text,
        },
        {"confidence": _CONFIDENCE, "gcc_max": _text, "released": _text},
    ),
    "dropped": Table({"in": _text, "sm": _sms, "generation": _text, "source": _text}, {}),
    "branches": Table(
        {
            "branch": _number,
            "max_cuda": _text,
            "first_version": _MAYBE_TEXT,
            "type": _maybe(_one_of("LTS", "production", "new feature", "developer")),
            "end_of_life": _MAYBE_TEXT,
            "dropped_below": _capability,
            "adds": _CHIPS,
            "source": _text,
            "dropped_source": _text,
        },
        {
            "type_source": _text,
            "adds_source": _text,
            "adds_confidence": _CONFIDENCE,
            "confidence": _CONFIDENCE,
            "note": _text,
            "open_modules": _one_of("optional", "required-from-blackwell", "only"),
            "modules_source": _text,
            "latest_seen": _text,
            "latest_date": _text,
            "latest_source": _text,
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
    "highest_majors": Table({"branch": _number, "cuda_major": _number, "source": _text}, {}),
    "kernel_modules": Table(
        {
            "from": _capability,
            "open_modules": _one_of("unsupported", "optional", "required"),
            "gpus": _many(_text, "names", empty=True),
            "source": _text,
        },
        {},
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
            "memory_bandwidth_gbs": _MAYBE_QUANTITY,
            "tflops": _rates,
            "nvlink": _maybe(_flag),
            "source": _text,
        },
        {
            "confidence": _CONFIDENCE,
            "note": _text,
            "figures_confidence": _CONFIDENCE,
            "aliases": _many(_text, "names"),
            "chip": _text,
            "driver_from": _text,
            "driver_source": _text,
            "host_arch": _ARCH,
        },
    ),
    "binary_notes": Table(
        {"compute_capability": _capability, "proven": _flag, "source": _text}, {}
    ),
    "other_vendors": Table({"vendor": _text, "pattern": _pattern, "source": _text}, {}),
    "releases": Table(
        {
            "version": _text,
            "requires_python": _MAYBE_TEXT,
            "torchvision": _MAYBE_TEXT,
            "torchaudio": _MAYBE_TEXT,
            "upload_time": _MAYBE_TEXT,
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
            "python_tags": _PYTHON_TAGS,
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
    "pythons": Table({"python": _text, "released": _text, "source": _text}, {}),
    "python_images": Table(
        {"python": _text, "suite": _text, "source": _text},
        {"confidence": _CONFIDENCE, "note": _text},
    ),
    "compiler_wheels": Table({"cuda": _text, "requirement": _text, "source": _text}, {}),
    "tensorflow_releases": Table(
        {
            "version": _text,
            "cuda": _MAYBE_TEXT,
            "cudnn": _MAYBE_TEXT,
            "libraries": _one_of("system", "extra"),
            "requires_python": _MAYBE_TEXT,
            "upload_time": _MAYBE_TEXT,
            "yanked": _flag,
            "prerelease": _flag,
            "sm": _maybe(_sms, ()),
            "ptx": _maybe(_ptx),
            "source": _text,
        },
        {
            "sm_source": _text,
            "sm_confidence": _CONFIDENCE,
            "ptx_only": _text,
            "ptx_only_cuda": _text,
            "ptx_only_source": _text,
            "note": _text,
        },
    ),
    "tensorflow_wheels": Table(
        {
            "version": _text,
            "arch": _ARCH,
            "gpu": _flag,
            "python_tags": _PYTHON_TAGS,
            "glibc": _text,
            "size_max_bytes": _number,
            "source": _text,
        },
        {
            "pins": _many(_text, "requirements"),
            "stands_for": _many(_text, "packages"),
            "extra_python_tags": _many(_text, "Python tags", empty=True),
            "extra_source": _text,
            "confidence": _CONFIDENCE,
        },
    ),
    "tensorflow_gpu": Table(
        {
            "version": _text,
            "content": _one_of("wheel", "stub"),
            "python_tags": _many(_text, "Python tags", empty=True),
            "source": _text,
        },
        {},
    ),
    "jax_releases": Table(
        {
            "version": _text,
            "python_tags": _PYTHON_TAGS,
            "archs": _ARCHS,
            "glibc": _text,
            "source": _text,
        },
        {"upload_time": _MAYBE_TEXT, "note": _text},
    ),
    "jax_plugins": Table(
        {
            "version": _text,
            "cuda_major": _number,
            "package": _text,
            "extra": _text,
            "cuda_runtime": _MAYBE_TEXT,
            "cudnn": _MAYBE_TEXT,
            "nccl": _MAYBE_TEXT,
            "min_driver": _text,
            "sm_min": _capability,
            "source": _text,
            "driver_source": _text,
        },
        {
            "plugin_extra": _text,
            "toolkits": _text,
            "toolkits_source": _text,
            "broken": _text,
        },
    ),
    "cudnn": Table(
        {
            "version": _text,
            "cuda_major": _number,
            "capabilities": _CAPABILITIES,
            "min_driver": _text,
            "archs": _ARCHS,
            "upload_date": _MAYBE_TEXT,
            "yanked": _flag,
            "source": _text,
            "sm_source": _text,
        },
        {"sm_confidence": _CONFIDENCE},
    ),
    "nccl": Table(
        {
            "version": _text,
            "cuda_major": _number,
            "sm_min": _capability,
            "archs": _ARCHS,
            "upload_date": _MAYBE_TEXT,
            "source": _text,
        },
        {"sm_confidence": _CONFIDENCE},
    ),
    "images": Table(
        {
            "tag": _text,
            "archs": _maybe(_ARCHS),
            "status": _one_of("supported", "end-of-life", "seen", "inferred"),
            "source": _text,
        },
        {"cudnn": _text, "confidence": _CONFIDENCE},
    ),
    "start_rules": Table(
        {
            "cuda": _text,
            "os": _many(_text, "systems"),
            "min_cuda": _text,
            "brands": _brands,
            "eol": _maybe(_flag),
            "source": _text,
        },
        {"confidence": _CONFIDENCE, "note": _text},
    ),
    "conflicts": Table({"what": _text, "a": _text, "b": _text, "use": _text, "source": _text}, {}),
    "exceptions": Table({"rule": _text, "row": _text, "reason": _text, "source": _text}, {}),
}
