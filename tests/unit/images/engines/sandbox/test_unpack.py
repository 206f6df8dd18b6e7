"""Layers become a directory, and nothing beside it, whatever is in them."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.engines.sandbox import unpack as module
from images.engines.sandbox.read_ahead import read_ahead
from images.engines.sandbox.unpack import unpack
from images.errors import DiskFullError, Failure
from images.oci.errors import DigestMismatchError, ImageUnreadableError
from images.oci.sources import ImageLayer
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, layer, layer_of, link


def unpacked(root: Path, *layers: ImageLayer) -> dict[str, str]:
    """What is in the root, without what every root gets: content, "dir", or "-> target"."""
    root.mkdir()
    unpack(layers, root, lambda _: None)
    return seen(root)


OURS = {"dev", "proc", "sys", "tmp", "run", "var", "var/tmp", "root", "usr", "usr/local"}
OURS |= {"usr/local/nvidia", "etc", "etc/hosts", "etc/hostname", "etc/resolv.conf"}


def seen(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "dir"
        else:
            found[name] = path.read_text()
    return {name: what for name, what in found.items() if name not in OURS}


@cases(
    "layers expected",
    ("a later layer's file replaces an earlier one's",
     [layer(entry("a"), entry("a/f", b"one")), layer(entry("a/f", b"two"))],
     {"a": "dir", "a/f": "two"}),
    ("a whiteout hides a file of a lower layer",
     [layer(entry("a/f", b"1"), entry("a/g", b"2")), layer(entry("a/.wh.f", b""))],
     {"a": "dir", "a/g": "2"}),
    ("a whiteout hides a directory with all that is in it",
     [layer(entry("a/b/f", b"1")), layer(entry(".wh.a", b""))], {}),
    ("a whiteout means lower layers, also behind its own layer's file",
     [layer(entry("a/f", b"1")), layer(entry("a/f", b"2"), entry("a/.wh.f", b""))],
     {"a": "dir", "a/f": "2"}),
    ("an opaque directory keeps what its own layer has made, wherever it stands",
     [layer(entry("a/f", b"1"), entry("a/d/g", b"2"), entry("a/d/h", b"3")), layer(entry("a/d/g",
     b"new"), entry("a/.wh..wh..opq", b""))], {"a": "dir", "a/d": "dir", "a/d/g": "new"}),
    ("an opaque directory hides what is below",
     [layer(entry("a/f", b"1")), layer(entry("a/.wh..wh..opq", b""), entry("a/new", b"2"))],
     {"a": "dir", "a/new": "2"}),
    ("whiteouts of what is not there change nothing",
     [layer(entry(".wh.gone", b""), entry("no/.wh..wh..opq", b""))], {}),
    ("aufs's own notes are left out", [layer(entry("a/.wh..wh.plnk", b""), entry("f", b"1"))],
     {"f": "1"}),
    ("a directory replaces a file",
     [layer(entry("a", b"file")), layer(entry("a"), entry("a/f", b"1"))], {"a": "dir", "a/f": "1"}),
    ("a file replaces a directory", [layer(entry("a/b/f", b"1")), layer(entry("a", b"file"))],
     {"a": "file"}),
    ("a directory replaces a link to one",
     [layer(entry("d/f", b"1"), link("l", "d")), layer(entry("l"), entry("l/g", b"2"))],
     {"d": "dir", "d/f": "1", "l": "dir", "l/g": "2"}),
    ("a link on the way is walked with the root as its root",
     [layer(entry("lib", type=tarfile.SYMTYPE, linkname="u/lib")), layer(entry("lib/f", b"1"))],
     {"lib": "-> u/lib", "u": "dir", "u/lib": "dir", "u/lib/f": "1"}),
    ("replacing one of two hard links leaves the other",
     [layer(entry("a", b"1"), link("b", "a", hard=True)), layer(entry("b", b"2"))],
     {"a": "1", "b": "2"}),
    ("a hard link's target is walked in the root, too",
     [layer(entry("d/a", b"1"), link("l", "d"), link("b", "l/a", hard=True))],
     {"b": "1", "d": "dir", "d/a": "1", "l": "-> d"}),
    ("a hard link to a link is one, and is not followed",
     [layer(link("l", "nowhere"), link("m", "l", hard=True))],
     {"l": "-> nowhere", "m": "-> nowhere"}),
    ("devices and pipes are left out", [layer(entry("null", type=tarfile.CHRTYPE, devmajor=1,
     devminor=3), entry("disk", type=tarfile.BLKTYPE, devmajor=8, devminor=0), entry("pipe",
     type=tarfile.FIFOTYPE))], {}),
    ("dots and leading slashes mean the root",
     [layer(entry("./"), entry("./a/./f", b"1"), entry("/abs", b"2"))],
     {"a": "dir", "a/f": "1", "abs": "2"}),
    ("a compressed layer is read", [layer(entry("f", b"1"), packed=True)], {"f": "1"}),
)  # fmt: skip
def test_layers_apply(tmp_path: Path, layers: list[ImageLayer], expected: dict[str, str]) -> None:
    assert unpacked(tmp_path / "root", *layers) == expected


@cases(
    "layers",
    ("a name with dots", [layer(entry("../out", b"x"))]),
    ("dots in the middle", [layer(entry("a/../../out", b"x"))]),
    ("a hard link with dots", [layer(link("out", "../secret", hard=True))]),
    ("a hard link through a link", [layer(link("s", "../secret"), link("out", "s/x", hard=True))]),
    ("a hard link to nothing", [layer(link("l", "nothing", hard=True))]),
    ("a directory's hard link", [layer(entry("d"), link("l", "d", hard=True))]),
    ("links in a circle", [layer(link("a", "b"), link("b", "a"), entry("a/f", b"x"))]),
    ("a file as a directory", [layer(entry("f", b"1"), entry("f/g", b"2"))]),
    ("a very deep tree", [layer(entry("/".join(["d"] * 300) + "/f", b"x"))]),
    ("a name longer than file systems take", [layer(entry("x" * 300, b"x"))]),
    ("a whiteout of nothing", [layer(entry(".wh.", b""))]),
    ("a whiteout of the directory above", [layer(entry("a/.wh...", b""))]),
    ("no tar", [layer_of(b"no tar" * 200)]),
    ("damaged gzip", [layer_of(b"\x1f\x8b\x08" + b"x" * 99)]),
)
def test_what_no_honest_tool_makes_is_refused(tmp_path: Path, layers: list[ImageLayer]) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/x").write_text("secret")
    with pytest.raises(ImageUnreadableError) as caught:
        unpacked(tmp_path / "root", *layers)
    assert caught.value.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "secret"]
    assert (tmp_path / "secret/x").stat().st_nlink == 1


def test_a_layer_other_than_promised_is_refused(tmp_path: Path) -> None:
    honest = layer(entry("f", b"1"))
    lying = layer_of(b"".join(honest.stream()), diff_id=f"sha256:{'0' * 64}")
    with pytest.raises(DigestMismatchError):
        unpacked(tmp_path / "root", lying)


@pytest.mark.parametrize("target", ["/outside", "../outside", "../../../../{tmp}/outside"])
@pytest.mark.parametrize("through", ["l/f", "l/d/f"])
def test_writing_through_a_link_stays_in_the_root(
    tmp_path: Path, target: str, through: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = target.format(tmp=tmp_path)
    lower = layer(entry("outside"), link("l", target))
    unpacked(tmp_path / "root", lower, layer(entry(through, b"x")), layer(entry("l/.wh.f", b"")))
    assert list(outside.iterdir()) == []
    assert list(tmp_path.rglob("f")) == [
        path for path in tmp_path.rglob("f") if path.is_relative_to(tmp_path / "root")
    ]


def test_a_replaced_link_is_not_gone_through_any_more(tmp_path: Path) -> None:
    made = layer(
        entry("a/f", b"1"), link("l", "a"), entry("l/g", b"2"),
        link("l", "b"), entry("l/h", b"3"), entry("a", b"file"),
    )  # fmt: skip
    found = unpacked(tmp_path / "root", made)
    assert found == {"a": "file", "b": "dir", "b/h": "3", "l": "-> b"}


def test_everything_can_be_read_and_removed_and_nobody_gains_rights(tmp_path: Path) -> None:
    modes = {"su": 0o6755, "none": 0, "d": 0, "d/in": 0o444, "sticky": 0o1777, "sg": 0o2755}
    unpacked(
        tmp_path / "root",
        layer(
            entry("su", b"x", mode=modes["su"]), entry("none", b"x", mode=0),
            entry("d", mode=0), entry("d/in", b"x", mode=0o444),
            entry("sticky", mode=0o1777), entry("sg", mode=0o2755),
        ),
    )  # fmt: skip
    found = {name: stat.S_IMODE(os.lstat(tmp_path / "root" / name).st_mode) for name in modes}
    assert found == {
        "su": 0o755, "none": 0o600, "d": 0o700, "d/in": 0o644, "sticky": 0o1777, "sg": 0o755,
    }  # fmt: skip


def test_the_umask_does_not_show(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        unpacked(tmp_path / "root", layer(entry("a/f", b"x"), entry("x", b"x", mode=0o755)))
    finally:
        os.umask(before)
    root = tmp_path / "root"
    found = [stat.S_IMODE((root / name).stat().st_mode) for name in ("a", "a/f", "x", "tmp")]
    assert found == [0o755, 0o644, 0o755, 0o755]


def test_names_are_bytes(tmp_path: Path) -> None:
    odd = b"\xff\xfe\n name".decode("utf-8", "surrogateescape")
    unpacked(tmp_path / "root", layer(entry("näme", b"1"), entry(odd, b"2")))
    names = [os.fsencode(path.name) for path in (tmp_path / "root").iterdir()]
    assert b"\xff\xfe\n name" in names
    assert "näme".encode() in names


def test_a_root_without_them_gets_the_places_that_are_mounted_on(tmp_path: Path) -> None:
    root = tmp_path / "root"
    unpacked(
        root, layer(link("tmp", "/somewhere"), entry("etc/hosts", b"mine"), link("run", "run"))
    )
    assert (root / "somewhere").is_dir()  # a link's place, in the root
    assert (root / "etc/hosts").read_text() == "mine"
    assert (root / "proc").is_dir()
    assert (root / "run").is_symlink()  # it leads nowhere, and is left alone


def test_a_full_disk_is_said_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError, match=r"\d GB free") as caught:
        unpacked(tmp_path / "root", layer(entry("f", b"x")))
    assert "--no-verify" in caught.value.fix


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MEMBERS", 3)
    few, many = [entry(f"{n}", b"") for n in range(3)], [entry(f"{n}", b"") for n in range(4)]
    unpacked(tmp_path / "few", layer(*few))
    with pytest.raises(ImageUnreadableError, match="more than 3 files"):
        unpacked(tmp_path / "many", layer(*many[:2]), layer(*many[2:]))


def test_progress_counts_the_stored_bytes(tmp_path: Path) -> None:
    made = layer(entry("f", b"x" * 300_000), packed=True)
    told: list[int] = []
    (tmp_path / "root").mkdir()
    unpack([made], tmp_path / "root", told.append)
    assert sum(told) == made.blob.size


def test_reading_ahead_hands_on_pieces_errors_and_an_early_end() -> None:
    closed: list[bool] = []

    def pieces(*, fail: bool) -> Iterator[bytes]:
        try:
            for number in range(100):
                yield bytes([number])
            if fail:
                raise ValueError("late")
        finally:
            closed.append(True)

    def start(*, fail: bool = False) -> Any:
        return read_ahead(pieces(fail=fail))  # type: ignore[arg-type]

    assert b"".join(start()) == bytes(range(100))
    with pytest.raises(ValueError, match="late"):
        list(start(fail=True))
    early = start()
    assert next(early) == b"\0"
    early.close()
    assert closed == [True] * 3


# Against oracles -----------------------------------------------------------------------------

names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
plain = st.lists(
    st.one_of(
        st.tuples(st.just("file"), names),
        st.tuples(st.just("dir"), names),
        st.tuples(st.just("white"), names),
    ),
    max_size=8,
)


def model(layers: list[list[tuple[str, str]]]) -> dict[str, str]:
    """What an engine shows, by the words of the specification, for layers without links."""
    tree: dict[str, str] = {}

    def drop(name: str) -> None:
        for known in [k for k in tree if k == name or k.startswith(f"{name}/")]:
            del tree[known]

    for number, entries in enumerate(layers):
        made: set[str] = set()
        for kind, name in entries:
            if kind == "white":
                if name not in made:
                    drop(name)
                continue
            parents = ["/".join(name.split("/")[:n]) for n in range(1, name.count("/") + 1)]
            if any(tree.get(parent, "dir") != "dir" for parent in parents):
                raise ImageUnreadableError("a file is no directory", fix="")
            if kind == "file" or tree.get(name) != "dir":
                drop(name)
            tree.update(dict.fromkeys(parents, "dir"))
            tree[name] = "dir" if kind == "dir" else f"{number}"
            made |= {name, *parents}
    return tree


@settings(max_examples=150)
@given(layers=st.lists(plain, max_size=3))
def test_layers_without_links_give_what_the_specification_says(
    tmp_path_factory: pytest.TempPathFactory, layers: list[list[tuple[str, str]]]
) -> None:
    root = tmp_path_factory.mktemp("model") / "root"

    def member(kind: str, name: str, number: int) -> Any:
        if kind == "white":
            above, _, last = name.rpartition("/")
            return entry(f"{above}/.wh.{last}".lstrip("/"), b"")
        return entry(name, None if kind == "dir" else str(number).encode())

    real = [layer(*(member(k, n, i) for k, n in entries)) for i, entries in enumerate(layers)]
    try:
        expected = model(layers)
    except ImageUnreadableError:
        with pytest.raises(ImageUnreadableError):
            unpacked(root, *real)
    else:
        assert unpacked(root, *real) == expected


parts = st.sampled_from(["a", "b", "..", ".", "", "etc", ".wh.a", ".wh..wh..opq", "tmp"])
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
targets = st.one_of(paths, paths.map(lambda p: f"/{p}"), paths.map(lambda p: f"../../{p}"))


@settings(max_examples=300)
@given(entries=st.lists(st.tuples(kinds, paths, targets), max_size=10))
def test_hostile_layers_touch_nothing_outside(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[bytes, str, str]]
) -> None:
    place = tmp_path_factory.mktemp("hostile")
    for outside in ("a", "b", "etc"):
        (place / outside).mkdir()
        (place / outside / "a").write_text("mine")
    before = {p: (p.stat().st_ino, p.stat().st_nlink, p.stat().st_mode) for p in place.rglob("*")}
    made = []
    for kind, name, target in entries:
        content = b"x" if kind == tarfile.REGTYPE else None
        made.append(entry(name or "a", content, type=kind, linkname=target))
    (place / "in").mkdir()
    root = place / "in/root"
    try:
        unpacked(root, layer(*made))
    except Failure as failure:
        assert failure.fix  # noqa: PT017  it is allowed to refuse, and not asked to
    after = {
        p: (p.stat().st_ino, p.stat().st_nlink, p.stat().st_mode)
        for p in place.rglob("*")
        if not p.is_relative_to(place / "in")
    }
    assert after == before
    assert list((place / "in").iterdir()) == [root]
