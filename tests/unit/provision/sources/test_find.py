"""Which file of a directory declares its packages, and what is said about the others."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.build.project.code import read_code
from provision.build.project.request import request_of
from provision.catalog.loading import load
from provision.errors import BadInputError
from provision.model.plan import Request
from provision.sources.declaration import allowed_by, pythons_of
from provision.sources.errors import ProjectError
from provision.sources.find import MOST_PACKAGES, ProjectPath, project_path, read_project
from tests.kit.cases import cases
from tests.kit.projects import project

OF_UV = """\
version = 1
requires-python = ">=3.10"
[[package]]
name = "app"
source = { virtual = "." }
dependencies = [{ name = "torch" }]
[[package]]
name = "torch"
version = "2.5.1"
source = { registry = "https://i.example/simple" }
"""
OF_OTHERS = 'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "2.4.0"\n'
OURS = f"{OF_OTHERS}[tool.gpu-provision]\nschema = 1\n"
STANDARD = "[project]\nname = 'a'\nrequires-python = '>=3.11'\ndependencies = ['torch==2.2.0']\n"
CONDA = "dependencies: [pytorch=2.1.0]\n"
OF_CONDA = f"channels: [a]\n{CONDA}"
PIXI = "[pypi-dependencies]\ntorch = '==2.0.1'\n"
ALL = {
    "pylock.toml": OF_OTHERS, "uv.lock": OF_UV, "requirements.txt": "torch==2.3.0",
    "pyproject.toml": STANDARD, "environment.yml": CONDA, "pixi.toml": PIXI,
}  # fmt: skip


@cases(
    "files source release",
    ("everything at once", [*ALL], "pylock.toml", "2.4.0"),
    ("without a pylock.toml", [*ALL][1:], "uv.lock", "2.5.1"),
    ("without a lock", [*ALL][2:], "requirements.txt", "2.3.0"),
    ("without requirements", [*ALL][3:], "pyproject.toml", "2.2.0"),
    ("conda and pixi", [*ALL][4:], "environment.yml", "2.1.0"),
    ("pixi alone", [*ALL][5:], "pixi.toml", "2.0.1"),
)
def test_the_most_authoritative_file_is_read(
    files: list[str], source: str, release: str, tmp_path: Path
) -> None:
    found = read_project(project(tmp_path, {name: ALL[name] for name in files}))
    assert found.declared.source == source
    assert release in {
        one.text.partition("==")[2] for one in found.declared.packages if one.name == "torch"
    }
    others = [name for name in files if name not in {source, "pyproject.toml"}]
    assert all(any(name in note for note in found.notes) for name in others)


def test_our_own_lock_is_said_and_not_read_again(tmp_path: Path) -> None:
    files = {"pylock.toml": OURS, "requirements.txt": "torch"}
    found = read_project(project(tmp_path, files))
    assert found.declared.source == "requirements.txt"
    assert any("--lock pylock.toml" in note for note in found.notes)


def test_a_pyproject_without_dependencies_gives_way_to_conda(tmp_path: Path) -> None:
    files = {"pyproject.toml": "[project]\nname = 'a'\n", "environment.yml": CONDA}
    assert read_project(project(tmp_path, files)).declared.source == "environment.yml"
    (tmp_path / "environment.yml").unlink()
    assert read_project(tmp_path).declared.packages == ()


def test_an_editable_install_of_the_project_brings_its_own_requirements(tmp_path: Path) -> None:
    files = {"requirements.txt": "numpy==1.26.4\n-e .\n", "pyproject.toml": STANDARD}
    found = read_project(project(tmp_path, files)).declared
    assert [one.where for one in found.packages] == [
        "requirements.txt, line 1",
        "pyproject.toml, line 4",
    ]
    assert found.python is not None
    assert found.python.where == "pyproject.toml, line 3"


def test_a_lock_of_another_tool_is_said_with_the_command_that_exports_it(tmp_path: Path) -> None:
    files = {"pyproject.toml": "[tool.poetry.dependencies]\ntorch = '^2.5'\n", "poetry.lock": ""}
    notes = read_project(project(tmp_path, files)).notes
    assert any("poetry export" in note for note in notes)


@cases(
    "text python",
    ("a minor version", "3.11\n", "3.11"),
    ("the first of several", "# why\n\n3.11.4\n3.10\n", "3.11"),
    ("as uv writes it in full", "cpython-3.12.1-linux-x86_64-gnu", "3.12"),
    ("another Python", "pypy3.10", None),
    ("a word", "system", None),
    ("nothing", "", None),
)
def test_the_python_of_a_checkout(text: str, python: str | None, tmp_path: Path) -> None:
    found = read_project(project(tmp_path, {"requirements.txt": "torch", ".python-version": text}))
    assert (found.python.text if found.python else None) == python


@cases(
    "specifier first last",
    ("a range", ">=3.10,<3.12", "3.10", "3.11"),
    ("a bound within a minor version", ">=3.10.4,<3.11", "3.10", "3.10"),
    ("a wildcard", "==3.11.*", "3.11", "3.11"),
    ("a patch release", "==3.11.4", "3.11", "3.11"),
    ("a compatible release", "~=3.11", "3.11", "3.15"),
    ("an upper bound", "<=3.11", "3.6", "3.11"),
)
def test_the_pythons_of_a_range(specifier: str, first: str, last: str) -> None:
    found = allowed_by(specifier, [f"3.{minor}" for minor in range(6, 16)])
    assert (found[0], found[-1]) == (first, last)


def test_the_known_pythons_are_those_of_the_catalog() -> None:
    catalog = load()
    assert pythons_of(catalog)[-1] == catalog.pythons[-1].python


@cases(
    "files fix",
    ("an empty directory", {}, "--with"),
    ("a setup.py without setup()", {"setup.py": "print()"}, "--with"),
    ("a folder of lists", {"requirements/prod.txt": ""}, "provision lock requirements/prod.txt"),
    ("another name", {"requirements-gpu.txt": "six", "README.txt": "six"},
     "provision lock requirements-gpu.txt"),
    ("a project one folder below", {"api/pyproject.toml": STANDARD, "web/package.json": "{}"},
     "provision lock api"),
    ("two environments", {"environment-a.yml": OF_CONDA, "environment-b.yml": OF_CONDA},
     "provision lock environment-a.yml or provision lock environment-b.yml"),
    ("only a tool's settings", {"pyproject.toml": "[tool.ruff]"}, "--with"),
    ("a script", {"build.sh": "make", "install.sh": "pip install six"}, "install.sh"),
    ("only our own lock", {"pylock.toml": OURS}, "--with"),
)  # fmt: skip
def test_a_directory_that_declares_nothing_is_refused(
    files: dict[str, str], fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProjectError, match="declares no packages") as caught:
        read_project(project(tmp_path, files))
    assert fix in caught.value.fix
    for command in re.findall(r"provision lock (\S+)", caught.value.fix):
        if not files[command if command in files else f"{command}/pyproject.toml"]:
            continue  # an empty list declares nothing by any name
        assert read_project(*project_path(command)).declared.packages


@cases(
    "name text",
    ("conda.yaml", "conda.yaml", "channels: [x]\ndependencies: [pytorch=2.1]\n"),
    ("env.yml", "env.yml", "dependencies: [pytorch=2.1]\n"),
    ("one by its content", "environment-train.yml", "channels: [x]\ndependencies: [pytorch=2.1]\n"),
    ("setup.py", "setup.py",
     "import setuptools\nsetuptools.setup(install_requires=['torch==2.1'])\n"),
    ("setup.cfg", "setup.cfg", "[options]\ninstall_requires =\n  torch==2.1\n"),
)  # fmt: skip
def test_a_file_of_another_name_is_found(name: str, text: str, tmp_path: Path) -> None:
    found = read_project(project(tmp_path, {name: text, "compose.yml": "services: {a: {}}\n"}))
    assert found.declared.source == name
    assert [one.name for one in found.declared.packages] == ["torch"]


@cases(
    "named root sources",
    ("by name", "requirements-gpu.txt", ".", ["requirements-gpu.txt, line 1"]),
    ("a folder", "api", "api", ["requirements.txt, line 1"]),
    ("its file", "api/requirements.txt", "api", ["requirements.txt, line 1"]),
    ("in a folder of lists", "requirements/prod.txt", ".",
     ["requirements/base.txt, line 1", "requirements/prod.txt, line 2"]),
    ("an environment", "deploy.yaml", ".", ["deploy.yaml, line 1"]),
)  # fmt: skip
def test_a_file_is_read_by_its_name(
    named: str, root: str, sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "requirements.txt": "idna",
        "requirements-gpu.txt": "six",
        "requirements/prod.txt": "-r base.txt\nsix\n",
        "requirements/base.txt": "attrs",
        "api/requirements.txt": "six",
        "deploy.yaml": "dependencies: [{pip: [six]}]",
    }
    monkeypatch.chdir(project(tmp_path, files))
    place = project_path(named)
    assert place.root == tmp_path / root
    assert [one.where for one in read_project(*place).declared.packages] == sources


@cases(
    "name text words",
    ("compose", "compose.yml", "services: {a: {}}", "declares no packages"),
    ("code", "main.py", "", "is not a file that declares packages"),
    ("an empty list", "notes.txt", "", "declares no packages"),
)
def test_a_named_file_that_declares_nothing_is_refused(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    place = project_path(str(project(tmp_path, {name: text}) / name))
    assert place == ProjectPath(tmp_path, tmp_path / name)
    with pytest.raises(ProjectError, match=words) as caught:
        read_project(*place)
    assert "requirements file" in caught.value.fix


@cases(
    "name words",
    ("a missing one", "none", "There is no file or directory"),
    ("a device", "/dev/null", "neither a directory nor a regular file"),
    ("a name that is too long", "a" * 5000, "There is no file or directory"),
    ("a NUL", "a\0b", "There is no file or directory"),
)
def test_what_is_no_project_is_refused(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project(tmp_path, {"file": ""}))
    with pytest.raises(ProjectError, match=words):
        project_path(name)


def test_a_lock_does_not_replace_the_file_that_declares(tmp_path: Path) -> None:
    found = read_project(project(tmp_path, {"pylock.toml": OF_OTHERS}))
    with pytest.raises(ProjectError, match=r"would replace pylock\.toml"):
        found.refuse_to_replace(tmp_path / "pylock.toml")
    found.refuse_to_replace(tmp_path / "pylock.gpu.toml")


@cases(
    "make",
    ("a device", lambda path: path.symlink_to("/dev/zero")),
    ("a directory", Path.mkdir),
    ("a pipe", os.mkfifo),
    ("a link to itself", lambda path: path.symlink_to(path)),
)
def test_what_is_no_regular_file_is_not_read(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    make(tmp_path / "requirements.txt")
    with pytest.raises(ProjectError, match=r"requirements\.txt is not a regular file") as caught:
        read_project(tmp_path)
    assert "-r requirements.txt" not in caught.value.fix


def test_thousands_of_packages_are_refused_at_once(tmp_path: Path) -> None:
    lines = "".join(f"p{number}\n" for number in range(MOST_PACKAGES + 1))
    with pytest.raises(ProjectError, match="declares 5,001 packages"):
        read_project(project(tmp_path, {"requirements.txt": lines}))


LONG = 900_000
HOSTILE: dict[str, dict[str, str]] = {
    "blanks behind a requirement": {"requirements.txt": f"six{' ' * LONG}\n"},
    "a version with many digits": {"requirements.txt": f"six=={'9' * 5000}"},
    "a marker with many digits": {"requirements.txt": f"six; python_version>'{'3' * LONG}'"},
    "brackets by the thousand": {"requirements.txt": f"six; {'(' * 3000}"},
    "an option with blanks": {"requirements.txt": f"--foo {' ' * LONG}x"},
    "blank lines": {"pyproject.toml": "\n" * LONG + "[project]\ndependencies = ['six']\n"},
    "a line of blanks": {"pyproject.toml": f"[project]\n{' ' * LONG}\ndependencies = ['six']\n"},
    "a range with many digits": {
        "pyproject.toml": f"[project]\nrequires-python = '==3.11.{'9' * 5000}'\n"
        "dependencies = ['six']\n"
    },
    "a caret with many digits": {
        "pyproject.toml": f"[tool.poetry.dependencies]\nsix = '^{'9' * 5000}'\n"
    },
    "a Python with many digits": {
        "requirements.txt": "six", ".python-version": f"3.{'9' * LONG}"
    },
    "a long name of conda": {"environment.yml": f"dependencies:\n- {'x' * 200_000}[\n"},
    "a marker of a lock": {
        "pylock.toml": "lock-version = '1.0'\npackages = [{name = 'x', version = '1', marker = "
        f"\"'a' in extras and {'(' * 3000}\"}}]\n"
    },
    "blanks in an ignore file": {"requirements.txt": "six", ".gitignore": f"a{' ' * LONG}b\n"},
    "any depth in an ignore file": {
        "requirements.txt": "six", ".gitignore": f"{'**/' * 300_000}x\n"
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(30)
def test_no_text_takes_long_or_is_a_bug(name: str, tmp_path: Path) -> None:
    root = project(tmp_path, HOSTILE[name])
    known = pythons_of(load())
    with contextlib.suppress(BadInputError):
        request_of(read_project(root), Request(), named=False, arch="x86_64", known=known)
        read_code(root)


@cases(
    "said expected",
    ("no table", "", ()),
    ("a list", "[tool.gpu-provision]\napt = ['git', 'ffmpeg']\n", ("ffmpeg", "git")),
    ("a text", "[tool.gpu-provision]\napt = 'git'\n", "is not a list of names"),
    ("a version", "[tool.gpu-provision]\napt = ['git=1']\n",
     "[tool.gpu-provision] apt 'git=1' is not the name of a Debian package"),
)  # fmt: skip
@pytest.mark.parametrize("file", ["pyproject.toml", "requirements.txt"])
def test_the_debian_packages_of_a_project_are_in_its_pyproject(
    tmp_path: Path, file: str, said: str, expected: tuple[str, ...] | str
) -> None:
    """Whatever file declares the others."""
    root = project(tmp_path, {"requirements.txt": "torch", "pyproject.toml": STANDARD + said})
    if isinstance(expected, str):
        with pytest.raises(BadInputError, match=re.escape(expected)):
            read_project(root, root / file)
    else:
        assert read_project(root, root / file).apt == expected
