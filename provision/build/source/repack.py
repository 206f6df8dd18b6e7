"""The same wheel for the same content: times, order, modes and compression are always the same."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from images.text.printable import printable
from provision.build.source.rules import BuiltWheelUnfitError

_MOST_BYTES = 2 << 30
_MOST_FILES = 100_000
_TIME = (2020, 1, 1, 0, 0, 0)
_FILE, _PROGRAM = 0o100644 << 16, 0o100755 << 16


class OtherPackageError(BuiltWheelUnfitError):
    """A build made a wheel of another package. `found`: its name."""

    def __init__(self, wheel: str, wanted: str, found: str) -> None:
        super().__init__(
            f"The build made {printable(wheel, limit=120)}: it is not one of {wanted}.",
            fix="Request another version of the package.",
        )
        self.found = found


def repacked(wheel: Path, to: Path, name: str, version: str | None) -> tuple[str, Path]:
    """Write a wheel that a build made to the directory `to`, uncompressed: zlib's bytes differ
    between its releases. Returns its version. BuiltWheelUnfitError: it is not the wheel of this
    package (and version), is for one machine only, or cannot be read.
    """
    try:
        found, built, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        raise _unfit(wheel, "its name is malformed") from None
    if found != canonicalize_name(name):
        raise OtherPackageError(wheel.name, name, found)
    if version is not None and str(built) != version:
        raise _unfit(wheel, f"it is not one of {name} {version or ''}".rstrip())
    if any(tag.platform != "any" or tag.abi != "none" for tag in tags):
        raise _unfit(wheel, "it has compiled parts")
    path = to / wheel.name
    try:
        with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(path, "w") as target:
            _copy(source, target)
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise _unfit(wheel, printable(str(error), limit=100)) from error
    return str(built), path


def _copy(source: zipfile.ZipFile, target: zipfile.ZipFile) -> None:
    entries = {entry.filename: entry for entry in source.infolist() if not entry.is_dir()}
    total = sum(entry.file_size for entry in entries.values())
    if total > _MOST_BYTES or len(entries) > _MOST_FILES:
        raise ValueError("it is too large")
    # RECORD last, as the specification recommends
    for name in sorted(entries, key=lambda one: (one.endswith(".dist-info/RECORD"), one)):
        entry = zipfile.ZipInfo(name, _TIME)
        runs = (entries[name].external_attr >> 16) & 0o111
        entry.external_attr = _PROGRAM if runs else _FILE
        entry.create_system = 3
        data = source.read(entries[name])
        target.writestr(entry, _sorted(data) if name.endswith(".dist-info/RECORD") else data)


def _sorted(record: bytes) -> bytes:
    rows = sorted(csv.reader(io.StringIO(record.decode("utf-8"))))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def _unfit(wheel: Path, why: str) -> BuiltWheelUnfitError:
    return BuiltWheelUnfitError(
        f"The build made {printable(wheel.name, limit=120)}: {why}.",
        fix="Request another version of the package.",
    )
