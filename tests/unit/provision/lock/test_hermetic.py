"""Where wheels come from is decided by the user's own configuration, never by a file around the
directory for temporary files: real uv, and a second index on this machine that nobody named.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provision.catalog.index.address import default_index
from provision.host.uv import uv_program
from provision.lock import solve
from provision.lock.lockfile import parse_lock
from provision.lock.origins import ForeignIndexError
from provision.lock.solve import run_uv
from provision.lock.sources import SourceView
from provision.lock.uv import WheelTarget
from provision.lock.uv_answers import sources_for_uv
from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.local_index import LocalIndex, pure, serving_uv
from tests.kit.programs import run_program

TARGET = WheelTarget("3.11", "x86_64", 36)
SOMEBODY = 12345
URL = "@URL@"
PROJECT = '[project]\nname = "theirs"\nversion = "1"\n'
ENTRY = f'[[tool.uv.index]]\nurl = "{URL}"\n'


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalIndex]:
    """The user's index; its one package is also in `theirs`."""
    (tmp_path / "home").mkdir()
    with serving_uv(monkeypatch, tmp_path / "home") as server:
        server.more = [pure("ours", "1")]
        for name in ("UV_NO_CONFIG", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.fixture
def theirs() -> Iterator[LocalIndex]:
    """An index that the user did not name, with a newer release."""
    with LocalIndex().serving() as server:
        server.more = [pure("ours", "6")]
        yield server


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, to which every user may write."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def leave(file: Path, text: str, theirs: LocalIndex) -> None:
    """Write what another user left there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace(URL, theirs.url("simple")))
    if os.geteuid() == 0:
        os.chown(file, SOMEBODY, SOMEBODY)


def locked(*, offline: bool = False) -> str:
    outcome, reason, text = run_uv(["ours"], TARGET, index=None, ca_bundle=None, offline=offline)
    assert outcome == "locked", (reason, text)
    return text


@pytest.mark.parametrize("above", [0, 1], ids=["in it", "above it"])
@cases(
    "name text",
    ("uv.toml with an index", "uv.toml", f'[[index]]\nurl = "{URL}"\n'),
    ("uv.toml with pip's index", "uv.toml", f'[pip]\nindex-url = "{URL}"\n'),
    ("malformed uv.toml", "uv.toml", "[[["),
    ("uv.toml that allows no index", "uv.toml", "no-index = true\n"),
    ("pyproject.toml with an index", "pyproject.toml", ENTRY),
    ("pyproject.toml of a project", "pyproject.toml", PROJECT + ENTRY),
    ("pyproject.toml of a workspace", "pyproject.toml",
     f'{PROJECT}[tool.uv.workspace]\nmembers = ["*", "*/*"]\n{ENTRY}'),
    ("malformed pyproject.toml", "pyproject.toml", PROJECT + "[[["),
    ("a pinned Python", ".python-version", "3.99\n"),
    ("a broken environment", ".venv/pyvenv.cfg", "home = /nonexistent\n"),
)  # fmt: skip
def test_files_around_the_temporary_directory_decide_nothing(
    index: LocalIndex, theirs: LocalIndex, shared: Path, above: int, name: str, text: str
) -> None:
    leave((shared, *shared.parents)[above] / name, text, theirs)
    assert 'version = "1"' in locked()
    assert theirs.asked == []
    assert index.asked


def test_the_python_that_uv_asks_outlives_a_cleaning_of_temporary_files(
    shared: Path, tmp_path: Path
) -> None:
    for name in ("first", "after"):
        made = tmp_path / name
        made.mkdir()
        given = sources_for_uv(made, SourceView())
        assert given is not None
        assert given.python.is_relative_to(shared)
        assert os.access(given.python, os.X_OK)
        shutil.rmtree(given.python.parent)


def _of_somebody(cache: Path) -> None:
    if os.geteuid() != 0:
        need.root()
    os.chown(cache, SOMEBODY, SOMEBODY)
    cache.chmod(0o777)


@cases(
    "change named used",
    ("the user's own", lambda _: None, False, True),
    ("of the user's group", lambda cache: cache.chmod(0o775), False, True),
    ("open to all", lambda cache: cache.chmod(0o777), False, False),
    ("another user's", _of_somebody, False, False),
    ("a variable names it", _of_somebody, True, True),
)
def test_a_cache_that_others_fill_decides_nothing(
    index: LocalIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    named: bool,  # noqa: FBT001
    used: bool,  # noqa: FBT001
) -> None:
    cache = tmp_path / "caches" / "uv"
    cache.mkdir(parents=True)
    change(cache)
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    if named:
        monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    locked()
    assert index.asked
    assert bool(list(cache.iterdir())) is used


@pytest.mark.parametrize("name", ["UV_PROJECT", "UV_WORKING_DIR"])
@pytest.mark.usefixtures("index")
def test_a_project_that_uv_is_set_to_decides_nothing(
    theirs: LocalIndex, shared: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(shared / "pyproject.toml", PROJECT + ENTRY, theirs)
    monkeypatch.setenv(name, str(shared))
    assert 'version = "1"' in locked()
    assert theirs.asked == []


@cases(
    "variables file",
    ("the user's file", {}, "home/.config/uv/uv.toml"),
    ("... moved", {"XDG_CONFIG_HOME": "{}/mine"}, "mine/uv/uv.toml"),
    ("the system's file", {"XDG_CONFIG_DIRS": "{}/etc"}, "etc/uv/uv.toml"),
    ("a named file", {"UV_CONFIG_FILE": "{}/corp.toml"}, "corp.toml"),
    ("a file named from here", {"UV_CONFIG_FILE": "corp.toml"}, "corp.toml"),
)
@pytest.mark.usefixtures("shared")
def test_the_users_own_configuration_counts(
    index: LocalIndex,
    tmp_path: Path,
    variables: dict[str, str],
    file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f'[[index]]\nurl = "{index.url("simple")}"\ndefault = true\n')
    assert 'version = "1"' in locked()


@pytest.mark.usefixtures("index", "shared")
def test_a_malformed_file_of_the_users_own_is_an_error(tmp_path: Path) -> None:
    own = tmp_path / "home/.config/uv/uv.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[[[")
    _, reason, _ = run_uv(["ours"], TARGET, index=None, ca_bundle=None, offline=False)
    assert str(own) in reason


def test_the_catalogs_index_is_not_that_of_the_working_directory(
    theirs: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path / "uv.toml", f'index-url = "{URL}"\n', theirs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV_NO_CONFIG", raising=False)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "PIP_CONFIG_FILE")}
    assert default_index(None, env).name == "PyPI"


def test_the_lock_names_the_index_of_each_wheel(index: LocalIndex) -> None:
    assert [package.index for package in parse_lock(locked()).packages] == [index.url("simple")]


@pytest.mark.parametrize("setting", ["UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX"])
def test_an_index_of_the_environment_is_no_stranger(
    index: LocalIndex, theirs: LocalIndex, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index.port
    monkeypatch.setenv(setting, f"corp={theirs.url('simple', 'ci:word@')}")
    if setting == "UV_EXTRA_INDEX_URL":
        monkeypatch.setenv(setting, theirs.url("simple"))
    assert 'version = "6"' in locked()


def test_wheels_of_a_directory_are_locked(
    index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, data = pure("ours", "7")
    (tmp_path / "my wheels").mkdir()
    (tmp_path / "my wheels" / name).write_bytes(data)
    assert index.port
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "my wheels"))
    [package] = parse_lock(locked()).packages
    assert package.index == (tmp_path / "my wheels").as_uri()


def test_wheels_of_a_page_are_locked_and_again_without_a_network(
    index: LocalIndex, theirs: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = theirs.url("simple", "ci:word@") + "ours/"
    assert index.port
    monkeypatch.setenv("UV_FIND_LINKS", page)
    [package] = parse_lock(locked()).packages
    assert package.index == theirs.url("simple") + "ours/"
    asked = len(theirs.asked)
    assert parse_lock(locked(offline=True)).packages[0].index == package.index
    assert len(theirs.asked) == asked


def test_how_the_user_likes_uv_to_write_is_no_obstacle(index: LocalIndex, tmp_path: Path) -> None:
    index.more = [pure("ours", "1", extras=["more"])]
    own = tmp_path / "home/.config/uv/uv.toml"
    own.parent.mkdir(parents=True)
    lines = ("no-strip-extras = true", "no-strip-markers = true", "generate-hashes = true")
    more = ("no-annotate = true", 'annotation-style = "line"', "emit-index-url = true")
    own.write_text("\n".join(["[pip]", *lines, *more, "emit-find-links = true"]))
    outcome, reason, text = run_uv(
        ["ours[more]"], TARGET, index=None, ca_bundle=None, offline=False
    )
    assert outcome == "locked", (reason, text)
    assert parse_lock(text).packages[0].index == index.url("simple")


def test_a_cache_that_may_not_be_used_is_no_obstacle(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_NO_CACHE", "1")
    assert f'index = "{index.url("simple")}"' in locked()


@pytest.mark.usefixtures("index")
def test_an_index_that_reaches_uv_in_another_way_is_refused(
    theirs: LocalIndex, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if uv read one more file, of which this program does not know."""

    @contextlib.contextmanager
    def leaky() -> Iterator[Path]:
        yield shared

    leave(shared / "uv.toml", f'[[index]]\nurl = "{URL}"\n', theirs)
    monkeypatch.setattr(solve, "uv_directory", leaky)
    with pytest.raises(ForeignIndexError) as caught:
        locked()
    assert "ours 6" in caught.value.message
    assert theirs.url("simple") in caught.value.message


def test_no_configuration_above_a_checkout_counts_for_its_own_locks(
    theirs: LocalIndex, tmp_path: Path
) -> None:
    """As `./run relock` starts uv."""
    leave(tmp_path / "uv.toml", f'index-url = "{URL}"\n', theirs)
    (tmp_path / "checkout").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "checkout")
    done = run_program(
        [uv_program(), "pip", "compile", "-", "--offline", "--emit-index-url", "--no-header"],
        given="",
        cwd=tmp_path / "checkout",
        env={name: value for name, value in os.environ.items() if name != "UV_NO_CONFIG"},
        check=True,
    )
    assert theirs.url("simple") not in done.stdout
    assert "--index-url" in done.stdout
