"""A pyproject.toml as it is written: extras and groups with their places."""

from __future__ import annotations

import pytest

from provision.sources.poetry import poetry_dependencies
from provision.sources.pyproject_file import PyprojectFile
from tests.kit.cases import cases

GROUPS = """\
[project.optional-dependencies]
gpu = ["torch==2.5.1", "six"]
[dependency-groups]
test = ["pytest", { include-group = "lint-All" }]
lint_all = ["ruff", {include-group = "test"}, {include-group = "gone"}, {include-group = 3}, 4]
none = ["idna"]
twice = [{include-group = "none"}, {include-group = "none"}]
[tool.uv]
dev-dependencies = ["attrs"]
[tool.poetry.group.docs.dependencies]
sphinx = "^7"
[tool.poetry.dev-dependencies]
mypy = "*"
"""


def test_extras_and_groups_have_their_packages_at_their_places() -> None:
    file = PyprojectFile("pyproject.toml", GROUPS)
    assert [(one.written, one.at.line) for one in file.extras["gpu"]] == [
        ("torch==2.5.1", 2),
        ("six", 2),
    ]
    assert {name: [one.name for one in group] for name, group in file.groups.items()} == {
        "test": ["pytest", "ruff"],
        "lint_all": ["ruff", "pytest"],
        "none": ["idna"],
        "twice": ["idna"],
        "dev": ["attrs"],
    }
    assert {name: [one.name for one in group] for name, group in file.poetry_groups.items()} == {
        "docs": ["sphinx"],
        "dev": ["mypy"],
    }


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("length", "times"), [pytest.param(40, 8, id="often"), pytest.param(1500, 1, id="deep")]
)
def test_groups_that_include_each_other_take_no_time(length: int, times: int) -> None:
    rows = "".join(
        f"g{i} = [{', '.join([f'{{include-group = {chr(34)}g{i + 1}{chr(34)}}}'] * times)}]\n"
        for i in range(length)
    )
    file = PyprojectFile("pyproject.toml", f"[dependency-groups]\n{rows}g{length} = ['six']\n")
    assert [one.name for one in file.groups["g0"]] == ["six"]


@cases(
    "row written unknown",
    ("a constraint", "^1.2", "six<2,>=1.2", None),
    ("extras", {"version": "*", "extras": ["a", "b"]}, "six[a,b]", None),
    ("markers and a Python",
     {"version": "1", "markers": "extra == 'a' or os_name == 'posix'", "python": "~3.11"},
     ("six==1 ; (extra == 'a' or os_name == 'posix') and python_version >= '3.11' and "
      "python_version < '3.12'"), None),
    ("one Python", {"version": "1", "python": "3.11.4"}, "six==1 ; python_full_version == '3.11.4'",
     None),
    ("alternatives", "1.2 || 2", "six", "1.2 || 2"),
    ("a word for a Python", {"version": "1", "python": "x"}, "six==1", "x"),
)  # fmt: skip
def test_a_dependency_of_poetry_in_the_standard_s_notation(
    row: object, written: str, unknown: str | None
) -> None:
    (found,) = poetry_dependencies({"six": row}, "\nsix = ...\n")
    assert sorted(found.written.replace("six", "").split(",")) == sorted(
        written.replace("six", "").split(",")
    )
    assert (found.unknown, found.line) == (unknown, 2)
