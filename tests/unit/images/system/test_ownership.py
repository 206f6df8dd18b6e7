"""Whether a user other than the owner and root can change a file."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from images.system.ownership import another_owner, changed_by_others, written_by_others
from tests.kit.cases import cases

ME, OTHER, ADMINS = 4711, 4712, 90


def _group(name: str, *members: str) -> SimpleNamespace:
    return SimpleNamespace(gr_name=name, gr_mem=list(members))


GROUPS = {
    0: _group("root"),
    ME: _group("ada"),
    100: _group("users"),
    200: _group("ada", "ada"),
    300: _group("ada", "ada", "bob"),
    ADMINS: _group("staff", "ada"),
}


@pytest.fixture(autouse=True)
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del tmp_path  # pytest asks for the user's name as it creates it

    def user(uid: int) -> SimpleNamespace:
        return SimpleNamespace(pw_name={ME: "ada", 0: "root"}[uid])

    monkeypatch.setattr(pwd, "getpwuid", user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: GROUPS[gid])


@cases(
    "kind mode uid gid by_others",
    ("a plain file", stat.S_IFREG, 0o644, ME, 100, False),
    ("everybody may write the file", stat.S_IFREG, 0o646, ME, ME, True),
    ("the user's private group", stat.S_IFREG, 0o664, ME, ME, False),
    ("a private group that lists its user", stat.S_IFREG, 0o664, ME, 200, False),
    ("a private group with a guest", stat.S_IFREG, 0o664, ME, 300, True),
    ("the group of all users", stat.S_IFREG, 0o664, ME, 100, True),
    ("a group with another name", stat.S_IFREG, 0o664, ME, ADMINS, True),
    ("root's group", stat.S_IFREG, 0o664, ME, 0, False),
    ("a container's nameless user", stat.S_IFREG, 0o664, 50000, 50000, False),
    ("another nameless group", stat.S_IFREG, 0o664, 50000, 50001, True),
    ("a plain directory", stat.S_IFDIR, 0o755, ME, 100, False),
    ("a directory of everybody", stat.S_IFDIR, 0o777, ME, ME, True),
    ("/tmp: only owners remove files", stat.S_IFDIR, 0o1777, 0, 0, False),
    ("a directory of a project's group", stat.S_IFDIR, 0o2775, ME, 100, True),
    ("the sticky bit of a file is nothing", stat.S_IFREG, 0o1666, ME, ME, True),
    ("a link has no mode", stat.S_IFLNK, 0o777, ME, ME, False),
)
def test_what_a_mode_lets_others_do(
    kind: int,
    mode: int,
    uid: int,
    gid: int,
    by_others: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    status = os.stat_result((kind | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))
    assert written_by_others(tmp_path / "absent", status) is by_others


def test_an_access_list_makes_a_private_group_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.stat_result((stat.S_IFREG | 0o664, 1, 1, 1, ME, ME, 0, 0, 0, 0))
    monkeypatch.setattr(os, "getxattr", lambda *_, **__: b"\2\0\0\0")
    assert written_by_others(tmp_path, status)


def _state(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "state" / "keys" / "key.pem"
    file.parent.mkdir(parents=True)
    file.write_text("key")
    for one in (file.parent, *file.parent.parents[:2]):
        one.chmod(0o755)
    file.chmod(0o644)
    return file


def _link(file: Path) -> None:
    """state is a link to a directory in one that everybody may write to."""
    state, open_place = file.parents[1], file.parents[3] / "open"
    open_place.mkdir()
    state.rename(open_place / "state")
    state.symlink_to("../open/state")
    open_place.chmod(0o777)


def _closed(file: Path) -> None:
    """As on clusters whose umask lets a project's group write: only `state` keeps it out."""
    file.chmod(0o666)
    file.parent.chmod(0o777)
    file.parents[1].chmod(0o700)


@cases(
    "change named",
    ("all of it is the user's", lambda _: None, ""),
    ("the file is everybody's", lambda file: file.chmod(0o666), "key.pem"),
    ("the directory is", lambda file: file.parent.chmod(0o777), "keys"),
    ("a directory above is", lambda file: file.parents[1].chmod(0o777), "state"),
    ("the home itself is", lambda file: file.parents[2].chmod(0o777), "home"),
    ("one above the home is", lambda file: file.parents[3].chmod(0o777), ""),
    ("a sticky directory", lambda file: file.parents[1].chmod(0o1777), ""),
    ("nobody else may enter a directory above", _closed, ""),
    ("a link leads through a directory of everybody", _link, "open"),
)
def test_directories_up_to_the_home_count(
    tmp_path: Path, change: Callable[[Path], None], named: str
) -> None:
    file = _state(tmp_path)
    change(file)
    found = changed_by_others(file, home=tmp_path / "home")
    assert (named in found) if named else found == ""


def test_outside_the_home_all_directories_count(tmp_path: Path) -> None:
    file = _state(tmp_path)
    (tmp_path / "home").chmod(0o777)
    found = changed_by_others(file, home=tmp_path / "ada")
    assert found == f"{tmp_path / 'home'} can be changed by other users (mode 0777)"


def test_a_file_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _state(tmp_path)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    said = f"{tmp_path / 'home'} belongs to user {owner}, and you are user {owner + 1}"
    assert another_owner(tmp_path / "home", file.stat()) == said
    assert changed_by_others(file, home=tmp_path / "home") == ("" if owner == 0 else said)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match=r"symbolic links"):
        changed_by_others(tmp_path / "a" / "file", home=tmp_path)


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        changed_by_others(tmp_path / "absent", home=tmp_path)
