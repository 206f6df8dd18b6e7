"""A pyproject.toml: the standard's dependencies, or Poetry's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.model.plan import DeclaredIndex
from provision.sources.errors import ProjectError
from provision.sources.poetry import poetry_specifier
from provision.sources.pyproject import read_pyproject
from tests.kit.cases import cases
from tests.kit.projects import project

STANDARD = """\
[project]
name = "a"
requires-python = ">=3.10"
dependencies = [
    "torch==2.5.1",
    "numpy<2",
    "x @ git+https://h.example/x",
    "y @ https://h.example/y.tgz",
]
[project.optional-dependencies]
dev = ["pytest"]
[dependency-groups]
docs = ["sphinx"]
"""
POETRY = """\
[tool.poetry]
name = "a"
[tool.poetry.dependencies]
python = "^3.10"
torch = "~2.5"
transformers = {version = "^4.40", extras = ["torch"]}
local = {path = "../local"}
forked = {git = "git@h.example:o/forked.git", tag = "v2", extras = ["x"], python = ">=3.8"}
many = [{version = "1", python = "<3.11"}, {version = "^2", python = "^3.11", platform = "linux"}]
later = {version = "*", optional = true}
numpy = "*"
"""


def test_the_standard_s_table(tmp_path: Path) -> None:
    path = project(tmp_path, {"pyproject.toml": STANDARD}) / "pyproject.toml"
    found = read_pyproject(path, tmp_path)
    assert found is not None
    assert [(one.text, one.line) for one in found.packages] == [
        ("torch==2.5.1", 5),
        ("numpy<2", 6),
        ("x @ git+https://h.example/x", 7),
    ]
    assert found.python is not None
    assert (found.python.text, found.python.line) == (">=3.10", 3)
    assert [one.message for one in found.missing] == [
        "y @ https://h.example/y.tgz (pyproject.toml, line 8; images are built from wheels)"
    ]
    assert [(one.kind, one.name, one.default) for one in found.optional] == [
        ("extra", "dev", False),
        ("group", "docs", False),
    ]


def test_poetry_s_table(tmp_path: Path) -> None:
    path = project(tmp_path, {"pyproject.toml": POETRY}) / "pyproject.toml"
    found = read_pyproject(path, tmp_path)
    assert found is not None
    assert [one.text for one in found.packages] == [
        "torch<2.6,>=2.5",
        "transformers[torch]<5,>=4.40",
        'forked[x] @ git+ssh://git@h.example/o/forked.git@v2 ; python_version >= "3.8"',
        'many==1; python_version < "3.11"',
        'many<3,>=2; python_version >= "3.11" and python_version < "4" and sys_platform == "linux"',
        "numpy",
    ]
    assert found.python is not None
    assert found.python.text == ">=3.10,<4"
    assert [one.name for one in found.missing] == ["local"]


@cases(
    "files lines",
    ("a file", {"reqs.txt": "six\n", "tools": "file = ['reqs.txt']"}, ["reqs.txt, line 1"]),
    ("setup.py", {"setup.py": "setup(install_requires=['six'])"}, ["setup.py, line 1"]),
    ("setup.cfg", {"setup.cfg": "[options]\ninstall_requires = six\n"}, ["setup.cfg, line 2"]),
    ("another backend", {}, []),
)
def test_dependencies_that_setuptools_reads_elsewhere(
    files: dict[str, str], lines: list[str], tmp_path: Path
) -> None:
    text = "[project]\nname = 'a'\ndynamic = ['dependencies']\n"
    if tools := files.pop("tools", ""):
        text += f"[tool.setuptools.dynamic.dependencies]\n{tools}\n"
    path = project(tmp_path, {"pyproject.toml": text, **files}) / "pyproject.toml"
    found = read_pyproject(path, tmp_path)
    assert found is not None
    assert [one.where for one in found.packages] == lines
    assert bool(found.missing) == (not lines)


@cases(
    "text specifier",
    ("a caret", "^1.2.3", ">=1.2.3,<2"),
    ("a caret below 1", "^0.2.3", ">=0.2.3,<0.3"),
    ("a caret below 0.1", "^0.0.3", ">=0.0.3,<0.0.4"),
    ("a caret of zeros", "^0.0", ">=0.0,<0.1"),
    ("a tilde", "~1.2.3", ">=1.2.3,<1.3"),
    ("a tilde of a major", "~1", ">=1,<2"),
    ("a bare version", "1.2.3", "==1.2.3"),
    ("a wildcard", "1.2.*", "==1.2.*"),
    ("any", "*", ""),
    ("a list", ">=1, <2, !=1.5", ">=1,<2,!=1.5"),
    ("one equals sign", "=1.2", "==1.2"),
    ("alternatives", "1.2 || 2.0", None),
    ("no version", "^x", None),
)
def test_poetry_s_constraints(text: str, specifier: str | None) -> None:
    assert poetry_specifier(text) == specifier


@given(st.text(alphabet="^~=<>!*.,| 0123456789ab", max_size=20))
def test_no_constraint_is_a_bug(text: str) -> None:
    poetry_specifier(text)


@cases(
    "text words",
    ("broken TOML", "[project", "is not valid TOML"),
    ("nested too deeply", "a = " + "[" * 20_000, "is not valid TOML"),
    ("a malformed requirement", "[project]\ndependencies = ['a b']", "line 2"),
    ("a number", "[project]\ndependencies = [7]", "'[7]'"),
    ("Python", "[project]\nrequires-python = 'new'\ndependencies = []", "line 2"),
    ("Poetry", "[tool.poetry.dependencies]\na = '1 || 2'", "'1 || 2'"),
)
def test_what_cannot_be_read_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = project(tmp_path, {"pyproject.toml": text}) / "pyproject.toml"
    with pytest.raises(ProjectError, match=r".") as caught:
        read_pyproject(path, tmp_path)
    assert words in caught.value.message


@cases(
    "text",
    ("a tool's settings", "[tool.ruff]\nline-length = 100"),
    ("nothing", ""),
    ("a number for a table", "project = 1"),
)
def test_what_declares_nothing_is_passed_over(text: str, tmp_path: Path) -> None:
    path = project(tmp_path, {"pyproject.toml": text}) / "pyproject.toml"
    assert read_pyproject(path, tmp_path) is None


SOURCES = """\
[project]
name = "a"
dependencies = ["torch==2.5.1", "fork>=1", "lib", "other", "mac"]
[tool.uv.sources]
torch = [
    { index = "pytorch-cpu", marker = "sys_platform == 'darwin'" },
    { index = "pytorch-cu121", marker = "sys_platform == 'linux'" },
]
Fork = { git = "https://h.example/fork", rev = "1f2e", subdirectory = "py" }
lib = { workspace = true }
other = { index = "own" }
mac = { path = "../mac", marker = "sys_platform == 'darwin'" }
[[tool.uv.index]]
name = "pytorch-cpu"
url = "https://download.pytorch.org/whl/cpu"
[[tool.uv.index]]
name = "pytorch-cu121"
url = "https://download.pytorch.org/whl/cu121"
[[tool.uv.index]]
name = "own"
url = "https://user:secret@own.example/simple"
"""


def test_what_uv_takes_from_elsewhere_is_not_taken_from_an_index(tmp_path: Path) -> None:
    path = project(tmp_path, {"pyproject.toml": SOURCES}) / "pyproject.toml"
    found = read_pyproject(path, tmp_path)
    assert found is not None
    assert [one.name for one in found.packages] == ["torch", "fork", "other", "mac"]
    assert found.packages[1].text == "fork @ git+https://h.example/fork@1f2e#subdirectory=py"
    assert found.cuda is not None
    assert (found.cuda.text, found.cuda.line) == ("12.1", 18)
    said = "; ".join(one.message for one in found.missing)
    assert "lib (pyproject.toml, line 3; from workspace" in said
    assert "secret" not in said
    line = SOURCES.splitlines().index('url = "https://user:secret@own.example/simple"') + 1
    own = DeclaredIndex(
        "https://own.example/simple", "index", f"pyproject.toml, line {line}", name="own"
    )
    assert found.indexes == (own,)


PLACES = """\
[project]
name = "a"
dependencies = ["torch"]
[tool.uv]
find-links = ["https://l.example/page.html", "./wheels"]
[[tool.uv.index]]
name = "first"
url = "https://a.example/simple"
[[tool.uv.index]]
url = "https://f.example/listing"
format = "flat"
[[tool.uv.index]]
name = "not-used"
url = "https://x.example/simple"
explicit = true
[[tool.uv.index]]
url = "https://d.example/simple"
default = true
"""


def test_the_indexes_of_uv_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    """An explicit index is for the packages that name it."""
    path = project(tmp_path, {"pyproject.toml": PLACES}) / "pyproject.toml"
    found = read_pyproject(path, tmp_path)
    assert found is not None
    assert [(one.kind, one.url) for one in found.indexes] == [
        ("index", "https://a.example/simple"),
        ("links", "https://f.example/listing"),
        ("default", "https://d.example/simple"),
        ("links", "https://l.example/page.html"),
    ]


def test_a_source_of_poetry_names_the_cuda(tmp_path: Path) -> None:
    text = """\
    [tool.poetry.dependencies]
    torch = { version = "2.5.1", source = "cu121" }
    [[tool.poetry.source]]
    name = "cu121"
    url = "https://download.pytorch.org/whl/cu121"
    """
    path = project(tmp_path, {"pyproject.toml": text}) / "pyproject.toml"
    found = read_pyproject(path, tmp_path)
    assert found is not None
    assert found.cuda is not None
    assert (found.cuda.text, found.cuda.line) == ("12.1", 5)
