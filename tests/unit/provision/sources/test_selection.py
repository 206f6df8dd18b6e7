"""What is chosen of a project: extras, groups, and packages that its image may lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.sources.errors import ProjectError, ProjectIncompleteError
from provision.sources.find import Project, read_project
from tests.kit.cases import cases
from tests.kit.projects import project

EXTRAS = """\
[project]
name = "chat"
dependencies = ["six"]
[project.optional-dependencies]
cpu = ["torch==2.5.1"]
gpu = ["torch==2.6.0", "chat[io]"]
io = ["h5py"]
fork = ["fork @ https://h.example/fork.tgz"]
[dependency-groups]
serve = ["fastapi", { include-group = "log" }]
log = ["rich"]
dev = ["ruff"]
[tool.uv]
default-groups = ["serve", "dev"]
conflicts = [[{ extra = "cpu" }, { extra = "gpu" }]]
"""
POETRY = """\
[tool.poetry]
name = "chat"
[tool.poetry.dependencies]
six = "*"
[tool.poetry.group.serve.dependencies]
fastapi = "*"
[tool.poetry.group.train]
optional = true
[tool.poetry.group.train.dependencies]
torch = "2.6.0"
[tool.poetry.group.dev.dependencies]
ruff = "*"
"""
LOCK = """\
version = 1
requires-python = ">=3.10"
conflicts = [[{ package = "chat", extra = "cpu" }, { package = "chat", extra = "gpu" }]]

[[package]]
name = "chat"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "six" }]

[package.optional-dependencies]
cpu = [{ name = "torch", version = "2.5.1", source = { registry = "https://h.example/simple" } }]
gpu = [{ name = "torch", version = "2.6.0", source = { registry = "https://h.example/simple" } }]
fork = [{ name = "uses-fork" }]

[package.dev-dependencies]
serve = [{ name = "fastapi", marker = "extra == 'extra-4-chat-gpu'" }, { name = "rich" }]

[[package]]
name = "fastapi"
version = "0.1"
source = { registry = "https://h.example/simple" }

[[package]]
name = "forked"
version = "3"
source = { url = "https://h.example/forked.tgz" }

[[package]]
name = "rich"
version = "2"
source = { registry = "https://h.example/simple" }

[[package]]
name = "six"
version = "1.17"
source = { registry = "https://h.example/simple" }

[[package]]
name = "torch"
version = "2.5.1"
source = { registry = "https://h.example/simple" }
resolution-markers = ["extra != 'extra-4-chat-gpu'"]

[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://h.example/simple" }
resolution-markers = ["extra == 'extra-4-chat-gpu'"]

[[package]]
name = "uses-fork"
version = "1"
source = { registry = "https://h.example/simple" }
dependencies = [{ name = "forked" }]
"""
BESIDE = """\
[project]
name = "chat"
[dependency-groups]
serve = ["fastapi", "rich"]
[tool.uv]
default-groups = ["serve"]
"""


def read(root: Path, kind: str) -> Project:
    files = {
        "extras": {"pyproject.toml": EXTRAS},
        "poetry": {"pyproject.toml": POETRY},
        "lock": {"uv.lock": LOCK, "pyproject.toml": BESIDE},
    }
    return read_project(project(root, files[kind]))


@cases(
    "kind extras groups packages",
    ("default groups, but those for development", "extras", [], [], ["six", "fastapi", "rich"]),
    ("an extra that names another one of the project", "extras", ["GPU"], [],
     ["six", "torch==2.6.0", "h5py", "fastapi", "rich"]),
    ("a group for development that is named", "extras", ["io", "io"], ["dev"],
     ["six", "h5py", "ruff", "fastapi", "rich"]),
    ("groups of Poetry", "poetry", [], [], ["six", "fastapi"]),
    ("an optional group of Poetry", "poetry", [], ["train"], ["six", "torch==2.6.0", "fastapi"]),
    ("the default group of a lock, without what another extra brings", "lock", [], [],
     ["six==1.17", "rich==2"]),
    ("an extra of a lock, at its version", "lock", ["gpu"], [],
     ["six==1.17", "torch==2.6.0", "rich==2"]),
)  # fmt: skip
def test_what_is_installed(
    kind: str, extras: list[str], groups: list[str], packages: list[str], tmp_path: Path
) -> None:
    found = read(tmp_path, kind).selected(extras=extras, groups=groups).declared
    assert [one.text for one in found.packages] == packages
    assert found.missing == ()


def test_the_versions_of_a_lock_are_those_of_the_extra(tmp_path: Path) -> None:
    found = read(tmp_path, "lock").selected(extras=["gpu"]).declared
    pins = [one.text for one in found.constraints if one.name == "torch"]
    assert "torch==2.6.0" in " ".join(pins)


def test_what_is_not_installed_is_listed_with_its_option(tmp_path: Path) -> None:
    said = "; ".join(read(tmp_path, "extras").selected().declared.left_out)
    assert "extras cpu, gpu, io, fork (pyproject.toml; to add one: --extra cpu)" in said
    assert "groups log, dev (pyproject.toml; to add one: --group log)" in said


@cases(
    "kind extras groups without words fix",
    ("an unknown extra", "extras", ["cuda"], [], [], "has no extra cuda", "cpu, gpu, io, fork"),
    ("no extras at all", "poetry", ["cuda"], [], [], "has no extra cuda", "Remove --extra"),
    ("an unknown group", "extras", [], ["gpu"], [], "has no group gpu", "serve"),
    ("extras that conflict", "extras", ["cpu", "gpu"], [], [], "exclude each other", "--extra cpu"),
    ("extras that conflict in a lock", "lock", ["cpu", "gpu"], [], [], "exclude each other",
     "--extra cpu"),
    ("nothing to leave out", "extras", [], [], ["numpy"], "requires no numpy", "--without numpy"),
)  # fmt: skip
def test_a_choice_that_the_project_does_not_have_is_refused(
    kind: str, extras: list[str], groups: list[str], without: list[str], words: str, fix: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(ProjectError, match=words) as caught:
        read(tmp_path, kind).selected(extras=extras, groups=groups, without=without)
    assert fix in caught.value.fix


@pytest.mark.parametrize(("kind", "name"), [("extras", "fork"), ("lock", "forked")])
def test_what_would_be_missing_stops_unless_it_is_accepted(
    kind: str, name: str, tmp_path: Path
) -> None:
    found = read(tmp_path, kind)
    found.selected()  # without the extra nobody needs it
    with pytest.raises(ProjectIncompleteError, match=rf"\b{name}\b.*line \d+") as caught:
        found.selected(extras=["fork"])
    option = f"--without {name}"
    assert caught.value.fix.endswith(option)
    accepted = found.selected(extras=["fork"], without=[name.upper()]).declared
    assert accepted.missing == ()
    assert name not in [one.name for one in accepted.packages]
    assert any(name in one for one in accepted.left_out)


def test_a_package_that_could_be_installed_can_be_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, "extras").selected(without=["rich"]).declared
    assert [one.text for one in found.packages] == ["six", "fastapi"]
    assert "rich (--without)" in found.left_out
