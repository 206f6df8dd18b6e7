"""RECORD, the list of a wheel's files: reads it, checks it against the wheel, writes a new one.

https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_DIGEST_TEXT = {"sha256": 43, "sha384": 64, "sha512": 86}  # characters of a digest
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")
"""Files next to METADATA of which RECORD cannot have a digest: itself, and its signatures."""


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


def compare(rows: Mapping[str, Row], sizes: Mapping[str, int], info: str) -> None:
    """Check a RECORD against the files of its wheel; ValueError says what is wrong.

    `info` is the directory that it is in. Digests are compared when the files are read.
    """
    exempt = {f"{info}/{name}" for name in _UNLISTED}
    for path, size in sizes.items():
        row = rows.get(path)
        if row is None:
            if path not in exempt:
                raise ValueError(f"a RECORD that does not list {path}")
            continue
        if row.size and row.size != str(size):
            raise ValueError(f"a RECORD that gives {path} {row.size} bytes; it has {size}")
        if path not in exempt and not _is_digest(row.digest):
            raise ValueError(f"a RECORD without a sha256 of {path}")
    for path in rows:
        if path not in sizes and not path.endswith("/"):
            raise ValueError(f"a RECORD that lists {path}, which is not there")


def row_of(path: str, content: bytes) -> Row:
    """Make the row of a generated file."""
    return Row(
        path=path, digest=digest_text(hashlib.sha256(content).digest()), size=str(len(content))
    )


def hasher(text: str) -> Any:  # noqa: ANN401  hashlib's type has no name
    """A new hash with the algorithm of a row's digest; None if it has none."""
    algorithm = text.partition("=")[0]
    return hashlib.new(algorithm) if algorithm in _DIGEST_TEXT else None


def is_of(text: str, content: bytes) -> bool:
    """Whether a row's digest matches the content; without a digest, any content matches."""
    found = hasher(text)
    if found is None:
        return True
    found.update(content)
    return text.rstrip("=") == digest_text(found.digest(), found.name)


def digest_text(digest: bytes, algorithm: str = "sha256") -> str:
    """Write a digest as RECORD does."""
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode('ascii')}"


def write_rows(rows: Iterable[Row]) -> bytes:
    """Write rows in the given order."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(
        (row.path, row.digest, row.size) for row in rows
    )
    return text.getvalue().encode()


def _is_digest(text: str) -> bool:
    algorithm, _, value = text.partition("=")
    return len(value.rstrip("=")) == _DIGEST_TEXT.get(algorithm)
