"""Rows that a refresh found -> the data files with them, and what upstream no longer lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from provision.catalog.catalog import Catalog
from provision.catalog.data_files import DATA, read_raw
from provision.catalog.overlay import merged, named_sources
from provision.catalog.refresh.compare import UNJUDGED, all_places, is_same
from provision.catalog.refresh.current_rows import CurrentRows, Row, ident, key_of
from provision.catalog.refresh.model import Refreshed
from provision.catalog.tables import FILES

_ASSUMED = UNJUDGED | {
    *("min_driver", "sm_min", "capabilities", "gpu", "sm_confidence"),
    *("source", "sm_source", "driver_source", "as_of"),
}
"""Columns that a source does not read: those of a row that is read again prove nothing."""

Listed = tuple[str, Callable[[Row], bool]]
_PLACES: Mapping[str, Listed] = {
    "torch": ("builds", lambda row: "pypi" in str(row["at"])),
    "pytorch-index": ("builds", lambda row: "pytorch" in str(row["at"])),
    "tensorflow": ("tensorflow_releases", lambda row: not row["prerelease"]),
    "jax": ("jax_releases", lambda _: True),
    "toolkits": ("toolkits", lambda row: row["on_pypi"] is True),
    "cudnn": ("cudnn", lambda row: bool(row["archs"])),
    "nccl": ("nccl", lambda row: bool(row["archs"])),
    "cuda-images": ("images", lambda row: row["status"] in {"supported", "seen"}),
    "python-images": ("python_images", lambda row: row["confidence"] != "doubtful"),
}
"""The rows of a table that a source should list."""


def without_newest(catalog: Catalog, count: int) -> Catalog:
    """The catalog without its newest releases of PyTorch, TensorFlow and JAX, which are then read
    again from their METADATA.
    """
    if not count:
        return catalog
    torch = {row.version for row in catalog.torch_releases[-count:]}
    fewer = catalog.with_tables(
        torch_releases=catalog.torch_releases[:-count],
        torch=tuple(row for row in catalog.torch if row.version not in torch),
    )
    for table, wheels in (
        ("tensorflow_releases", "tensorflow_wheels"),
        ("jax_releases", "jax_plugins"),
    ):
        newest = {row.version for row in getattr(catalog, table)[-count:]}
        for name in (table, wheels):
            kept = tuple(row for row in getattr(catalog, name) if row.version not in newest)
            vars(fewer)[name] = kept
    return fewer


def proposed(found: Refreshed, directory: str = DATA) -> Iterator[tuple[str, dict[str, object]]]:
    """The data files that would change, by name. A column of a known row is proposed if it was read
    and differs; what was carried over, only for new rows.
    """
    for name in FILES:
        raw = read_raw(directory, name)
        changed: set[str] = set()
        for table, rows in found.rows.items():
            shipped = raw.get(table)
            if not isinstance(shipped, list):
                continue
            news = [row for one in rows if (row := _news(table, one, shipped)) is not None]
            if news:
                raw[table] = merged(table, shipped, news, "")
                changed |= {key for row in news for key in named_sources(row)}
        if changed:
            sources = raw["sources"]
            assert isinstance(sources, dict)
            sources |= {key: text for key, text in found.sources.items() if key in changed}
            yield name, {**raw, "date": found.today}


def unlisted(found: Refreshed, catalog: Catalog) -> Iterator[str]:
    """What the catalog has and a source does not list, in sentences. A source that was read in part
    proves nothing, and one that lists less than half is a mirror.
    """
    known = CurrentRows(catalog)
    for source, reading in found.readings.items():
        if source not in _PLACES or reading.troubles:
            continue
        table, should = _PLACES[source]
        here = {ident(table, row) for name, row in reading.rows if name == table}
        there = [row for row in known.rows(table) if should(row)]
        gone = [row for row in there if ident(table, row) not in here]
        if 2 * len(gone) > len(there):
            yield f"{reading.name} lists {len(there) - len(gone)} of {len(there)} {table}."
        else:
            yield from (
                f"{reading.name} does not list {table} {ident(table, row)}." for row in gone
            )


def _news(table: str, row: Row, shipped: list[Row]) -> Row | None:
    """The columns of a row that are news; None: none of them."""
    old = next((one for one in shipped if ident(table, one) == ident(table, row)), None)
    if old is None:
        return row
    read = {**row, **({"at": all_places(old["at"], row["at"])} if "at" in row else {})}
    news = {
        column: value
        for column, value in read.items()
        if value is not None and column not in _ASSUMED and not is_same(old.get(column), value)
    }
    if not news:
        return None
    return {**key_of(table, row), **news, "source": row["source"]}
