"""`provision store du|verify|gc`: what is there, what is damaged, what goes first."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.engines.sandbox.roots import Root, Roots
from images.oci.sources import KnownLayer, Unpacked
from images.store.entries import store_directory
from images.store.errors import in_units
from images.store.locks import present
from images.store.store import Store, default_limit
from images.store.upkeep import MEMO_S
from provision.cli.commands.store import du, gc, verify
from provision.cli.sizes import LIMIT_VARIABLE, parse_size, store_limit
from provision.errors import BadInputError, Exit
from provision.output.console import Console
from tests.kit import schemas
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer


def body_of(number: int) -> bytes:
    return bytes([number]) * (1000 * number)


def digest_of(number: int) -> str:
    return hashlib.sha256(body_of(number)).hexdigest()


def fill(root: Path) -> None:
    """Wheels 1 and 2, blobs 3 and 4, used in the order 3, 1, 4, 2; something remembered."""
    with Store.open(root) as store:
        for number in (1, 2):
            name = f"w{number}-1-py3-none-any.whl"
            store.add("wheel", digest_of(number), iter([body_of(number)]), file_name=name)
        for number in (3, 4):
            store.add("blob", digest_of(number), iter([body_of(number)]))
        unpacked = Unpacked(diff_id=f"sha256:{digest_of(3)}", size=1)
        store.remember("a", KnownLayer(digest=f"sha256:{digest_of(3)}", size=1, unpacked=unpacked))
    for age, path in enumerate([path_of(root, n) for n in (3, 1, 4, 2)]):
        os.utime(path, (1_000_000 + age, 1_000_000 + age))


def path_of(root: Path, number: int) -> Path:
    directory = store_directory(root)
    if number < 3:
        return directory / "wheels" / digest_of(number) / f"w{number}-1-py3-none-any.whl"
    return directory / "blobs" / digest_of(number)


def kept(root: Path) -> set[int]:
    return {number for number in (1, 2, 3, 4) if path_of(root, number).exists()}


def test_what_takes_how_much(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store.open(tmp_path) as store:
        (store.directory / "partial" / f"wheel-{digest_of(9)}").write_bytes(bytes(77))
        found = {one.kind: (one.count, one.size) for one in store.du()}
    assert found["wheels"] == (2, 3000)
    assert found["blobs"] == (2, 7000)
    assert found["memo"][0] == 1
    assert found["unfinished"] == (1, 77)


@cases(
    "limit left",
    ("all that fits stays", 10_000, {1, 2, 3, 4}),
    ("one byte too much costs the oldest", 9_999, {1, 2, 4}),
    ("then the next", 6_500, {2, 4}),
    ("and the next", 5_000, {2}),
    ("nothing may stay", 0, set()),
)
def test_what_was_used_longest_ago_goes_first(tmp_path: Path, limit: int, left: set[int]) -> None:
    fill(tmp_path)
    with Store.open(tmp_path) as store:
        cleared = store.gc(limit_bytes=limit)
    assert kept(tmp_path) == left
    assert cleared.kept == sum(1000 * number for number in left)
    assert cleared.freed == 10_000 - cleared.kept


def test_use_is_what_counts_and_not_the_arrival(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store.open(tmp_path) as store:
        assert store.blob(digest_of(3)) is not None
    with Store.open(tmp_path) as store:
        store.gc(limit_bytes=5000)
    assert kept(tmp_path) == {2, 3}


def test_what_this_build_was_given_stays_until_it_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store.open(tmp_path, limit_bytes=0) as store:
        assert store.wheel(digest_of(1)) is not None
        cleared = store.gc(everything=True)
        assert (kept(tmp_path), cleared.in_use) == ({1}, 1000)


def test_a_store_keeps_to_its_limit_when_a_build_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store.open(tmp_path, limit_bytes=6500) as store:
        store.add("blob", digest_of(5), iter([body_of(5)]))
        assert kept(tmp_path) == {1, 2, 3, 4}
    assert kept(tmp_path) == set()
    assert path_of(tmp_path, 5).exists()


def test_everything_means_the_memo_too(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store.open(tmp_path) as store:
        store.gc(everything=True)
        assert sum(one.count for one in store.du()) == 0
        assert store.known("a") is None


def test_what_nobody_asks_for_in_half_a_year_is_forgotten(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store.open(tmp_path) as store:
        (memo,) = (store.directory / "memo" / "known").iterdir()
        store.gc()
        assert store.known("a") is not None
        old = memo.stat().st_mtime - MEMO_S - 60
        os.utime(memo, (old, old))
        assert store.known("a") is not None  # which is asking for it
        store.gc()
        assert store.known("a") is not None
        os.utime(memo, (old, old))
        store.gc()
        assert store.known("a") is None


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


@cases(
    "number harm found",
    ("a bit of a wheel flipped", 1, flip, 1),
    ("a bit of a blob flipped", 4, flip, 1),
    ("a wheel emptied", 2, lambda path: os.truncate(path, 0), 1),
    ("a blob grown by zeros", 3, lambda path: os.truncate(path, 9000), 1),
    ("a wheel that was merely used", 2, os.utime, 0),
)
def test_damage_is_found_and_removed_once(
    tmp_path: Path, number: int, harm: Callable[[Path], None], found: int
) -> None:
    fill(tmp_path)
    harm(path_of(tmp_path, number))
    with Store.open(tmp_path) as store:
        first, second = store.verify(), store.verify()
    assert len(first.damaged) == found
    assert kept(tmp_path) == {1, 2, 3, 4} - ({number} if found else set())
    assert (first.count, second.damaged) == (4, ())
    if found:
        assert "its sha256 is " in first.damaged[0].why


def test_what_is_not_ours_is_named_and_left_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    directory = store_directory(tmp_path)
    (directory / "blobs" / "notes.txt").write_text("mine")
    (directory / "wheels" / ("f" * 64)).write_text("a file in the place of a directory")
    link(path_of(tmp_path, 3))
    with Store.open(tmp_path) as store:
        report = store.verify()
        store.gc(everything=True)
    found = [f"blobs/{digest_of(3)}", "blobs/notes.txt", f"wheels/{'f' * 64}"]
    assert sorted(report.unknown_files) == sorted(found)
    assert all((directory / name).is_symlink() or (directory / name).exists() for name in found)


def test_progress_is_told_by_bytes(tmp_path: Path) -> None:
    fill(tmp_path)
    heard: list[tuple[str, int]] = []
    with Store.open(tmp_path) as store:
        store.verify(lambda name, count: heard.append((name, count)))
    assert sum(count for _, count in heard) == 10_000
    assert {name for name, _ in heard} >= {"w1-1-py3-none-any.whl", f"sha256:{digest_of(3)}"}


def test_the_limit_where_nobody_says_is_a_part_of_the_disk(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    limit = default_limit(tmp_path)
    assert limit == min(20 * 10**9, status.f_blocks * status.f_frsize // 5)
    assert default_limit(tmp_path / "nowhere") == 20 * 10**9


# The commands, as they are called.


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    return tmp_path / "gpu-provision"


def call(
    name: str, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, dict[str, Any]]:
    """What a command says to people, and as JSON; both from one state where nothing changes."""
    parser = argparse.ArgumentParser()
    gc.options(parser)
    parser.add_argument("--json", action="store_true")
    run = {"du": du.run, "gc": gc.run, "verify": verify.run}[name]
    code = run(parser.parse_args([*words]), Console())
    out = capsys.readouterr().out
    return code, out, json.loads(out) if "--json" in words else {}


def test_du_is_a_table_of_eighty_columns(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(root)
    code, out, _ = call("du", capsys)
    assert code == Exit.DONE
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines[1:])  # the first is a path
    cells = [line.split() for line in lines]
    assert ["wheels", "2", "3.0", "kB"] in cells
    assert ["blobs", "2", "7.0", "kB"] in cells
    _, _, data = call("du", capsys, "--json")
    assert data["store"] == str(store_directory(root))
    assert schemas.problems("store-du", data) == []
    assert {"kind": "wheels", "count": 2, "bytes": 3000} in data["usage"]
    assert data["bytes"] == sum(one["bytes"] for one in data["usage"])


@pytest.mark.parametrize("name", ["du", "verify", "gc"])
def test_where_nothing_was_ever_kept_nothing_is_made(
    root: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, _, data = call(name, capsys, "--json")
    assert code == Exit.DONE
    assert data["schema"] == 1
    assert call(name, capsys)[0] == Exit.DONE
    assert not root.exists()


def test_verify_says_what_was_damaged_and_is_content_the_next_time(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(root)
    flip(path_of(root, 1))
    code, _, data = call("verify", capsys, "--json")
    assert code == Exit.UNFIT
    assert [(one["kind"], one["title"]) for one in data["damaged"]] == [
        ("wheel", "w1-1-py3-none-any.whl")
    ]
    assert (data["checked"], data["bytes"]) == (4, 10_000)
    code, out, _ = call("verify", capsys)
    assert code == Exit.DONE
    assert "intact" in out


def test_gc_frees_down_to_a_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(root)
    code, _, data = call("gc", capsys, "--max-size", "6.5kB", "--json")
    assert code == Exit.DONE
    assert (data["freed_bytes"], data["kept_bytes"], data["limit_bytes"]) == (4000, 6000, 6500)
    assert kept(root) == {2, 4}
    code, out, _ = call("gc", capsys, "--all")
    assert code == Exit.DONE
    assert "6." in out.splitlines()[0]
    assert "last used" in out
    assert kept(root) == set()


def hold_root(root: Path, name: str) -> Root:
    return Roots(root / "roots").use(image([layer(entry(name, bytes(50_000)))]), lambda _: None)


def test_unpacked_images_are_counted_and_removed_unless_they_are_in_use(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = hold_root(root, "a")
    hold_root(root, "b").release()
    _, _, data = call("du", capsys, "--json")
    (usage,) = (one for one in data["usage"] if one["kind"] == "unpacked images")
    assert usage["count"] == 2
    assert usage["bytes"] > 100_000
    code, _, data = call("gc", capsys, "--json")
    assert code == Exit.DONE
    assert [one["kind"] for one in data["removed"]] == ["unpacked images"]
    assert data["kept_bytes"] == data["in_use_bytes"] > 50_000
    assert (used.tree / "a").exists()
    used.release()
    _, _, data = call("gc", capsys, "--json")
    assert (len(data["removed"]), data["kept_bytes"]) == (1, 0)


@cases(
    "words builds left",
    ("a base is kept for the locks that name it", (), 0, 2),
    ("everything means the bases, too", ("--all",), 0, 0),
    ("a running build may read one", ("--all",), 1, 2),
)
def test_bases(
    root: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], builds: int, left: int
) -> None:
    bases = root / "bases"
    bases.mkdir(parents=True)
    for name in "ab":
        (bases / f"{digest_of(ord(name))}.tar").write_bytes(bytes(1000))
    (bases / "index.json").write_text("{}")
    with present(root) if builds else contextlib.nullcontext():
        _, _, data = call("gc", capsys, "--json", *words)
    assert (data["freed_bytes"], data["kept_bytes"]) == (1000 * (2 - left), 1000 * left)
    assert data["in_use_bytes"] == (2000 * builds)
    _, _, data = call("du", capsys, "--json")
    assert {"kind": "bases", "count": left, "bytes": 1000 * left} in data["usage"]


def test_memos_are_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(root) as store:
        for number in range(40):
            store.remember_facts("known", f"{number}", {})
    _, out, _ = call("gc", capsys, "--all")
    assert len(out.splitlines()) == 3
    assert "40 memos" in out


def test_gc_without_a_size_keeps_to_the_limit_of_the_environment(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root)
    monkeypatch.setenv(LIMIT_VARIABLE, "5kB")
    _, _, data = call("gc", capsys, "--json")
    assert (data["limit_bytes"], data["kept_bytes"]) == (5000, 2000)
    monkeypatch.setenv(LIMIT_VARIABLE, "lots")
    with pytest.raises(BadInputError, match="PROVISION_STORE_SIZE 'lots' is not a size"):
        call("gc", capsys)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("20GB", 20 * 10**9, id="gigabytes"),
        pytest.param("20G", 20 * 10**9, id="without the B"),
        pytest.param("500mb", 500 * 10**6, id="in small letters"),
        pytest.param(" 1.5 TB ", 15 * 10**11, id="with blanks and a part"),
        pytest.param("2GiB", 2 << 30, id="binary"),
        pytest.param("0.1KiB", 102, id="a part of a binary one"),
        pytest.param("1234", 1234, id="bytes"),
        pytest.param("0", 0, id="nothing"),
        *(
            pytest.param(text, None, id=repr(text))
            for text in ("", "GB", "-1GB", "1e9", "1,5GB", "20 GB GB", "20XB", "٣GB", "1.GB", "i")
        ),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(BadInputError, match="is not a size") as caught:
            parse_size("--max-size", text)
        assert caught.value.exit_code == 2
    else:
        assert parse_size("--max-size", text) == size


@given(count=st.integers(0, 1 << 62))
def test_a_size_that_is_shown_can_be_typed(count: int) -> None:
    shown = in_units(count).replace("bytes", "B")
    assert len(shown) <= 12
    assert abs(parse_size("--max-size", shown) - count) <= max(count * 0.051, 0)


def test_the_limit_of_the_environment() -> None:
    assert store_limit({}) is None
    assert store_limit({LIMIT_VARIABLE: "3GB"}) == 3 * 10**9
