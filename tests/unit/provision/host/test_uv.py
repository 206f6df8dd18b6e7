"""The indexes that the user names, as the real uv lists them; whose configuration counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.host.indexes import ExposedConfigError, pip_index
from provision.host.uv import builtin_index, plain_index, uv_indexes, uv_variables
from tests.kit.cases import cases

PYPI = builtin_index()
A, B = "https://a.example/simple", "https://b.example/simple"
SOMEBODY = 12345


@cases(
    "one other",
    ("a slash", "https://a.example/simple/", "https://a.example/simple"),
    ("a login", "https://me:word@a.example/simple", "https://a.example/simple"),
    ("capitals", "https://A.example/simple", "https://a.example/simple"),
    ("the usual port", "https://a.example:443/simple", "https://a.example/simple"),
    ("the usual port of http", "http://a.example:80", "http://a.example/"),
    ("an escape", "https://a.example/%7Eme", "https://a.example/~me"),
    ("a directory", "/wheels/", "file:///wheels"),
    ("a directory from the file", "../my wheels", "file:///etc/my%20wheels"),
)
def test_two_spellings_of_one_index(one: str, other: str) -> None:
    assert plain_index(one, Path("/etc/uv")) == plain_index(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.example/simple", "http://a.example/simple"),
        ("https://a.example/simple", "https://a.example:8443/simple"),
        ("https://a.example/simple", "https://a.example/simple?key=1"),
        ("https://a.example/Simple", "https://a.example/simple"),
        ("https://a.example@b.example/simple", "https://a.example/simple"),
    ],
)
def test_other_indexes_are_not_the_same(one: str, other: str) -> None:
    assert plain_index(one) != plain_index(other)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull}


@cases(
    "variables own default named",
    ("nothing", {}, "", PYPI, {PYPI}),
    ("a default one", {"UV_DEFAULT_INDEX": A}, "", A, {A}),
    ("... with a name", {"UV_DEFAULT_INDEX": f"corp={A}"}, "", A, {A}),
    ("... by the old variable", {"UV_INDEX_URL": A + "/"}, "", A + "/", {A}),
    ("two beside PyPI", {"UV_INDEX": f"{A} n={B}"}, "", PYPI, {PYPI, A, B}),
    ("one named twice", {"UV_INDEX": f"{A} {A}/"}, "", PYPI, {PYPI, A}),
    ("extra ones", {"UV_EXTRA_INDEX_URL": f"{A} {B}"}, "", PYPI, {PYPI, A, B}),
    ("a login", {"UV_INDEX": "https://me:word@a.example/simple"}, "", PYPI, {PYPI, A}),
    ("links", {"UV_FIND_LINKS": "/usr,/etc/"}, "", PYPI, {PYPI, "file:///usr", "file:///etc"}),
    ("the file's default", {}, f'index-url = "{A}"', A, {A}),
    ("the file's index", {}, f'[[index]]\nurl = "{A}"', PYPI, {PYPI, A}),
    ("the file's index as default", {}, f'[[index]]\nurl = "{A}"\ndefault = true', A, {A}),
    ("explicit", {}, f'[[index]]\nname = "x"\nurl = "{A}"\nexplicit = true', PYPI, {PYPI}),
    ("the file's pip section", {}, f'[pip]\nextra-index-url = ["{A}"]', PYPI, {PYPI, A}),
    ("its links", {}, 'find-links = ["./w"]', PYPI, {PYPI, "file://@HOME@/.config/uv/w"}),
    ("the variable before the file", {"UV_DEFAULT_INDEX": B}, f'index-url = "{A}"', B, {B}),
    ("none", {}, 'no-index = true\nfind-links = ["/usr"]', "", {"file:///usr"}),
    ("no file", {"UV_NO_CONFIG": "1"}, f'index-url = "{A}"', PYPI, {PYPI}),
)
def test_the_indexes_that_the_user_names(
    env: dict[str, str], variables: dict[str, str], own: str, default: str, named: set[str]
) -> None:
    file = Path(env["HOME"], ".config/uv/uv.toml")
    (file.parent / "w").mkdir(parents=True)
    file.write_text(own)
    found = uv_indexes({**env, **variables})
    assert found.default == default
    assert found.named == {name.replace("@HOME@", env["HOME"]) for name in named}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


def exposed(file: Path, how: str) -> None:
    """Let another user change a file."""
    if how == "another user's":
        os.chown(file, SOMEBODY, SOMEBODY)
    elif how == "another user's directory":
        os.chown(file.parent, SOMEBODY, SOMEBODY)
    else:
        file.chmod(0o666)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("another user's", marks=needs_root),
        pytest.param("another user's directory", marks=needs_root),
        "everybody's",
    ],
)
@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_configuration_that_another_user_could_change_is_refused(
    env: dict[str, str], tool: str, how: str, tmp_path: Path
) -> None:
    """As with HOME=/tmp, where anybody can create .config."""
    tmp_path.chmod(0o1777)
    del env["PIP_CONFIG_FILE"]
    file = tmp_path / ".config" / tool / ("uv.toml" if tool == "uv" else "pip.conf")
    file.parent.mkdir(parents=True)
    file.write_text(f'index-url = "{A}"' if tool == "uv" else f"[global]\nindex-url = {A}\n")
    ask = {"uv": uv_variables, "pip": pip_index}[tool]
    assert ask(env)  # while it is the user's own
    exposed(file, how)
    with pytest.raises(ExposedConfigError) as caught:
        ask(env)
    assert str(tmp_path / ".config") in caught.value.message
    variable = "UV_CONFIG_FILE" if tool == "uv" else "PIP_CONFIG_FILE"
    assert f"{variable}={file}" in caught.value.fix
    assert ask({**env, variable: str(file)})  # both fixes help
    ask({**env, **{"uv": {"UV_NO_CONFIG": "1"}, "pip": {variable: os.devnull}}[tool]})


def test_pip_is_asked_unless_it_is_to_read_no_file(env: dict[str, str], tmp_path: Path) -> None:
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\necho \"global.index-url='{A}'\"\n")
    pip.chmod(0o755)
    env["PATH"] = f"{tmp_path}:/bin:/usr/bin"
    assert pip_index(env) is None
    del env["PIP_CONFIG_FILE"]
    assert pip_index(env) == A


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"])
def test_a_place_that_the_user_names_counts_as_it_is(
    env: dict[str, str], variable: str, tmp_path: Path
) -> None:
    (tmp_path / "shared/uv").mkdir(parents=True)
    file = tmp_path / "shared/uv/uv.toml"
    file.write_text(f'index-url = "{A}"')
    exposed(file, "everybody's")
    assert uv_indexes({**env, variable: str(tmp_path / "shared")}).default == A


@needs_root
def test_root_may_use_the_home_directory_of_a_user(env: dict[str, str], tmp_path: Path) -> None:
    """As with a sudo that keeps HOME, or a home directory that is mounted into a container."""
    file = tmp_path / ".config/uv/uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'index-url = "{A}"')
    for place in (tmp_path, tmp_path / ".config", file.parent, file):
        os.chown(place, SOMEBODY, SOMEBODY)
    assert uv_indexes(env).default == A
