"""What a refresh is made of: what was asked, what was read, what that changes, what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from images.errors import Failure
from provision.errors import BadInputError, Exit

Row: TypeAlias = Mapping[str, object]
"""A row, or some columns of one, in the spelling of the data files."""

Kind: TypeAlias = Literal["new", "changed", "confirmed", "gone", "conflict"]
"""new: the catalog had no such row. changed: the world moved on, or an unread column was read.
confirmed: what was only likely is there. gone: what was there is not listed any more.
conflict: the catalog states something else that cannot have moved; it is told, and not written."""


class RefreshOfflineError(Failure):
    """A refresh was asked for where nothing may be asked."""

    code = "refresh-offline"
    exit_code = Exit.UNREACHABLE


class UnknownSourceError(BadInputError):
    """A name that is none of the sources."""

    code = "unknown-source"


class SourceError(Failure):
    """A source, or one page of it, was out of reach, refused, or answered with something else.

    `silent`: the host did not answer at all, so that asking it for more is of no use.
    """

    code = "source-unreadable"
    exit_code = Exit.UNREACHABLE

    def __init__(self, message: str, *, fix: str, silent: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.silent = silent


class AbsentError(SourceError):
    """The server answered that it has no such page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """How long and how much. Seconds and bytes; a pause is what a server's Retry-After may ask."""

    connect_s: float = 5.0
    read_s: float = 8.0
    request_s: float = 30.0
    total_s: float = 120.0
    pause_s: float = 5.0
    backoff_s: float = 0.3
    attempts: int = 3
    page_bytes: int = 32 << 20
    metadata_bytes: int = 4 << 20
    directory_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """One request that was answered: `received` bytes on the wire, bodies only."""

    url: str
    status: int
    received: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailure:
    """What kept a source from being read; `partial` where the rest of it was."""

    name: str
    message: str
    fix: str
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A fact of the catalog that the source should list and does not.

    `patch`: the columns that say so; None where the table has none, and it is only told.
    """

    table: str
    key: Row
    patch: Row | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Something that is told and not written: no row can be made of it, or it contradicts one."""

    table: str
    key: Row
    kind: Kind
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Columns, the key among them, of a row that takes another source to be whole.

    They count for more than that source's. Where no source gives the row, and the catalog has none,
    `words` are shown to the user.
    """

    table: str
    columns: Row
    words: str


@dataclass(slots=True, kw_only=True)
class SourceReading:
    """What one source gave. `rows`: (table, columns that were read); a None in a column says that
    nothing was read, and fills new rows only. `notes` are worth telling and no trouble.
    """

    source: str
    rows: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    absent: list[Absence] = field(default_factory=list)
    seen: list[Sighting] = field(default_factory=list)
    troubles: list[SourceError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, table: str, **columns: object) -> None:
        """One row, as far as it was read."""
        self.rows.append((table, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChange:
    """One difference between the catalog and what was read.

    `before` and `after` hold the columns that differ; `sentence` says it to a person.
    """

    table: str
    key: Row
    kind: Kind
    before: Row | None
    after: Row | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The result. `rows` holds what is worth keeping: nothing that the catalog said already."""

    today: str
    names: tuple[str, ...]
    rows: Mapping[str, tuple[Row, ...]]
    sources: Mapping[str, str]
    changes: tuple[CatalogChange, ...]
    failures: tuple[SourceFailure, ...]
    notes: tuple[str, ...]
    asked: tuple[AnsweredRequest, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 where any source that was asked could be read, if only in part; else 5."""
        failed = {failure.name for failure in self.failures if not failure.partial}
        return Exit.UNREACHABLE if failed >= set(self.names) else Exit.DONE
