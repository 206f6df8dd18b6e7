"""The values of a refresh: what was read, the changes that follow, and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from images.errors import Failure
from provision.catalog.index.address import default_index
from provision.catalog.index.client import Index
from provision.catalog.index.fetch import AnsweredRequest, PageFetcher, SourceError
from provision.catalog.refresh.current_rows import CurrentRows, Row
from provision.errors import BadInputError, Exit

Kind: TypeAlias = Literal["new", "changed", "confirmed"]
"""new: the catalog had no such row. changed: upstream changed, or an unread column was read.
confirmed: a likely row was found."""


class RefreshOfflineError(Failure):
    """A refresh was requested while the network may not be used."""

    code = "refresh-offline"
    exit_code = Exit.UNREACHABLE


class UnknownSourceError(BadInputError):
    """Unknown source name."""

    code = "unknown-source"


@dataclass(kw_only=True)
class Asking:
    """What every source reads with. Of the URLs None means the default: the package index of pip or
    uv, and the catalog's own addresses.
    """

    known: CurrentRows
    fetcher: PageFetcher
    today: str
    env: Mapping[str, str]
    index_url: str | None
    pytorch_index: str | None
    nvidia: str | None

    @cached_property
    def index(self) -> Index:
        """The package index. SourceError: there is none, or it is not on the network."""
        address = default_index(self.index_url, self.env)
        return Index(address.url, address.name, self.fetcher)

    def of_index(self, what: str) -> SourceReading:
        """An empty reading of the package index."""
        name = self.index.name
        place = name if name == "PyPI" else f"the package index at {name}"
        return self.reading(name, place, what)

    def reading(self, name: str, place: str, what: str) -> SourceReading:
        """An empty reading: `name` for sentences; `place` and `what`, for the rows' source."""
        return SourceReading(name=name, text=f"{place}, read {self.today}: {what}")


@dataclass(slots=True, kw_only=True)
class SourceReading:
    """What one source gave. `name` is how sentences call it, `text` the source of its rows.

    `rows`: (table, columns that were read); a column with None was not read, and fills new rows
    only. `notes` are worth reporting but are not failures.
    """

    name: str
    text: str
    rows: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    troubles: list[SourceError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, table: str, **columns: object) -> None:
        """Add one row, as far as it was read."""
        self.rows.append((table, columns))


class CatalogSource(NamedTuple):
    """A source: whose group `--from` names it by, what it gives, and what reads it."""

    group: str
    gives: str
    read: Callable[[Asking], SourceReading]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailure:
    """Why a source could not be read; `partial` if the rest of it could."""

    source: str
    message: str
    fix: str
    partial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChange:
    """One difference between the catalog and what was read.

    `before` and `after` hold the columns that differ; `sentence` describes it.
    """

    table: str
    key: Row
    kind: Kind
    before: Row | None
    after: Row
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The result. `rows` holds what is worth keeping: nothing that the catalog already has.
    `readings` are all that was read, by source.
    """

    today: str
    names: tuple[str, ...]
    rows: Mapping[str, tuple[Row, ...]]
    sources: Mapping[str, str]
    changes: tuple[CatalogChange, ...]
    failures: tuple[SourceFailure, ...]
    readings: Mapping[str, SourceReading]
    requests: tuple[AnsweredRequest, ...]
    seconds: float

    @property
    def notes(self) -> list[str]:
        """What is worth reporting and is no failure."""
        return [note for reading in self.readings.values() for note in reading.notes]

    @property
    def exit_code(self) -> int:
        """0 if at least one of the queried sources could be read, even in part; else 5."""
        return Exit.DONE if self.readings else Exit.UNREACHABLE


def template_of(shipped: str, override: str | None, end: str) -> str:
    """A URL with a placeholder such as {tag}; an override is one, too, or what is before `end`."""
    if override is None or "{" in override:
        return override or shipped
    return f"{override.rstrip('/')}/{end}"


def unsaid(what: str) -> SourceError:
    """The error for a build whose METADATA does not name a CUDA."""
    return SourceError(
        f"The METADATA of {what} does not say which CUDA it is for.",
        fix="No action is needed; it is skipped.",
    )
