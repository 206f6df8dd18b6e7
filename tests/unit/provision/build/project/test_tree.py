"""The files of a project that go into its image: no link leads out, no secret is in."""

from __future__ import annotations

import codecs
import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.layers.own_errors import ProjectFilesError
from provision.build.project.declaration import ProjectError
from provision.build.project.tree import in_words, notes_of, read_tree
from tests.kit.projects import project


def paths(root: Path) -> list[str]:
    return [one.path for one in read_tree(root).files]


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """Root reads everything; nobody else does."""
    codecs.lookup("utf-8-sig")  # the other user may not be able to import it
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_directory_that_cannot_be_entered_is_named_or_stays_out() -> None:
    with tempfile.TemporaryDirectory() as made:
        root = project(Path(made), {"main.py": "", "locked/a.py": "", "other/.keep": ""})
        root.chmod(0o755)
        (root / "locked").chmod(0)
        try:
            with (
                as_another_user(),
                pytest.raises(ProjectFilesError, match=r"locked cannot be read"),
            ):
                read_tree(root)
            project(root, {".dockerignore": "locked\n"})
            with as_another_user():
                assert "app/main.py" in paths(root)
        finally:
            (root / "locked").chmod(0o755)


def test_code_is_taken_and_what_no_image_needs_is_not(tmp_path: Path) -> None:
    files = dict.fromkeys(
        [
            "main.py", "pkg/a.py", "pkg/__pycache__/a.pyc", ".git/config", ".venv/x",
            "env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/history", "a.egg-info/PKG-INFO",
            "data/big.bin", ".env", "sub/.gitignore", "sub/x.log", ".dockerignore",
        ],
        "",
    )  # fmt: skip
    files |= {".gitignore": "data/\n", "sub/.gitignore": "*.log\n"}
    found = read_tree(project(tmp_path, files))
    assert [one.path for one in found.files] == [
        "app/.dockerignore",
        "app/.gitignore",
        "app/main.py",
        "app/pkg/a.py",
        "app/sub/.gitignore",
    ]
    assert found.secrets == (".env",)
    assert any("likely secrets: .env" in note for note in notes_of(found))


@pytest.mark.parametrize("name", [".gitignore", ".dockerignore"])
def test_patterns_may_be_in_any_encoding(tmp_path: Path, name: str) -> None:
    """Like the names of files they are bytes; git and Docker do not ask for UTF-8."""
    root = project(tmp_path, {"main.py": "", "logs/a": ""})
    (root / name).write_bytes(b"# caf\xe9\ncaf\xe9.txt\nlogs\n")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9.txt")).touch()
    assert [path for path in paths(root) if not path.endswith(name)] == ["app/main.py"]


def test_links_stay_links_and_none_leads_out(tmp_path: Path) -> None:
    root = project(tmp_path / "p", {"a/b.py": "", "c.py": ""})
    project(tmp_path, {"outside": "secret"})
    for name, target in {
        "in": "c.py", "a/up": "../c.py", "dir": "a", "loop": "loop", "gone": "nothing",
        "out": "../outside", "a/out": "../../outside", "far": "a/../../outside",
        "absolute": "/etc/passwd", "own": str(root / "c.py"), "odd": "c\n.py",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    found = read_tree(root)
    assert {one.path: one.target for one in found.links} == {
        "app/in": "c.py",
        "app/a/up": "../c.py",
        "app/dir": "a",
        "app/loop": "loop",
        "app/gone": "nothing",
    }
    assert found.unusable == ("a/out", "absolute", "far", "odd", "out", "own")
    assert [one.path for one in found.files] == ["app/a/b.py", "app/c.py"]


def test_what_is_no_file_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff.py")).touch()
    with socket.socket(socket.AF_UNIX) as found:
        monkeypatch.chdir(tmp_path)
        found.bind("socket")
        tree = read_tree(tmp_path)
    assert tree.files == ()
    assert len(tree.unusable) == 3


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(".wh.passwd", id="one file"),
        pytest.param("pkg/.wh..wh..opq", id="all of a directory"),
        pytest.param(".wh.pkg/a.py", id="a directory of this name"),
    ],
)
def test_a_name_that_deletes_files_of_the_image_is_refused(tmp_path: Path, name: str) -> None:
    root = project(tmp_path, {"main.py": "", name: ""})
    with pytest.raises(ProjectFilesError, match="would delete files of the image") as caught:
        read_tree(root)
    assert name in caught.value.message
    project(tmp_path, {".dockerignore": f"{name.partition('/')[0]}\n"})
    assert "app/main.py" in paths(root)


def test_patterns_are_read_in_the_project_alone(tmp_path: Path) -> None:
    root = project(tmp_path / "p", {"main.py": ""})
    project(tmp_path, {"other": "main.py\n"})
    (root / ".dockerignore").symlink_to("../other")
    with pytest.raises(ProjectError, match=r"\.dockerignore is outside of the project"):
        read_tree(root)


def test_modes_tell_programs_from_other_files_and_nothing_else(tmp_path: Path) -> None:
    project(tmp_path, {"a": "", "b": "", "c": ""})
    (tmp_path / "a").chmod(0o700)
    (tmp_path / "b").chmod(0o666)
    assert {one.path: one.runs for one in read_tree(tmp_path).files} == {
        "app/a": True,
        "app/b": False,
        "app/c": False,
    }


def test_what_a_build_writes_is_not_part_of_it(tmp_path: Path) -> None:
    project(tmp_path, {"main.py": "", "image.tar": "", "layout/index.json": ""})
    found = read_tree(tmp_path, leave_out=[tmp_path / "image.tar", tmp_path / "layout"])
    assert [one.path for one in found.files] == ["app/main.py"]


def test_a_project_that_is_too_large_is_refused_with_what_is_large(tmp_path: Path) -> None:
    project(tmp_path, {"main.py": "", "data/a": "x" * 900, "data/b": "x" * 900})
    with pytest.raises(ProjectFilesError, match=r"The largest: data") as caught:
        read_tree(tmp_path, most_bytes=1000)
    assert "echo data >> .dockerignore" in caught.value.fix


def test_deep_directories_are_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(1050):
        os.mkdir("d")  # noqa: PTH102  relative: the whole path may be too long
        os.chdir("d")
    try:
        assert read_tree(tmp_path).files == ()
    finally:  # what removes a test's directory works recursively
        for _ in range(1050):
            os.chdir("..")
            os.rmdir("d")  # noqa: PTH106


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    project(tmp_path, {"a": ""})
    (tmp_path / "a").chmod(0)
    with pytest.raises(ProjectFilesError, match="cannot be read"):
        read_tree(tmp_path)


def test_long_lists_are_cut() -> None:
    assert in_words([str(i) for i in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_an_empty_directory_is_an_empty_tree(tmp_path: Path) -> None:
    assert paths(tmp_path) == []
