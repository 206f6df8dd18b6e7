"""What all readers of the default index have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from packaging.version import Version

from provision.catalog.refresh.index import Index
from provision.catalog.refresh.known import CurrentRows, key_of
from provision.catalog.refresh.model import Absence, Row, SourceError, SourceReading
from provision.catalog.refresh.wheels import LinuxWheel


def sizes_of(
    group: Sequence[LinuxWheel], index: Index, troubles: list[SourceError], *, ask: bool
) -> tuple[int | None, int | None]:
    """The smallest and the largest of some wheels, in bytes; queried if the page does not say.

    (None, None) if one of them stays unknown.
    """
    sizes = {wheel.file.url: wheel.file.size for wheel in group}
    silent = {url: url for url, size in sizes.items() if size is None}
    if silent and ask:
        sizes |= index.each(silent, index.fetcher.length, troubles)
    known = [size for size in sizes.values() if size is not None]
    return (min(known), max(known)) if known and len(known) == len(sizes) else (None, None)


def first_upload(wheels: Iterable[LinuxWheel]) -> str | None:
    """When the first of them was uploaded to the index; None: it does not say."""
    return min((w.file.uploaded for w in wheels if w.file.uploaded is not None), default=None)


def is_mirror(
    reading: SourceReading, known: Iterable[Hashable], listed: Iterable[Hashable], name: str
) -> bool:
    """Whether an index has only the lesser part of what is known: absence then means nothing."""
    every = set(known)
    here = len(every.intersection(listed))
    if 2 * here >= len(every):
        return False
    reading.notes.append(
        f"{name} has {here} of the {len(every)} rows of {reading.source} that the catalog "
        "knows: what it lacks is not taken as gone."
    )
    return True


def carried_over(
    known: CurrentRows, table: str, version: Version, cuda_major: int, columns: Sequence[str]
) -> dict[str, object] | None:
    """Columns that cannot be read for a new release, from the previous one of the same CUDA major.

    Returns the columns and the text of where they come from; None: there is no previous release.
    """
    row = known.before(table, version, cuda_major)
    if row is None:
        return None
    carried = {column: row[column] for column in columns}
    source = "driver_source" if "driver_source" in row else "sm_source"
    if source in row:
        carried[source] = f"carried over from {row['version']}: {row[source]}"
    if "sm_confidence" in row:
        carried["sm_confidence"] = "assumed"
    return carried


def note_absent(
    reading: SourceReading, table: str, row: Row, patch: Row | None, words: str
) -> None:
    """Record a known row that is no longer listed."""
    reading.absent.append(Absence(table=table, key=key_of(table, row), patch=patch, words=words))
