"""An image whose last layers alone are others than the kept one's gets only these unpacked."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from images.engines.sandbox import roots
from images.engines.sandbox.additions import remove_additions
from images.engines.sandbox.roots import Roots, lower_layers
from images.engines.sandbox.tree import RootTree
from images.engines.sandbox.unpack import unpack
from images.oci.errors import ImageUnreadableError
from images.oci.sources import Image, ImageLayer
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.sandbox_images import entry, image, layer, link

KILLED = """
import os, sys
from pathlib import Path
from images.engines.sandbox.roots import Roots
from tests.unit.images.engines.sandbox.test_exchange import NEW
Roots(Path(sys.argv[1])).use(NEW, lambda _: os._exit(9))
"""

LOWER = layer(
    entry("lib"), entry("lib/f", b"lower"), entry("bin", mode=0o755), link("l", "lib"),
    entry("tight", mode=0o700),
)  # fmt: skip


def project(line: str, *more: Any) -> ImageLayer:
    """A layer as a project's."""
    files = (
        entry("app"),
        entry("app/main.py", line.encode()),
        entry("lib"),
        entry("lib/a.pth", b"/app"),
    )
    return layer(*files, *more)


OLD = image([LOWER, project("old", entry("app/gone.py", b"x"))], {"Cmd": ["old"]})
NEW = image([LOWER, project("new")], {"Cmd": ["new"]})
SIZE = NEW.layers[-1].blob.size


@cases(
    "last expected",
    ("a new directory is one path", project("x"), ("app", "lib/a.pth")),
    ("its own directory may change", layer(entry("app/d/f", b"x"), entry("app", mode=0o700)),
     ("app",)),
    ("links", layer(link("lib/s", "/nowhere"), link("h", "lib/f", hard=True)), ("h", "lib/s")),
    ("directories that are there and stay as they are",
     layer(entry("lib", mode=0o755), entry("tight", mode=0o500)), ()),
    ("what is left out", layer(entry("pipe", type=tarfile.FIFOTYPE)), ()),
    ("another mode of a directory", layer(entry("tight", mode=0o755)), None),
    ("a file in place of another", layer(entry("lib/f", b"x")), None),
    ("a directory in place of a file", layer(entry("lib/f")), None),
    ("a file in place of a directory", layer(entry("bin", b"x")), None),
    ("a link in place of a directory", layer(link("bin", "lib")), None),
    ("a whiteout", layer(entry("lib/.wh.f", b"")), None),
    ("an opaque directory", layer(entry("lib/.wh..wh..opq", b"")), None),
    ("a way through a link", layer(entry("l/new", b"x")), None),
    ("a way through its own link", layer(link("app/l", "/lib"), entry("app/l/new", b"x")), None),
    ("a file that is there twice", layer(entry("app/f", b"1"), entry("app/f", b"2")), None),
    ("a name that is no text", layer(entry(b"\xff".decode("utf-8", "surrogateescape"), b"x")),
     None),
)  # fmt: skip
def test_what_a_layer_adds(
    tmp_path: Path, last: ImageLayer, expected: tuple[str, ...] | None
) -> None:
    found = unpack([LOWER, last], tmp_path, lambda _: None)
    ours = {"dev", "proc", "sys", "tmp", "run", "var", "root", "usr", "etc"}  # mount points
    assert expected == (found if found is None else tuple(p for p in found if p not in ours))


def test_mount_points_in_the_layers_own_directories_are_its_own(tmp_path: Path) -> None:
    found = unpack([LOWER, layer(entry("usr/x", b""))], tmp_path, lambda _: None)
    assert found is not None
    assert {"usr", "etc"} <= set(found)
    assert not {"usr/x", "usr/local/nvidia", "etc/hosts"} & set(found)


