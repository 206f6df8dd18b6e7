"""The values of a refresh: requests, what was read, the changes that follow, and failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from images.errors import Failure
from provision.errors import BadInputError, Exit

Row: TypeAlias = Mapping[str, object]
"""A row, or some columns of one, in the spelling of the data files."""

Kind: TypeAlias = Literal["new", "changed", "confirmed", "gone", "conflict"]
"""new: the catalog had no such row. changed: upstream changed, or an unread column was read.
confirmed: a likely row was found. gone: a row is no longer listed.
conflict: the catalog has another value for a fixed fact; it is reported, not written."""


class RefreshOfflineError(Failure):
    """A refresh was requested while the network may not be used."""

    code = "refresh-offline"
    exit_code = Exit.UNREACHABLE


class UnknownSourceError(BadInputError):
    """Unknown source name."""

    code = "unknown-source"


class SourceError(Failure):
    """A source, or one of its pages, was unreachable, refused access or sent an unexpected answer.

    `silent`: the host did not answer at all, so more requests to it are pointless.
    """

    code = "source-unreadable"
    exit_code = Exit.UNREACHABLE

    def __init__(self, message: str, *, fix: str, silent: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.silent = silent


class AbsentError(SourceError):
    """The server answered that the page does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits in seconds and bytes; a pause is the longest Retry-After that is honoured."""

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
    """One answered request: `received` bytes on the wire, bodies only."""

    url: str
    status: int
    received: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailure:
    """Why a source could not be read; `partial` if the rest of it could."""

    name: str
    message: str
    fix: str
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A fact of the catalog that the source should list and does not.

    `patch`: the columns that record it; None if the table has none, and it is only reported.
    """

    table: str
    key: Row
    patch: Row | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A finding that is reported but not written: it makes no complete row, or contradicts one."""

    table: str
    key: Row
    kind: Kind
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some columns of a row, its key included; the rest has to come from another source.

    They take precedence over that source's. If no source gives the row and the catalog has none,
    `words` are shown to the user.
    """

    table: str
    columns: Row
    words: str


@dataclass(slots=True, kw_only=True)
class SourceReading:
    """What one source gave. `rows`: (table, columns that were read); a column with None was not
    read, and fills new rows only. `notes` are worth reporting but are not failures.
    """

    source: str
    rows: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    absent: list[Absence] = field(default_factory=list)
    seen: list[Sighting] = field(default_factory=list)
    troubles: list[SourceError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, table: str, **columns: object) -> None:
        """Add one row, as far as it was read."""
        self.rows.append((table, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChange:
    """One difference between the catalog and what was read.

    `before` and `after` hold the columns that differ; `sentence` describes it.
    """

    table: str
    key: Row
    kind: Kind
    before: Row | None
    after: Row | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The result. `rows` holds what is worth keeping: nothing that the catalog already has."""

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
        """0 if at least one of the queried sources could be read, even in part; else 5."""
        failed = {failure.name for failure in self.failures if not failure.partial}
        return Exit.UNREACHABLE if failed >= set(self.names) else Exit.DONE
