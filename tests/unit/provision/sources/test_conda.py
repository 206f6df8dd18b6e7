"""environment.yml and pixi.toml: only what surely is the same package on PyPI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import BadInputError
from provision.sources.conda import conda_specifier, read_environment, read_pixi
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.projects import project

ENVIRONMENT = """\
name: a
channels: [pytorch, conda-forge]
dependencies:
  - python=3.11
  - pytorch::pytorch=2.3.1
  - pytorch-cuda=12.1
  - numpy >=1.24,<2
  - ffmpeg
  - pip
  - pip:
      - timm==1.0.3
      - -e .
"""
PIXI = """\
[workspace]
channels = ["conda-forge"]
[dependencies]
python = "3.11.*"
pytorch-gpu = { version = "2.5.1", build = "*cuda*" }
cuda-version = "12.6.*"
r-base = "*"
[pypi-dependencies]
app = { path = ".", editable = true }
timm = ">=1"
lightning = { version = "2.4.0", extras = ["extra"] }
fork = { git = "https://h.example/fork" }
[feature.dev.dependencies]
pytest = "*"
"""


def test_an_environment_of_conda(tmp_path: Path) -> None:
    path = project(tmp_path, {"environment.yml": ENVIRONMENT}) / "environment.yml"
    found = read_environment(path, tmp_path)
    assert [(one.text, one.line) for one in found.packages] == [
        ("torch==2.3.1", 5),
        ("numpy<2,>=1.24", 7),
        ("timm==1.0.3", 11),
    ]
    assert found.python is not None
    assert found.cuda is not None
    assert (found.python.text, found.cuda.text) == ("==3.11.*", "12.1")
    assert found.left_out == ("ffmpeg (environment.yml, line 8; no Python package)",)
    assert found.itself


def test_a_manifest_of_pixi(tmp_path: Path) -> None:
    path = project(tmp_path, {"pixi.toml": PIXI}) / "pixi.toml"
    found = read_pixi(path, tmp_path)
    assert [one.text for one in found.packages] == [
        "torch==2.5.1",
        "timm>=1",
        "lightning[extra]==2.4.0",
        "fork @ git+https://h.example/fork",
    ]
    assert found.python is not None
    assert found.cuda is not None
    assert (found.python.text, found.cuda.text) == ("==3.11.*", "12.6")
    assert [one.partition(" ")[0] for one in found.left_out] == ["feature"]
    assert [one.name for one in found.missing] == ["r-base"]
    assert found.itself


@cases(
    "environments names left_out",
    ("none is named", "", ["numpy", "six"], ["features gpu, dev (pixi.toml)"]),
    ("a feature of the default environment", 'default = ["gpu"]', ["numpy", "six", "torch", "timm"],
     ["feature dev (pixi.toml)"]),
    ("only features", 'default = { features = ["gpu"], no-default-feature = true }',
     ["torch", "timm"], ["feature dev (pixi.toml)"]),
    ("another environment", 'test = ["dev"]', ["numpy", "six"], ["features gpu, dev (pixi.toml)"]),
)  # fmt: skip
def test_the_default_environment_of_pixi(
    environments: str, names: list[str], left_out: list[str], tmp_path: Path
) -> None:
    text = f"""\