@cases(
    "about ids expected",
    ("another last layer", {}, ["a", "b", "d"], 2),
    ("no last layer", {}, ["a", "b"], 2),
    ("more layers", {}, ["a", "b", "d", "e"], 2),
    ("another lower layer", {}, ["a", "c", "d"], 0),
    ("fewer layers", {}, ["a"], 0),
    ("a last layer that cannot be removed", {"added": None}, ["a", "b", "d"], 0),
    ("from another boot", {"boot": "before"}, ["a", "b", "d"], 0),
    ("nothing below", {"below": []}, ["a", "b", "d"], 0),
    ("layers were not written down", {"below": None}, ["a", "b", "d"], 0),
)
def test_which_layers_of_a_kept_root_an_image_has(
    about: dict[str, Any], ids: list[str], expected: int
) -> None:
    kept = {"boot": roots.boot_id(), "below": ["a", "b"], "added": ["app"], **about}
    assert lower_layers(kept, ids) == expected


def use(directory: Path, wanted: Image) -> int:
    """Use an image once; returns how many bytes of its layers were read."""
    read: list[int] = []
    Roots(directory).use(wanted, read.append).release()
    return sum(read)


def tree_of(directory: Path) -> dict[str, tuple[Any, ...]]:
    """All of a tree: modes, contents, links, and which names are one file."""
    found: dict[str, tuple[Any, ...]] = {}
    names: dict[int, str] = {}
    for path in sorted(directory.rglob("*")):
        name, status = str(path.relative_to(directory)), path.lstat()
        content: Any = None
        if path.is_symlink():
            content = path.readlink()
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        same = names.setdefault(status.st_ino, name)
        found[name] = (oct(status.st_mode), content, same)
    return found


def kept_tree(directory: Path) -> dict[str, tuple[Any, ...]]:
    (root,) = (path for path in directory.iterdir() if path.is_dir())
    return tree_of(root / "root")


def whole(directory: Path, wanted: Image) -> dict[str, tuple[Any, ...]]:
    use(directory, wanted)
    return kept_tree(directory)


@cases(
    "old new read",
    ("a changed and a removed file", OLD, NEW, SIZE),
    ("no project any more", OLD, image([LOWER]), 0),
    ("the old layer replaced a file", image([LOWER, layer(entry("lib/f", b"x"))]), NEW, None),
    ("another lower layer", OLD, image([layer(entry("x", b"")), NEW.layers[1]]), None),
)
def test_only_the_other_layers_are_read(
    tmp_path: Path, old: Image, new: Image, read: int | None
) -> None:
    use(tmp_path / "a", old)
    expected = sum(one.blob.size for one in new.layers) if read is None else read
    assert use(tmp_path / "a", new) == expected
    assert kept_tree(tmp_path / "a") == whole(tmp_path / "b", new)


def test_it_can_be_repeated_and_undone(tmp_path: Path) -> None:
    images = [OLD, NEW, image([LOWER]), NEW, image([*NEW.layers, project("more")]), OLD]
    for number, wanted in enumerate(images):
        use(tmp_path / "a", wanted)
        assert kept_tree(tmp_path / "a") == whole(tmp_path / str(number), wanted), number


def test_what_was_written_beside_the_old_code_is_gone(tmp_path: Path) -> None:
    root = Roots(tmp_path).use(OLD, lambda _: None)
    (root.tree / "app/__pycache__").mkdir()
    (root.tree / "app/__pycache__/main.pyc").write_text("old")
    (root.tree / "app/main.py").write_text("mine")
    (root.place / "enter").write_text("the old image's")
    (root.place / "enter.d").mkdir()
    root.release()
    root = Roots(tmp_path).use(NEW, lambda _: None)
    root.release()
    assert sorted(path.name for path in (root.tree / "app").iterdir()) == ["main.py"]
    assert (root.tree / "app/main.py").read_text() == "new"
    assert sorted(path.name for path in root.place.iterdir()) == ["about.json", "root"]
    assert Roots(tmp_path).use(NEW, lambda _: None).config == NEW.config


OTHERS = layer(entry("lib/f", b"other"), entry("lib", mode=0o700), entry("app/main.py", b"new"))


