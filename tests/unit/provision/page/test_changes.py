"""What changed since an earlier page, and what is refused as one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.cli import main as cli
from provision.errors import BadInputError, Exit
from provision.page.changes import EarlierPage, changes, read_page
from provision.page.facts import facts
from provision.page.nodes import Nodes
from tests.kit.cases import cases


def data_of(catalog: Catalog) -> dict[str, Any]:
    """The part of a page's data that has its facts."""
    nodes = Nodes()
    return {"tool": "0.1.0", "facts": facts(catalog, nodes), "nodes": nodes.nodes}


def written(data: object, folder: Path) -> Path:
    text = json.dumps(data).replace("<", "\\u003c")
    path = folder / "old.html"
    path.write_text(f'<p>x</p><script type="application/json" id="data">{text}</script>', "utf-8")
    return path


def compared(old: Catalog, new: Catalog, folder: Path) -> dict[str, Any]:
    newer = data_of(new)
    found = changes(read_page(written(data_of(old), folder)), newer["facts"], newer["nodes"])
    return dict(found["tables"])


def test_the_same_catalog_has_no_changes(tmp_path: Path) -> None:
    for table in compared(load(), load(), tmp_path).values():
        assert (table["added"], table["removed"], table["changed"]) == ([], [], [])
        assert table["date"]


def test_cards_and_branches_that_were_added_removed_and_changed(tmp_path: Path) -> None:
    catalog = load()
    first, *cards = catalog.gpus
    *branches, last = catalog.branches
    newer = cards[0]._replace(memory_gb=(cards[0].memory_gb or 0) + 1, source="https://elsewhere")
    old = catalog.with_tables(gpus=(first, *cards), branches=tuple(branches))
    new = catalog.with_tables(
        gpus=(newer, *cards[1:]),
        branches=(*branches[:-1], branches[-1]._replace(latest_seen="999.1"), last),
    )
    found = compared(old, new, tmp_path)
    assert found["cards"]["removed"] == [first.name]
    assert found["cards"]["added"] == []
    ((row, name, cells),) = found["cards"]["changed"]
    assert row == name == newer.name
    assert cells == [["memory", str(cards[0].memory_gb), str(newer.memory_gb)]]
    assert found["branches"]["added"] == [[str(last.branch), str(last.branch)]]
    assert [row[0] for row in found["branches"]["changed"]] == [str(branches[-1].branch)]
    assert found["builds"]["changed"] == []


def test_builds_are_named_as_in_their_table(tmp_path: Path) -> None:
    catalog = load()
    found = compared(catalog.with_tables(torch=catalog.torch[::2]), catalog, tmp_path)
    assert found["builds"]["added"]
    for row, name in found["builds"]["added"]:
        assert row.startswith("pytorch-")
        assert name.startswith("PyTorch ")


PAGE: dict[str, Any] = {
    "tool": "0.1.0",
    "facts": {
        name: {"date": "2026-01-01", "columns": ["name", "since"], "rows": [3]}
        for name in ("cards", "branches", "builds")
    },
    "nodes": ["x", None, 5, [0, 0, 0, 1]],
}


def changed_page(**of_cards: object) -> dict[str, Any]:
    return {**PAGE, "facts": {**PAGE["facts"], "cards": {**PAGE["facts"]["cards"], **of_cards}}}


@cases(
    "data",
    ("a list", []),
    ("nothing", {}),
    ("a number for the tool", {**PAGE, "tool": 7}),
    ("nodes are no list", {**PAGE, "nodes": {}}),
    ("a row is an object", {**PAGE, "nodes": ["x", None, 5, [1, 0, 0, 1]]}),
    ("a row is short", {**PAGE, "nodes": ["x", None, 5, [0, 0, 0]]}),
    ("a row in itself", {**PAGE, "nodes": ["x", None, 5, [0, 3, 3, 3]]}),
    ("a text for a node", {**PAGE, "nodes": ["x", None, 5, [0, 0, "0", 1]]}),
    ("a negative place", changed_page(rows=[-1])),
    ("a place that is not there", changed_page(rows=[99])),
    ("too many rows", changed_page(rows=[3] * 100_001)),
    ("no rows", changed_page(rows=None)),
    ("no columns", changed_page(columns=[])),
    ("a list for a column", changed_page(columns=[["name"], "since"])),
    ("one table", {**PAGE, "facts": {"cards": PAGE["facts"]["cards"]}}),
)
def test_a_damaged_page_is_refused(data: object, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is damaged"):
        read_page(written(data, tmp_path))


def test_what_an_earlier_page_says_is_made_printable_and_short(tmp_path: Path) -> None:
    evil = "\u202e\x1b[31m" + "<img src=x>" * 1000
    nodes = [evil, None, 5, [0, 0, 0, 1]]
    found = read_page(written({**PAGE, "nodes": nodes}, tmp_path))
    assert isinstance(found, EarlierPage)
    for table in found.tables.values():
        for name in table.rows:
            assert name.isprintable()
            assert len(name) <= 300


@cases(
    "content why",
    ("empty", b"", "is not a page"),
    ("another page", b"<html>hello</html>", "is not a page"),
    ("cut off", b'<script type="application/json" id="data">{"a": 1</script>', "is damaged"),
    ("deep", b'<script type="application/json" id="data">' + b"[" * 200_000 + b"</script>",
     "is damaged"),
    ("empty data", b'<script type="application/json" id="data">{}</script>', "is damaged"),
    ("binary", bytes(range(256)) * 100, "is not a page"),
)  # fmt: skip
def test_the_command_refuses_it_before_it_begins(
    content: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, site = tmp_path / "old.html", tmp_path / "site"
    old.write_bytes(content)
    words = ["catalog", "page", "--output", str(site), "--since", str(old)]
    assert cli.main(words) == Exit.USAGE
    said = capsys.readouterr().err
    assert why in said
    assert "Traceback" not in said
    assert not (site / "index.html").exists()


@pytest.mark.parametrize("name", ["missing.html", "."])
def test_a_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        read_page(tmp_path / name)


def test_whatever_is_cut_or_changed_is_read_or_refused(tmp_path: Path) -> None:
    chance = random.Random(3)
    whole = written(PAGE, tmp_path).read_bytes()
    path = tmp_path / "changed.html"
    for _ in range(500):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.randrange(len(content) // 2, len(content) + 1)])
        try:
            read_page(path)
        except BadInputError:
            continue