[dependencies]
numpy = "1.26.*"
[target.linux-64.pypi-dependencies]
six = "*"
[target.osx-arm64.pypi-dependencies]
idna = "*"
[feature.gpu.dependencies]
pytorch = "2.5.*"
[feature.gpu.target.linux.pypi-dependencies]
timm = "*"
[feature.dev.dependencies]
pytest = "*"
[environments]
{environments}
"""
    found = read_pixi(project(tmp_path, {"pixi.toml": text}) / "pixi.toml", tmp_path)
    assert ([one.name for one in found.packages], [*found.left_out]) == (names, left_out)
    assert [one.text for one in found.packages if one.name == "six"] in (
        [], ['six; platform_machine == "x86_64"']
    )  # fmt: skip


@cases(
    "text specifier",
    ("the beginning of a version", "=1.24", "==1.24.*"),
    ("a whole version", "=1.24.3", "==1.24.3"),
    ("two equals signs", "==1.24", "==1.24"),
    ("a build string", "=1.24.3=py310_0", "==1.24.3"),
    ("a wildcard", "1.24.*", "==1.24.*"),
    ("a wildcard without a dot", "=1.24*", "==1.24.*"),
    ("a range", ">=1.2,<2", "<2,>=1.2"),
    ("any", "", ""),
    ("a star", "*", ""),
    ("alternatives", "1.2|1.4", None),
    ("alternative ranges", ">=1.2|<1", None),
    ("a pattern of builds", "=1.2.3=*cuda*", "==1.2.3"),
    ("a compatible release", "~=1.2", "~=1.2"),
    ("a word", "latest", None),
)
def test_versions_of_conda(text: str, specifier: str | None) -> None:
    assert conda_specifier(text) == specifier


@given(st.text(alphabet="=<>!~*|,. 0123456789abpy_", max_size=20))
def test_no_version_is_a_bug(text: str) -> None:
    conda_specifier(text)


@cases(
    "text words",
    ("broken YAML", "dependencies: [", "not valid YAML"),
    ("nested too deeply", "a: " + "[" * 1_000, "environment.yml"),
    ("a malformed requirement", "dependencies:\n  - pip:\n    - a b c", "line 3"),
)
def test_what_cannot_be_read_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = project(tmp_path, {"environment.yml": text}) / "environment.yml"
    with pytest.raises(BadInputError, match=r".") as caught:
        read_environment(path, tmp_path)
    assert words in caught.value.message


@pytest.mark.parametrize("key", ["dependencies", "pypi-dependencies"])
def test_a_pixi_table_that_is_none_is_refused(key: str, tmp_path: Path) -> None:
    path = project(tmp_path, {"pixi.toml": f"{key} = 3\n"}) / "pixi.toml"
    with pytest.raises(BadInputError, match=f"pixi.toml: {key} is not a table"):
        read_pixi(path, tmp_path)


@pytest.mark.parametrize("text", ["", "a", "- 1", "dependencies: 1", "dependencies:\n  - {a: b}"])
def test_an_environment_without_packages_declares_nothing(text: str, tmp_path: Path) -> None:
    path = project(tmp_path, {"environment.yml": text}) / "environment.yml"
    found = read_environment(path, tmp_path)
    assert (found.packages, found.left_out) == ((), ())


def test_the_names_are_sorted_and_in_lower_case() -> None:
    path = ROOT / "provision/sources/data/conda.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    for names in (list(data["pypi"]), data["same"], data["system"]):
        assert names == sorted(names)
        assert names == [name.lower() for name in names]
    assert not {*data["pypi"], *data["same"]} & {*data["system"]}


@cases(
    "line packages left_out missing",
    ("the same name on PyPI", "mamba-ssm", ["mamba-ssm"], 0, 0),
    ("as conda spells", "typing_extensions>=4", ["typing_extensions>=4"], 0, 0),
    ("another name on PyPI", "faiss-gpu=1.8", ["faiss-gpu-cu12==1.8.*"], 0, 0),
    ("a C library by its name's form", "libxcb", [], 1, 0),
    ("a Python package with that form", "librosa", ["librosa"], 0, 0),
    ("another one with that form", "libpysal", ["libpysal"], 0, 0),
    ("CUDA for Python", "cuda-python=12.6", ["cuda-python==12.6.*"], 0, 0),
    ("a part of CUDA by its name's form", "cuda-nvtx-dev", [], 1, 0),
    ("a form that Python packages have, too", "libusb1", [], 0, 1),
    ("the Python package of a C library", "gst-python", [], 0, 1),
    ("the Python package beside a C library", "python-xxhash", ["xxhash"], 0, 0),
    ("a C library with a Python package of its name", "xxhash", [], 1, 0),
    ("CUDA without a version", "cudatoolkit", [], 1, 0),
    ("a language", "r-base", [], 0, 1),
    ("a version that PyPI's notation has not", "numpy=1.2|1.4", [], 0, 1),
)
def test_what_conda_calls_a_package(
    line: str, packages: list[str], left_out: int, missing: int, tmp_path: Path
) -> None:
    text = f"channels: [conda-forge]\ndependencies: [{json.dumps(line)}, six]\n"
    path = project(tmp_path, {"environment.yml": text}) / "environment.yml"
    found = read_environment(path, tmp_path)
    assert [one.text for one in found.packages] == [*packages, "six"]
    assert (len(found.left_out), len(found.missing)) == (left_out, missing)
