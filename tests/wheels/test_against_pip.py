"""Layers of real wheels, held file for file against what pip makes of the same wheels.

The wheels are the newest of packages that many have, fetched by pip for the Python that runs this:
what the makers of wheels think of next is met here. A directory of other wheels, such as a whole
lock's, can be given: GPU_PROVISION_WHEELS=DIRECTORY. What is there is then compared as well, wheel
by wheel, and needs as much space on the disk as the largest of them unpacked.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from images.layers.errors import WheelRefusedError
from images.layers.tar import MTIME
from tests import need
from tests.kit.layer_maker import collect, files_of, stream_of
from tests.kit.programs import run_program
from tests.wheels.pip_tree import Tree, locked, our_tree, pip_tree

PIP = "pip==26.3"  # whose texts of scripts are ours
# of every kind: pure and native, scripts, data, headers, many files and few, old and new tools
PACKAGES = (
    "aiohttp",
    "attrs",
    "black",
    "botocore",
    "certifi",
    "cffi",
    "charset-normalizer",
    "click",
    "cryptography",
    "django",
    "fastapi",
    "filelock",
    "flask",
    "fsspec",
    "greenlet",
    "grpcio",
    "huggingface-hub",
    "idna",
    "ipython",
    "jinja2",
    "jmespath",
    "joblib",
    "jupyterlab",
    "lxml",
    "markupsafe",
    "matplotlib",
    "mpmath",
    "networkx",
    "ninja",
    "notebook",
    "numpy",
    "packaging",
    "pandas",
    "pillow",
    "pip",
    "protobuf",
    "psutil",
    "pydantic",
    "pydantic-core",
    "pygments",
    "pytest",
    "pyyaml",
    "pyzmq",
    "regex",
    "requests",
    "rich",
    "ruff",
    "safetensors",
    "setuptools",
    "sqlalchemy",
    "starlette",
    "sympy",
    "tokenizers",
    "tornado",
    "tqdm",
    "typing-extensions",
    "urllib3",
    "virtualenv",
    "werkzeug",
    "wheel",
)
LIMIT_S = 300
_AT_ONCE = 4


def pip_download(directory: Path, *wanted: str) -> None:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--dest", str(directory), *wanted,
    ]  # fmt: skip
    done = run_program(command, timeout=LIMIT_S)
    if done.returncode:
        need.lacking(f"the wheels cannot be downloaded: {done.stderr[-500:]}")


@pytest.fixture(scope="session")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one pip that all comparisons are made with."""
    directory = tmp_path_factory.mktemp("pip")
    pip_download(directory, PIP)
    return next(directory.iterdir())


@pytest.fixture(scope="session")
def popular(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of the packages."""
    directory = tmp_path_factory.mktemp("wheels")
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # pip fetches one after the other
        parts = [PACKAGES[i::_AT_ONCE] for i in range(_AT_ONCE)]
        list(pool.map(lambda part: pip_download(directory, *part), parts))
    return sorted(directory.glob("*.whl"))


def assert_same(ours: Tree, theirs: Tree) -> None:
    names = ours.files.keys() | theirs.files.keys()
    other = {n: (ours.files.get(n), theirs.files.get(n)) for n in sorted(names)}
    assert not {name: pair for name, pair in other.items() if pair[0] != pair[1]}
    for name in ours.rows.keys() | theirs.rows.keys():
        assert ours.rows.get(name) == theirs.rows.get(name), name


def test_popular_wheels_become_what_pip_makes_of_them(
    popular: list[Path], pip: Path, tmp_path: Path
) -> None:
    assert len(popular) >= 50
    theirs = pip_tree(popular, pip, tmp_path / "venv")
    ours, learned = our_tree(popular, tmp_path / "venv")
    assert len(learned) < len(popular)  # small ones share layers
    assert_same(ours, theirs)


def test_a_difference_would_be_seen(popular: list[Path], pip: Path, tmp_path: Path) -> None:
    """The comparison can fail: each kind of difference, put into what pip made."""
    some = [path for path in popular if path.name.startswith(("click", "wheel", "packaging"))]
    root = tmp_path / "venv"
    theirs = pip_tree(some, pip, root)
    ours, _ = our_tree(some, root)
    assert_same(ours, theirs)
    name = next(name for name in theirs.files if name.endswith("click/core.py"))
    found = theirs.files[name]
    record = next(name for name in theirs.rows if "click" in name)
    for files, rows in (
        ({**theirs.files, name: type(found)(True, found.sha256)}, theirs.rows),  # noqa: FBT003
        ({**theirs.files, name: type(found)(False, "0" * 64)}, theirs.rows),  # noqa: FBT003
        ({n: one for n, one in theirs.files.items() if n != name}, theirs.rows),
        ({**theirs.files, "bin/more": found}, theirs.rows),
        (theirs.files, {**theirs.rows, record: {*theirs.rows[record], ("more", "", "")}}),
        (theirs.files, {**theirs.rows, record: set(list(theirs.rows[record])[1:])}),
    ):
        with pytest.raises(AssertionError):
            assert_same(ours, Tree(files, rows))


@pytest.mark.parametrize("bits", range(4))
def test_damage_in_a_real_wheel_is_found(bits: int, popular: list[Path], tmp_path: Path) -> None:
    """Bits flipped all over a real wheel: refused, or of no meaning for what is in it."""
    path = next(path for path in popular if path.name.startswith("click"))
    data, wheel, chance = path.read_bytes(), locked(path), random.Random(bits)
    whole = files_of(collect(stream_of(data, tmp_path, wheel=wheel))[0])
    refused = 0
    for _ in range(100):
        damaged = bytearray(data)
        for _ in range(bits + 1):
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            layer, _ = collect(stream_of(bytes(damaged), tmp_path, wheel=wheel))
        except WheelRefusedError:
            refused += 1
        else:
            assert files_of(layer) == whole
    assert refused > 50


def test_wheels_of_a_directory_become_what_pip_makes_of_them(pip: Path, tmp_path: Path) -> None:
    directory = os.environ.get("GPU_PROVISION_WHEELS")
    if not directory:
        pytest.skip("GPU_PROVISION_WHEELS names no directory of wheels")
    paths = sorted(Path(directory).glob("*.whl"))
    assert paths
    for path in paths:
        root = tmp_path / "venv"
        theirs = pip_tree([path], pip, root)
        shutil.rmtree(root)
        ours, _ = our_tree([path], root)
        assert_same(ours, theirs)


def test_gnu_tar_and_gzip_read_a_layer(popular: list[Path], tmp_path: Path) -> None:
    gzip, tar = need.program("gzip"), need.program("tar")
    path = next(path for path in popular if path.name.startswith("jupyterlab-"))
    layer, _ = collect(stream_of(path.read_bytes(), tmp_path, wheel=locked(path)))
    file = tmp_path / "layer.tar.gz"
    file.write_bytes(layer)
    subprocess.run([gzip, "-t", str(file)], check=True, timeout=LIMIT_S)
    target = tmp_path / "unpacked"
    target.mkdir()
    done = run_program([tar, "-xzf", str(file), "-C", str(target)], check=True, timeout=LIMIT_S)
    assert done.stderr == ""
    found = [one for one in target.rglob("*") if one.is_file()]
    assert {str(one.relative_to(target)): one.read_bytes() for one in found} == files_of(layer)
    assert all(one.stat().st_mtime == MTIME for one in found)
