"""`provision wheel`, really: the gcc of a devel image compiles a source in C; images get the wheel.

A torch that is only a name stands for the framework, so no CUDA is compiled here;
tests/wheels/test_cuda_extension.py does that on request.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from provision.lock.lockfile import read_lock
from tests import need
from tests.engines.lab import Done, World, new_world
from tests.engines.small_build import PASSWORD, Source, left_over
from tests.kit.private_index import Index, Wheel, make_wheel, serve

pytestmark = pytest.mark.docker

TAG = "gpu-provision-test:from-source"
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "MAX_JOBS": "3"}
PLAN = ("--cuda", "13.0", "--framework-version", "2.9.1", "--base", "bootstrap", "--python", "3.11")
HOST = ("--gpu", "H100", "--driver", "580.95.05")
# A build backend that needs nothing: it compiles with the image's gcc, and keeps what it was told.
BACKEND = """
import os, subprocess, sysconfig, zipfile

import helper
import torch

NAMES = ("TORCH_CUDA_ARCH_LIST", "FORCE_CUDA", "MAX_JOBS")
TAG = "cp311-cp311-linux_x86_64"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    compiler = ["gcc", "-shared", "-fPIC", "-I", sysconfig.get_path("include")]
    subprocess.run([*compiler, "-c", "fastsum.c", "-o", "fastsum.o"], check=True)
    subprocess.run([*compiler, "fastsum.o", "-o", "fastsum.so"], check=True)
    told = {name: os.environ.get(name) for name in NAMES}
    told |= {"helper": helper.X, "torch": torch.__version__}
    name, info = f"fastsum-1.5-{TAG}.whl", "fastsum-1.5.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.write("fastsum.so", "fastsum.so")
        wheel.writestr("told.py", f"TOLD = {told!r}")
        metadata = "Metadata-Version: 2.1\\nName: fastsum\\nVersion: 1.5\\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        pure = "Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\n"
        wheel.writestr(f"{info}/WHEEL", f"{pure}Tag: {TAG}\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = ["torch", "helper>=2"]
build-backend = "backend"
backend-path = ["."]
"""
CODE = """
#include <Python.h>
static PyObject *add(PyObject *self, PyObject *args) {
    long a, b;
    if (!PyArg_ParseTuple(args, "ll", &a, &b)) return NULL;
    return PyLong_FromLong(a + b);
}
static PyMethodDef methods[] = {{"add", add, METH_VARARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastsum", "", -1, methods};
PyMODINIT_FUNC PyInit_fastsum(void) { return PyModule_Create(&module); }
"""


# A backend without compiled parts, whose wheel has other bytes each time: the time of its files.
PLAIN_BACKEND = """
import os, time, zipfile


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name, info = "slowwords-0.4-py3-none-any.whl", "slowwords-0.4.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        def put(path, text):
            wheel.writestr(zipfile.ZipInfo(path, time.localtime()[:6]), text)
        put("slowwords.py", "WORDS = 3\\n")
        put(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: slowwords\\nVersion: 0.4\\n")
        put(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        put(f"{info}/RECORD", "")
    return name
"""
PLAIN = {
    "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'own'\n"
    "backend-path = ['.']\n",
    "own.py": PLAIN_BACKEND,
}


def archive_of(top: str, files: Mapping[str, str]) -> Wheel:
    """A source archive, for an index."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return Wheel(f"{top}.tar.gz", buffer.getvalue())


def sdist(version: str, code: str) -> Wheel:
    files = {"pyproject.toml": PROJECT, "backend.py": BACKEND, "fastsum.c": code}
    return archive_of(f"fastsum-{version}", files)


@pytest.fixture(scope="module")
def index(source: Source, pip_wheel: Wheel) -> Iterator[Index]:
    stubs = {
        "torch-2.9.1+cu130-cp311-cp311-manylinux_2_28_x86_64.whl": "torch",
        "numpy-2.3.0-py3-none-any.whl": "numpy",
        "ninja-1.13-py3-none-any.whl": "ninja",
        "setuptools-84.0-py3-none-any.whl": "setuptools",
        "wheel-1.0-py3-none-any.whl": "wheel",
        "packaging-26.0-py3-none-any.whl": "packaging",
        "cuda_toolkit-13.0.3-py3-none-any.whl": "cuda_toolkit_stub",
    }
    wheels = [
        make_wheel(name, {f"{module}/__init__.py": b"__version__ = '2.9.1+cu130'\n"})
        for name, module in stubs.items()
    ]
    helpers = [
        make_wheel(f"helper-{n}-py3-none-any.whl", {"helper.py": b"X = %d" % n}) for n in (1, 2)
    ]
    sources = [sdist("1.5", CODE), sdist("2.0", CODE.replace("a + b", "a + c"))]
    sources.append(archive_of("slowwords-0.4", PLAIN))
    named = [*wheels, *helpers, *sources, pip_wheel, source.uv_wheel]
    with serve(source.authority, *named, password=PASSWORD) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    """A world without an engine."""
    need.program("unshare", "util-linux")
    with new_world(**NO_ENGINE) as found:
        yield found


def run(world: World, source: Source, index: Index, verb: str, *words: str) -> Done:
    network = ["--ca-bundle", str(source.authority.bundle)]
    argv = [verb, *words, *PLAN, *HOST, "--index", index.url, *network]
    return world.provision(*argv, UV_DEFAULT_INDEX=index.url)


@pytest.fixture(scope="module")
def built(alone: World, source: Source, index: Index) -> Any:
    """The wheel, built once."""
    done = run(alone, source, index, "wheel", "fastsum<2", "--json")
    assert done.code == 0, done.err
    [wheel] = done.account["wheels"]
    return wheel


def test_the_wheel_is_compiled_in_the_devel_image(built: Any) -> None:
    assert built["built"]
    assert built["key"]["version"] == "1.5"
    assert built["key"]["capabilities"] == ["9.0"]
    assert any(line.startswith("g++") for line in built["compiler"])
    with zipfile.ZipFile(built["path"]) as archive:
        assert archive.read("fastsum.so").startswith(b"\x7fELF")
        told: dict[str, Any] = {}
        exec(archive.read("told.py"), told)
    assert told["TOLD"] == {
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "FORCE_CUDA": "1",
        "MAX_JOBS": "3",
        "helper": 2,
        "torch": "2.9.1+cu130",
    }


def test_nothing_is_left_over_and_no_image_has_a_name(alone: World, built: Any) -> None:
    assert left_over(alone) == []
    assert not list((alone.cache / "gpu-provision").glob("gpu-provision-run-*"))
    assert not list((alone.place / "data").rglob("index.json"))
    assert Path(built["path"]).is_file()


def test_the_same_wheel_is_not_built_twice(
    alone: World, source: Source, index: Index, built: Any, tmp_path: Path
) -> None:
    done = run(alone, source, index, "wheel", "fastsum==1.5", "--json", "--output", str(tmp_path))
    [again] = done.account["wheels"]
    assert (again["built"], again["sha256"]) == (False, built["sha256"])
    assert (tmp_path / Path(built["path"]).name).read_bytes() == Path(built["path"]).read_bytes()
    assert "compile" not in done.err


@pytest.mark.usefixtures("built")
def test_a_source_with_an_error_names_the_compilers_words(
    alone: World, source: Source, index: Index
) -> None:
    done = run(alone, source, index, "wheel", "fastsum", "--json")
    assert done.code == 6
    error = done.account["error"]
    assert error["code"] == "wheel-build-failed"
    assert "fastsum 2.0 could not be built: fastsum.c:" in error["message"]
    assert "'c' undeclared" in error["message"].replace("\u2018", "'").replace("\u2019", "'")
    log = alone.cache / "gpu-provision/logs/wheel-fastsum-2.0.log"
    assert str(log) in error["fix"]
    assert "PyInit_fastsum" in log.read_text() or "fastsum.c" in log.read_text()
    assert left_over(alone) == []


@pytest.mark.usefixtures("built")
def test_a_lock_takes_the_wheel_and_an_image_is_built_with_it(
    alone: World, source: Source, index: Index, tmp_path: Path
) -> None:
    lock = tmp_path / "pylock.toml"
    done = run(alone, source, index, "lock", "--with", "fastsum", "--output", str(lock))
    assert done.code == 0, done.err
    assert "so this lock can be built only here" in done.err.replace("\n         ", " ")
    words = ["build", "--lock", str(lock), "--no-verify", "--output", str(tmp_path / "image")]
    built = alone.provision(*words, "--ca-bundle", str(source.authority.bundle))
    assert built.code == 0, built.err


def test_an_engine_builds_an_image_with_the_wheel(
    own_world: World, source: Source, index: Index, built: Any
) -> None:
    wheel = Path(built["path"])
    kept = own_world.place / "data/gpu-provision/wheels"
    shutil.copytree(wheel.parents[1], kept)
    words = ("--with", "fastsum", "--builder", "docker", "--no-verify", "--tag", TAG, "--json")
    done = run(own_world, source, index, "build", *words)
    assert done.code == 0, done.err
    assert "local-wheel" in [found["code"] for found in done.account["plan"]["warnings"]]
    with closing(docker.DockerClient(base_url=own_world.env["DOCKER_HOST"])) as client:
        asked = ["python3", "-c", "import fastsum; print(fastsum.add(2, 3))"]
        assert client.containers.run(TAG, asked, remove=True, network_mode="none") == b"5\n"
        client.images.remove(TAG, force=True)


def test_an_engine_builds_the_wheel(own_world: World, source: Source, index: Index) -> None:
    done = run(own_world, source, index, "wheel", "fastsum<2", "--json")
    assert done.code == 0, done.err
    [wheel] = done.account["wheels"]
    with zipfile.ZipFile(wheel["path"]) as archive:
        assert archive.read("fastsum.so").startswith(b"\x7fELF")


# ---- a source without compiled parts ----


@pytest.fixture(scope="module")
def plain_lock(alone: World, source: Source, index: Index) -> Path:
    """A lock whose slowwords was built in the sandbox."""
    path = alone.place / "pylock.plain.toml"
    done = run(alone, source, index, "lock", "--with", "slowwords", "--output", str(path))
    assert done.code == 0, done.err
    assert "can be built only here" not in done.err
    return path


def test_a_source_without_compiled_parts_is_locked_with_what_built_it(plain_lock: Path) -> None:
    lock = read_lock(plain_lock.read_text())
    [one] = lock.builds
    assert (one.name, one.version, one.wheel) == (
        "slowwords", "0.4", "slowwords-0.4-py3-none-any.whl"
    )  # fmt: skip
    assert {wheel.name for wheel in one.backend} == {"pip", "setuptools", "wheel"}
    assert "slowwords-0.4.tar.gz" in lock.text
    assert "/data/" not in lock.text


def test_another_machine_builds_the_same_bytes(
    source: Source, index: Index, plain_lock: Path, tmp_path: Path
) -> None:
    with new_world(**NO_ENGINE) as other:
        words = ["--lock", str(plain_lock), "--index", index.url]
        words += ["--ca-bundle", str(source.authority.bundle)]
        login = {"UV_DEFAULT_INDEX": index.url}
        bundle = str(tmp_path / "plain.bundle")
        packed = other.provision("bundle", *words, "--output", bundle, "--json", **login)
        assert packed.code == 0, packed.err
        assert "slowwords 0.4 in the sandbox" in packed.err
    rows = {row["path"]: row["sha256"] for row in packed.account["files"]}
    [one] = read_lock(plain_lock.read_text()).builds
    assert rows[f"wheels/{one.wheel}"] == one.sha256
    with new_world(**NO_ENGINE) as third:
        out = str(tmp_path / "image")
        done = third.provision("build", "--bundle", bundle, "--no-verify", "--output", out)
        assert done.code == 0, done.err
        assert "in the sandbox" not in done.err


def test_an_engine_installs_the_wheel_that_was_built_while_locking(
    own_world: World, source: Source, index: Index, plain_lock: Path
) -> None:
    words = ["--lock", str(plain_lock), "--index", index.url, "--builder", "docker", "--no-verify"]
    words += ["--ca-bundle", str(source.authority.bundle), "--tag", TAG]
    done = own_world.provision("build", *words, UV_DEFAULT_INDEX=index.url)
    assert done.code == 0, done.err
    with closing(docker.DockerClient(base_url=own_world.env["DOCKER_HOST"])) as client:
        asked = ["python3", "-c", "import slowwords; print(slowwords.WORDS)"]
        assert client.containers.run(TAG, asked, remove=True, network_mode="none") == b"3\n"
        client.images.remove(TAG, force=True)
