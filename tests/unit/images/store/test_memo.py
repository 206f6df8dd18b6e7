"""What is remembered: whole or not at all, and never believed without a look."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from images.oci.model import DOCKER_LAYER_GZIP, LAYER, LAYER_GZIP
from images.oci.sources import KnownLayer, Unpacked
from images.store.memo import known_from_json, known_to_json, memo_path, read_memo, write_memo
from images.store.store import Store
from tests.kit.cases import cases

KEY = "ab" * 32
KNOWN = KnownLayer(
    digest=f"sha256:{'1' * 64}",
    size=100,
    unpacked=Unpacked(diff_id=f"sha256:{'2' * 64}", size=1000),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def memo_of(store: Store) -> Path:
    return memo_path(store.directory / "memo", "known", KEY)


def test_what_is_remembered_comes_back(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        assert store.known(KEY) is None
        store.remember(KEY, KNOWN)
        plain = KnownLayer(digest=KNOWN.digest, size=1, unpacked=KNOWN.unpacked, media_type=LAYER)
        store.remember("other", plain)
    with Store.open(tmp_path) as store:
        assert store.known(KEY) == KNOWN
        assert store.known("other") == plain
        store.remember(KEY, plain)
        assert store.known(KEY) == plain


@given(key=st.text(), value=st.dictionaries(st.text(), JSON, max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_key_and_value_come_back_as_they_were(
    tmp_path: Path, key: str, value: dict[str, Any]
) -> None:
    path = memo_path(tmp_path, "base", key)
    write_memo(path, tmp_path, key, value)
    assert read_memo(path, key) == value
    assert path.parent == tmp_path / "base"


def test_a_key_that_is_a_path_of_no_text_is_a_key(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.remember_facts("local-files", "/tmp/\udcff.whl", {"size": 1})
        assert store.facts("local-files", "/tmp/\udcff.whl") == {"size": 1}


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), bit=st.integers(0, 7))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_memo_that_is_torn_or_flipped_is_as_good_as_none(
    tmp_path: Path, cut: int, flip: int, bit: int
) -> None:
    path = memo_path(tmp_path, "known", KEY)
    write_memo(path, tmp_path, KEY, known_to_json(KNOWN))
    good = path.read_bytes()
    path.write_bytes(good[: min(cut, len(good) - 1)])
    assert read_memo(path, KEY) is None
    flip %= len(good)
    path.write_bytes(good[:flip] + bytes([good[flip] ^ 1 << bit]) + good[flip + 1 :])
    found = read_memo(path, KEY)
    # white space, which json.dump puts between, may become other white space
    assert found is None or (found == known_to_json(KNOWN) and good[flip : flip + 1] == b" ")


@cases(
    "content",
    ("nothing", b""),
    ("what a power cut leaves", b"\0" * 300),
    ("no object", b"[1, 2]"),
    ("an object of another kind", b'{"key": "x"}'),
    ("brackets without end", b"[" * 100_000),
    ("no text", b"\xff\xfe{}"),
)
def test_a_damaged_memo_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    with Store.open(tmp_path) as store:
        store.remember(KEY, KNOWN)
        memo_of(store).write_bytes(content)
        assert store.known(KEY) is None
        store.remember(KEY, KNOWN)
        assert store.known(KEY) == KNOWN


def test_a_memo_of_another_key_is_not_this_ones(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.remember("another", KNOWN)
        other = memo_path(store.directory / "memo", "known", "another")
        memo_of(store).write_bytes(other.read_bytes())
        assert store.known(KEY) is None
        assert [one.kind for one in store.verify().damaged] == ["memo"]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_lies_in_a_memos_place_is_never_waited_for(tmp_path: Path, kind: str) -> None:
    with Store.open(tmp_path) as store:
        store.remember(KEY, KNOWN)
        path = memo_of(store)
        real = path.rename(tmp_path / "real.json")
        if kind == "link":
            path.symlink_to(real)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        assert store.known(KEY) is None


@cases(
    "field value",
    ("a digest that is a path", "digest", "sha256:../../x"),
    ("a digest without its algorithm", "digest", "1" * 64),
    ("no digest", "digest", None),
    ("a diffID of another algorithm", "diff_id", "sha512:" + "1" * 128),
    ("less than nothing", "size", -1),
    ("a size that is no number", "size", True),
    ("half a byte", "size", 1.5),
    ("more than there can be", "size", 1 << 60),
    ("a number in quotes", "unpacked_size", "1000"),
    ("no layer", "media_type", "text/html"),
    ("a layer that we do not write", "media_type", DOCKER_LAYER_GZIP),
    ("no media type", "media_type", ["x"]),
)
def test_what_cannot_be_a_layer_is_not_believed(tmp_path: Path, field: str, value: object) -> None:
    assert known_from_json(known_to_json(KNOWN)) == KNOWN
    with Store.open(tmp_path) as store:
        store.remember_facts("known", KEY, {**known_to_json(KNOWN), field: value})
        assert store.facts("known", KEY) is not None
        assert store.known(KEY) is None


def test_what_cannot_be_remembered_is_no_failure(tmp_path: Path) -> None:
    notes: list[str] = []
    with Store.open(tmp_path, on_note=notes.append) as store:
        (store.directory / "memo" / "known").write_text("a file in its place")
        store.remember(KEY, KNOWN)
        assert store.known(KEY) is None
        assert "cannot write to the store" in notes[0]
        assert list((store.directory / "partial").iterdir()) == []


def test_a_memo_says_itself_what_it_is(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.remember(KEY, KNOWN)
        document = json.loads(memo_of(store).read_bytes())
    assert document["key"] == KEY
    assert document["value"]["media_type"] == LAYER_GZIP
