"""What a project's image runs, and where its Python finds the project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provision.build.project.code import read_code
from tests.kit.cases import cases
from tests.kit.layer_maker import collect, unpack
from tests.kit.projects import project

SITE = "opt/venv/lib/python3.11/site-packages"
BUILD = '[build-system]\nrequires = ["hatchling"]\n'
ONE = f'[project]\nname = "My.App"\n[project.scripts]\nserve = "pkg.cli:main"\n{BUILD}'


@pytest.mark.parametrize(
    ("files", "command", "roots"),
    [
        pytest.param({"train.py": ""}, ["python3"], [], id="only scripts"),
        pytest.param({"pyproject.toml": ONE, "src/pkg/cli.py": ""}, ["serve"], ["/app/src"],
                     id="one command, in src"),
        pytest.param({"pyproject.toml": ONE, "pkg/cli.py": ""}, ["serve"], ["/app"],
                     id="one command, beside pyproject.toml"),
        pytest.param({"pyproject.toml": ONE, "pkg/cli/__init__.py": ""}, ["serve"], ["/app"],
                     id="one command, in a package"),
        pytest.param({"pyproject.toml": ONE}, ["python3"], ["/app"], id="a module that is missing"),
        pytest.param({"pyproject.toml": ONE.replace(BUILD, 'two = "pkg.cli:two"\n'),
                      "pkg/cli.py": ""}, ["python3"], ["/app"], id="two commands"),
        pytest.param({"pyproject.toml": f'[project]\nname = "a"\n{BUILD}', "src/a.py": ""},
                     ["python3"], ["/app/src"], id="a package without commands"),
        pytest.param({"pyproject.toml": '[project]\nname = "a"\n', "a.py": ""}, ["python3"], [],
                     id="no package"),
        pytest.param({"pyproject.toml": '[tool.poetry]\nname = "a"\n[tool.poetry.scripts]\n'
                      f'run = "a:main"\n{BUILD}', "a.py": ""}, ["run"], ["/app"], id="Poetry"),
        pytest.param({"pyproject.toml": ONE.replace("pkg.cli:main", "../x"), "x": ""},
                     ["python3"], ["/app"], id="what is no function"),
        pytest.param({"pyproject.toml": ONE.replace("serve", '"../../bin/sh"'), "pkg/cli.py": ""},
                     ["python3"], ["/app"], id="a command that is a path"),
        pytest.param({"pyproject.toml": "project = 1\n[tool]\n"}, ["python3"], [],
                     id="values of other types"),
    ],
)  # fmt: skip
def test_what_is_run(
    files: dict[str, str], command: list[str], roots: list[str], tmp_path: Path
) -> None:
    found = read_code(project(tmp_path, files)).program
    assert (list(found.command), list(found.roots)) == (command, roots)
    assert found.notes[-1].startswith(f"The project is in /app; the image runs {command[0]}")


def test_a_command_is_written_as_pip_would(tmp_path: Path) -> None:
    root = project(tmp_path, {"pyproject.toml": ONE, "src/pkg/cli.py": ""})
    files = unpack(collect(read_code(root).layer("3.11").stream(None))[0])
    script = files["opt/venv/bin/serve"]
    assert script.mode == 0o755
    assert script.content.startswith(b"#!/opt/venv/bin/python\nimport sys\nfrom pkg.cli import")
    assert files[f"{SITE}/gpu-provision-project.pth"].content == b"/app/src\n"
    assert "app/src/pkg/cli.py" in files


def test_python_finds_the_project_by_its_pth(tmp_path: Path) -> None:
    site = project(tmp_path / "site", {"gpu-provision-project.pth": f"{tmp_path}/src\n"})
    project(tmp_path, {"src/pkg/__init__.py": "x = 7"})
    code = f"import site; site.addsitedir({str(site)!r}); import pkg; print(pkg.x)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd="/")
    assert done.stdout == b"7\n"


def test_members_of_a_workspace_are_found(tmp_path: Path) -> None:
    files = {"pyproject.toml": ONE, "src/pkg/cli.py": "", "packages/lib/src/lib/__init__.py": ""}
    found = read_code(project(tmp_path, files), members=(".", "packages/lib"))
    assert found.program.roots == ("/app/src", "/app/packages/lib/src")


@cases(
    "name image",
    ("capitals and dots", "My.App", "my-app"),
    ("underscores", "a__b", "a-b"),
    ("no letter", "-", "project"),
    ("too long, so the directory's", "x" * 300, "project"),
)
def test_the_image_has_the_name_of_the_project(name: str, image: str, tmp_path: Path) -> None:
    text = f'[project]\nname = "{name}"\n'
    root = project(tmp_path / "---", {"pyproject.toml": text})
    assert read_code(root).program.name == image


def test_a_project_that_would_be_compiled_is_said(tmp_path: Path) -> None:
    text = '[build-system]\nrequires = ["maturin"]\nbuild-backend = "maturin"\n'
    found = read_code(project(tmp_path, {"pyproject.toml": text}))
    assert any("is not compiled (its build backend is maturin)" in note for note in found.notes)
