"""What a setup.py and a setup.cfg declare, read without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.sources.errors import ProjectError
from provision.sources.setup_script import read_setup_cfg, read_setup_py
from tests.kit.cases import cases
from tests.kit.projects import project

NEEDS = {"reqs.txt": "six==1.16.0\nidna\n", "deps/gpu.txt": "attrs\n"}


@cases(
    "text names",
    ("a list", "setup(install_requires=['six', \"idna>=3\"])", ["six", "idna"]),
    ("a sum", "A = ('six',)\nsetup(install_requires=A + ['idna'])", ["six", "idna"]),
    ("a list in a list", "A = ['six']\nsetup(install_requires=[*A, 'idna'])", ["six", "idna"]),
    ("a name", "S = 'six'\nsetup(install_requires=[S])", ["six"]),
    ("one text", "setup(install_requires='six\\nidna')", ["six", "idna"]),
    ("a table", "K = {'install_requires': ['six']}\nsetup(**K)", ["six"]),
    ("called as a program",
     "if __name__ == '__main__':\n    setuptools.setup(install_requires=['six'])", ["six"]),
    ("lines of a file", "setup(install_requires=open('reqs.txt').read().splitlines())",
     ["six", "idna"]),
    ("readlines", "setup(install_requires=open('reqs.txt').readlines())", ["six", "idna"]),
    ("split", "setup(install_requires=open('reqs.txt').read().strip().split('\\n'))",
     ["six", "idna"]),
    ("a file that is opened before",
     ("with open('reqs.txt', encoding='utf-8') as f:\n    R = f.read().splitlines()\n"
      "setup(install_requires=R)"), ["six", "idna"]),
    ("a path that is joined",
     ("here = os.path.dirname(os.path.abspath(__file__))\n"
      "with open(os.path.join(here, 'deps', 'gpu.txt')) as f:\n"
      "    R = [x.strip() for x in f if x.strip() and not x.startswith('#')]\n"
      "setup(install_requires=R)"), ["attrs"]),
    ("a path of pathlib",
     "setup(install_requires=(Path(__file__).parent / 'deps/gpu.txt').read_text().splitlines())",
     ["attrs"]),
    ("a function",
     ("def needs():\n    'R'\n    with open('reqs.txt') as f:\n"
      "        return f.read().splitlines()\nsetup(install_requires=needs())"), ["six", "idna"]),
)  # fmt: skip
def test_what_is_written_is_read(text: str, names: list[str], tmp_path: Path) -> None:
    root = project(tmp_path, {**NEEDS, "setup.py": text})
    found = read_setup_py(root / "setup.py", root)
    assert found is not None
    assert [one.name for one in found.packages] == names


@cases(
    "text line",
    ("an unknown function", "setup(\n  install_requires=needs())", 2),
    ("an f-string", "setup(install_requires=[\n 'six',\n f'idna=={V}'])", 3),
    ("a list that grows", "A = ['six']\nA.append('idna')\nsetup(install_requires=A)", 3),
    ("bound twice", "A = ['six']\nif X:\n  A = ['idna']\nsetup(install_requires=A)", 4),
    ("bound on a condition", "if X:\n  A = ['six']\nsetup(install_requires=A)", 3),
    ("added to", "A = ['six']\nA += ['idna']\nsetup(install_requires=A)", 3),
    ("an unknown table", "setup(**K)", 1),
    ("a name for itself", "A = A\nsetup(install_requires=A)", 1),
    ("no such file", "setup(install_requires=open('none.txt').readlines())", 1),
    ("a filter", "setup(install_requires=[x for x in open('reqs.txt') if 'six' in x])", 1),
    ("an unknown file", "setup(install_requires=open(F).readlines())", 1),
    ("a condition", "setup(install_requires=['six'] if X else [])", 1),
    ("a function of itself", "def f():\n  return f()\nsetup(install_requires=f())", 2),
    ("Python 2", "print 1", 1),
)
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


@cases(
    "text lines",
    ("a list", "[options]\ninstall_requires =\n    six==1.16.0\n    idna\n",
     ["setup.cfg, line 3", "setup.cfg, line 4"]),
    ("a file", "[options]\ninstall_requires = file: reqs.txt\n",
     ["reqs.txt, line 1", "reqs.txt, line 2"]),
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