@pytest.mark.parametrize("new", [NEW, image([LOWER, OTHERS])])
def test_one_in_use_is_left_alone_and_its_files_are_shared(tmp_path: Path, new: Image) -> None:
    root = Roots(tmp_path / "a").use(OLD, lambda _: None)
    before, shared = tree_of(root.tree), (root.tree / "lib/f").stat().st_ino
    read: list[int] = []
    other = Roots(tmp_path / "a").use(new, read.append)
    assert sum(read) == new.layers[-1].blob.size
    assert ((other.tree / "lib/f").stat().st_ino == shared) is (new is NEW)
    assert tree_of(root.tree) == before
    assert tree_of(other.tree) == whole(tmp_path / "b", new)
    root.release()
    other.release()


def test_where_files_cannot_be_shared_it_is_unpacked_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError

    root = Roots(tmp_path).use(OLD, lambda _: None)
    monkeypatch.setattr(os, "link", denied)
    assert use(tmp_path, NEW) > SIZE
    names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {one.image_id.removeprefix("sha256:") for one in (OLD, NEW)}
    root.release()


def test_code_that_cannot_be_removed_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError

    use(tmp_path / "a", OLD)
    monkeypatch.setattr(roots, "remove_additions", denied)
    assert use(tmp_path / "a", NEW) > SIZE
    assert kept_tree(tmp_path / "a") == whole(tmp_path / "b", NEW)


@pytest.mark.parametrize("step", ["removing", "unpacking"])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    use(tmp_path, OLD)
    if step == "removing":
        monkeypatch.setattr(RootTree, "remove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Roots(tmp_path).use(NEW, interrupt)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_one_killed_half_way_is_used_by_nobody(tmp_path: Path) -> None:
    use(tmp_path / "a", OLD)
    argv = [sys.executable, "-c", KILLED, str(tmp_path / "a")]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == 9
    (left,) = (path for path in (tmp_path / "a").iterdir() if path.is_dir())
    assert left.name.startswith(".work-")
    assert use(tmp_path / "a", NEW) > SIZE
    assert kept_tree(tmp_path / "a") == whole(tmp_path / "b", NEW)


def layers(names: Sequence[str], *more: Any) -> st.SearchStrategy[ImageLayer]:
    """Layers with some of these names, as files, directories and links."""
    name, mode = st.sampled_from(names), st.sampled_from([0o755, 0o700])
    members = st.one_of(
        st.builds(lambda n, m, c: entry(n, c, mode=m), name, mode, st.sampled_from([b"1", b"2"])),
        st.builds(lambda n, m: entry(n, mode=m), name, mode),
        st.builds(link, name, name),
        st.builds(lambda n: link(n, "l", hard=True), name),
        *more,
    )
    return st.lists(members, max_size=5).map(lambda found: layer(*found))


WHITEOUTS = st.sampled_from(["a/.wh.b", ".wh.d", "d/.wh..wh..opq"]).map(lambda n: entry(n, b""))
MINE = ["app", "app/f", "app/d", "app/d/g", "a/new", "d/e", "var/x", "etc/hosts", "tmp"]
THEIRS = ["a", "a/b", "d", "d/f", "d/f/g", "l", "l/new"]
BASES = [
    layer(entry("a/b", b"0"), entry("d", mode=0o700), link("l", "d"), entry("d/f", b"0")),
    layer(entry("a"), entry("b", b"0"), link("l", "b", hard=True), entry("tmp", mode=0o700)),
]


@settings(max_examples=60)
@given(
    base=st.sampled_from(BASES),
    old=st.one_of(layers(MINE), layers(MINE), layers(MINE + THEIRS)),
    new=st.lists(layers(MINE + THEIRS, WHITEOUTS), max_size=2),
)
def test_an_exchanged_tree_is_one_that_was_unpacked_whole(
    tmp_path_factory: pytest.TempPathFactory,
    base: ImageLayer,
    old: ImageLayer,
    new: Sequence[ImageLayer],
) -> None:
    place = tmp_path_factory.mktemp("exchange")
    for name in ("whole", "exchanged"):
        (place / name).mkdir()
    try:
        unpack([base, *new], place / "whole", lambda _: None)
        added = unpack([base, old], place / "exchanged", lambda _: None)
    except ImageUnreadableError:
        added = None
    assume(added is not None)
    remove_additions(place / "exchanged", added or ())
    unpack(new, place / "exchanged", lambda _: None)
    assert tree_of(place / "exchanged") == tree_of(place / "whole")
