"""What a setup.py and a setup.cfg declare, read without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.sources.errors import ProjectError
from provision.sources.setup_script import read_setup_cfg, read_setup_py
from tests.kit.projects import project

NEEDS = {"reqs.txt": "six==1.16.0\nidna\n", "deps/gpu.txt": "attrs\n"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("setup(install_requires=['six', \"idna>=3\"])", ["six", "idna"], id="a list"),
        pytest.param("A = ('six',)\nsetup(install_requires=A + ['idna'])", ["six", "idna"],
                     id="a sum"),
        pytest.param("A = ['six']\nsetup(install_requires=[*A, 'idna'])", ["six", "idna"],
                     id="a list in a list"),
        pytest.param("S = 'six'\nsetup(install_requires=[S])", ["six"], id="a name"),
        pytest.param("setup(install_requires='six\\nidna')", ["six", "idna"], id="one text"),
        pytest.param("K = {'install_requires': ['six']}\nsetup(**K)", ["six"], id="a table"),
        pytest.param("if __name__ == '__main__':\n    setuptools.setup(install_requires=['six'])",
                     ["six"], id="called as a program"),
        pytest.param("setup(install_requires=open('reqs.txt').read().splitlines())",
                     ["six", "idna"], id="lines of a file"),
        pytest.param("setup(install_requires=open('reqs.txt').readlines())", ["six", "idna"],
                     id="readlines"),
        pytest.param("setup(install_requires=open('reqs.txt').read().strip().split('\\n'))",
                     ["six", "idna"], id="split"),
        pytest.param(
            "with open('reqs.txt', encoding='utf-8') as f:\n    R = f.read().splitlines()\n"
            "setup(install_requires=R)", ["six", "idna"], id="a file that is opened before"),
        pytest.param("here = os.path.dirname(os.path.abspath(__file__))\n"
                     "with open(os.path.join(here, 'deps', 'gpu.txt')) as f:\n"
                     "    R = [x.strip() for x in f if x.strip() and not x.startswith('#')]\n"
                     "setup(install_requires=R)", ["attrs"], id="a path that is joined"),
        pytest.param("setup(install_requires=(Path(__file__).parent / 'deps/gpu.txt')"
                     ".read_text().splitlines())", ["attrs"], id="a path of pathlib"),
        pytest.param("def needs():\n    'R'\n    with open('reqs.txt') as f:\n"
                     "        return f.read().splitlines()\nsetup(install_requires=needs())",
                     ["six", "idna"], id="a function"),
    ],
)  # fmt: skip
def test_what_is_written_is_read(text: str, names: list[str], tmp_path: Path) -> None:
    root = project(tmp_path, {**NEEDS, "setup.py": text})
    found = read_setup_py(root / "setup.py", root)
    assert found is not None
    assert [one.name for one in found.packages] == names


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("setup(\n  install_requires=needs())", 2, id="an unknown function"),
        pytest.param("setup(install_requires=[\n 'six',\n f'idna=={V}'])", 3, id="an f-string"),
        pytest.param("A = ['six']\nA.append('idna')\nsetup(install_requires=A)", 3,
                     id="a list that grows"),
        pytest.param("A = ['six']\nif X:\n  A = ['idna']\nsetup(install_requires=A)", 4,
                     id="bound twice"),
        pytest.param("if X:\n  A = ['six']\nsetup(install_requires=A)", 3,
                     id="bound on a condition"),
        pytest.param("A = ['six']\nA += ['idna']\nsetup(install_requires=A)", 3, id="added to"),
        pytest.param("setup(**K)", 1, id="an unknown table"),
        pytest.param("A = A\nsetup(install_requires=A)", 1, id="a name for itself"),
        pytest.param("setup(install_requires=open('none.txt').readlines())", 1, id="no such file"),
        pytest.param("setup(install_requires=[x for x in open('reqs.txt') if 'six' in x])", 1,
                     id="a filter"),
        pytest.param("setup(install_requires=open(F).readlines())", 1, id="an unknown file"),
        pytest.param("setup(install_requires=['six'] if X else [])", 1, id="a condition"),
        pytest.param(
            "def f():\n  return f()\nsetup(install_requires=f())", 2, id="a function of itself"
        ),
        pytest.param("print 1", 1, id="Python 2"),
    ],
)  # fmt: skip
def test_what_is_computed_is_refused_at_its_line(text: str, line: int, tmp_path: Path) -> None:
    root = project(tmp_path, {**NEEDS, "setup.py": text})
    with pytest.raises(ProjectError, match=rf"setup\.py, line {line}\b") as caught:
        read_setup_py(root / "setup.py", root)
    assert "requirements.txt" in caught.value.fix


def test_nothing_of_a_setup_script_is_run(tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'ran')!r}, 'w')\nsetup(install_requires=['six'])\n"
    root = project(tmp_path, {"setup.py": text})
    assert read_setup_py(root / "setup.py", root) is not None
    assert not (tmp_path / "ran").exists()


def test_a_setup_script_says_its_python_and_its_extras(tmp_path: Path) -> None:
    text = "P = '>=3.11'\nsetup(install_requires=['six @ https://h.example/six.tgz'],\n"
    text += "  python_requires=P, extras_require={'gpu': ['cupy']})"
    root = project(tmp_path, {"setup.py": text})
    found = read_setup_py(root / "setup.py", root)
    assert found is not None
    assert found.python is not None
    assert (found.python.text, found.python.where) == (">=3.11", "setup.py, line 3")
    assert [one.name for one in found.missing] == ["six"]
    assert [(one.name, one.declared.packages[0].where) for one in found.optional] == [
        ("gpu", "setup.py, line 3")
    ]
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("text", "own", "extras", "notes"),
    [
        pytest.param("E = {'GPU_x': ['idna']}\nsetup(install_requires=['six'], extras_require=E)",
                     ["six"], {"gpu-x": ["idna"]}, 0, id="a table with a name"),
        pytest.param("setup(install_requires=['six'], extras_require={'a': ['idna'], 'b': F()})",
                     ["six"], {"a": ["idna"]}, 1, id="one of them is computed"),
        pytest.param("setup(install_requires=['six'], extras_require=read('extras'))",
                     ["six"], {}, 1, id="all are computed"),
        pytest.param("E = {'a': ['idna']}\nE['all'] = sum(E.values(), [])\n"
                     "setup(install_requires=['six'], extras_require=E)",
                     ["six"], {}, 1, id="a table that is changed"),
        pytest.param("setup(install_requires=['six'], extras_require="
                     "{\":sys_platform == 'linux'\": ['idna', 'attrs; python_version > \"3\"']})",
                     ["six", "idna", "attrs"], {}, 0, id="a marker without a name"),
        pytest.param("E = {'a': ['x y z'], 'b': ['idna']}\nsetup(install_requires=['six'], "
                     "extras_require=E)",
                     ["six"], {"b": ["idna"]}, 1, id="one of them is malformed"),
    ],
)  # fmt: skip
def test_the_extras_of_a_setup_script(
    text: str, own: list[str], extras: dict[str, list[str]], notes: int, tmp_path: Path
) -> None:
    root = project(tmp_path, {"setup.py": text})
    found = read_setup_py(root / "setup.py", root)
    assert found is not None
    assert [one.name for one in found.packages] == own
    assert {
        one.name: [row.name for row in one.declared.packages] for one in found.optional
    } == extras
    assert len(found.left_out) == notes


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("[options]\ninstall_requires =\n    six==1.16.0\n    idna\n",
                     ["setup.cfg, line 3", "setup.cfg, line 4"], id="a list"),
        pytest.param("[options]\ninstall_requires = file: reqs.txt\n",
                     ["reqs.txt, line 1", "reqs.txt, line 2"], id="a file"),
    ],
)  # fmt: skip
def test_a_configuration_is_read(text: str, lines: list[str], tmp_path: Path) -> None:
    root = project(tmp_path, {**NEEDS, "setup.cfg": text})
    found = read_setup_cfg(root / "setup.cfg", root)
    assert found is not None
    assert [one.where for one in found.packages] == lines


def test_the_extras_of_a_configuration(tmp_path: Path) -> None:
    text = "[options]\ninstall_requires = six\n[options.extras_require]\n"
    text += "gpu =\n    idna\n    attrs>=20\nall = file: reqs.txt\n"
    root = project(tmp_path, {**NEEDS, "setup.cfg": text})
    found = read_setup_cfg(root / "setup.cfg", root)
    assert found is not None
    where = {one.name: [row.where for row in one.declared.packages] for one in found.optional}
    assert where == {
        "gpu": ["setup.cfg, line 5", "setup.cfg, line 6"],
        "all": ["reqs.txt, line 1", "reqs.txt, line 2"],
    }


@pytest.mark.parametrize("text", ["", "[metadata]\nname = a\n", "[flake8]\nignore = E1\n"])
def test_a_configuration_of_other_tools_declares_nothing(text: str, tmp_path: Path) -> None:
    root = project(tmp_path, {"setup.cfg": text})
    assert read_setup_cfg(root / "setup.cfg", root) is None
