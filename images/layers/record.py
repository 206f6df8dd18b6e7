"""RECORD, the list of a wheel's files: reads it, and writes a new one.

Sizes and digests in it are not compared with the files: the lock's hash covers the whole wheel, and
wheels are published whose files were changed after the list was written (PyNvVideoCodec 2.0.4). pip
and uv install these, with the rows as they are; so do we.
https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")
"""Files next to METADATA that RECORD need not list: itself, and its signatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file: its path, digest ("sha256=..." or empty) and size (or empty)."""

    path: str
    digest: str = ""
    size: str = ""


def read_rows(content: bytes) -> dict[str, Row]:
    """Parse a RECORD; ValueError says what is wrong with it, as the rest of a sentence."""
    from installer.records import InvalidRecordEntry, parse_record_file

    rows: dict[str, Row] = {}
    try:
        lines = io.StringIO(content.decode("utf-8"), newline="")
        for path, digest, size in parse_record_file(lines):
            if path in rows:
                raise ValueError(f"a RECORD that lists {path} twice")
            rows[path] = Row(path=path, digest=digest, size=size)
    except (UnicodeDecodeError, csv.Error, InvalidRecordEntry) as error:
        raise ValueError("a RECORD that cannot be read") from error
    return rows


def unlisted(rows: Mapping[str, Row], names: Collection[str], info: str) -> list[str]:
    """The files of a wheel that its RECORD lacks. `info` is the directory that it is in."""
    exempt = {f"{info}/{name}" for name in _UNLISTED}
    return [name for name in names if name not in rows and name not in exempt]


def row_of(path: str, content: bytes) -> Row:
    """Make the row of a generated file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return Row(path=path, digest=f"sha256={digest.decode('ascii')}", size=str(len(content)))


def write_rows(rows: Iterable[Row]) -> bytes:
    """Write rows in the given order."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(
        (row.path, row.digest, row.size) for row in rows
    )
    return text.getvalue().encode()
