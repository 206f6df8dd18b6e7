"""A plan as commands for a host without containers: what is installed, from where, and what else
the host needs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pip
import pytest
from ruamel.yaml import YAML

from provision.cli.render.install import FORMATS, HostInstall, as_conda, as_pip, as_uv, host_install
from provision.host.uv import uv_program
from provision.model.plan import Base, IndexCandidate, Plan
from provision.resolve.builds import Build
from tests.kit.cases import cases
from tests.kit.local_index import LocalIndex, wheel

URL = "https://index.example/cu117"
PYTORCH = IndexCandidate(
    name="PyTorch index (cu117)", url=URL, requirement="torch==2.0.1+cu117", why="its own index"
)
PYPI = IndexCandidate(name="PyPI", url=None, requirement="torch==2.0.1", why="the cu117 build")
OWN = PYTORCH._replace(name="--index", url="https://me:s3cret@mirror.example/simple")
TENSORFLOW = PYPI._replace(requirement="tensorflow[and-cuda]==2.18.1", why="published there")
JAX = PYPI._replace(requirement="jax[cuda12]==0.5.0", why="published there")

BOOTSTRAP = Base(kind="bootstrap", reference="bootstrap", python="3.11", glibc="2.36")
PLAN = Plan(
    verdict="direct",
    framework="pytorch",
    framework_version="2.0.1",
    cuda="11.7",
    wheel_tag="cu117",
    python="3.11",
    cudnn="8.5.0.96",
    arch="x86_64",
    driver_have="470.82.01",
    driver_need="450.80.02",
    base=Base(kind="registry", reference="python:3.11", python="3.11", glibc="2.36"),
    requirements=("numpy<2", "pip"),
    indexes=(PYTORCH,),
)
BUILD = Build(
    framework="pytorch",
    version="2.0.1",
    tag="cu117",
    cuda="11.7",
    arch="x86_64",
    python_tags=("cp311",),
    sm=(),
    ptx=None,
    glibc="2.17",
    existence="confirmed",
    at=("pytorch",),
    source="a table",
    sm_source=None,
    requirement="torch==2.0.1",
)


def installed(*, system: bool = False, **changes: Any) -> HostInstall:
    build = BUILD._replace(libraries="system" if system else "wheels")
    return host_install(PLAN._replace(**changes), build)


def remarks(*, system: bool = False, **changes: Any) -> str:
    return " ".join(installed(system=system, **changes).remarks)


def commands_of(script: str) -> list[list[str]]:
    """The commands as the shell reads them."""
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    end = words.index("&&")
    return [words[:end], words[end + 1 :]]


CASES = [
    pytest.param({}, URL, ["torch==2.0.1+cu117", "numpy<2"], id="the PyTorch index"),
    pytest.param({"indexes": (PYPI,)}, None, ["torch==2.0.1", "numpy<2"],
                 id="a PyTorch of PyPI alone"),
    pytest.param({"indexes": (PYTORCH, PYPI)}, URL, ["torch==2.0.1+cu117", "numpy<2"],
                 id="only the first of two indexes"),
    pytest.param({"indexes": (OWN, PYTORCH)}, "https://mirror.example/simple",
                 ["torch==2.0.1+cu117", "numpy<2"], id="the user's index without its credentials"),
    pytest.param({"framework": "tensorflow", "wheel_tag": None, "indexes": (TENSORFLOW,),
                  "requirements": ("nvidia-cudnn-cu12==9.3.0.75", "pip")}, None,
                 ["tensorflow[and-cuda]==2.18.1", "nvidia-cudnn-cu12==9.3.0.75"],
                 id="TensorFlow, whose wheels contain CUDA"),
    pytest.param({"framework": "jax", "wheel_tag": None, "indexes": (JAX,),
                  "requirements": ("cuda-toolkit[cublas,nvcc]==12.8.*", "pip")}, None,
                 ["jax[cuda12]==0.5.0", "cuda-toolkit[cublas,nvcc]==12.8.*"],
                 id="JAX with its toolkit"),
    pytest.param(
        {
            "requirements": (
                "pip",
                "transformers[torch]!=4.40,>=4",
                'example; python_version < "3.12" and os_name == "it\'s $(id) # \\ x: y"',
            )
        },
        URL,
        [
            "torch==2.0.1+cu117",
            "transformers[torch]!=4.40,>=4",
            'example; python_version < "3.12" and os_name == "it\'s $(id) # \\ x: y"',
        ],
        id="extras, markers, quotes and spaces",
    ),
    pytest.param({"flavour": "devel", "base": BOOTSTRAP,
                  "requirements": ("pip", "ninja", "cuda-toolkit[nvcc,crt]==13.0.*")}, URL,
                 ["torch==2.0.1+cu117", "ninja", "cuda-toolkit[nvcc,crt]==13.0.*"],
                 id="a compiler from wheels"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "index", "packages"), CASES)
def test_uv_gets_the_index_and_every_package(
    changes: dict[str, Any], index: str | None, packages: list[str]
) -> None:
    environment, (*install,) = commands_of(as_uv(installed(**changes)))
    assert environment == ["uv", "venv", "--python", "3.11", ".venv"]
    assert install[:5] == ["uv", "pip", "install", "--python", ".venv"]
    left = [word for word in install[5:] if word != "pip"]  # the image has pip, so .venv gets it
    assert left == [*(["--index", index] if index else []), *packages]
    assert "pip" in install[5:]


@pytest.mark.parametrize(("changes", "index", "packages"), CASES)
def test_pip_gets_the_index_and_every_package_but_itself(
    changes: dict[str, Any], index: str | None, packages: list[str]
) -> None:
    environment, install = commands_of(as_pip(installed(**changes)))
    assert environment == ["python3.11", "-m", "venv", ".venv"]
    assert install[:4] == [".venv/bin/python", "-m", "pip", "install"]
    assert install[4:] == [*(["--extra-index-url", index] if index else []), *packages]


@pytest.mark.parametrize(("changes", "index", "packages"), CASES)
def test_conda_leaves_the_same_to_pip(
    changes: dict[str, Any], index: str | None, packages: list[str]
) -> None:
    install = installed(**changes)
    lines = [*([f"--extra-index-url {index}"] if index else []), *packages]
    assert YAML(typ="safe").load(as_conda(install)) == {
        "name": install.name,
        "channels": ["conda-forge"],
        "dependencies": ["python=3.11", "pip", {"pip": lines}],
    }


@pytest.mark.parametrize(("changes", "index", "packages"), CASES)
def test_the_shell_accepts_it(
    changes: dict[str, Any], index: str | None, packages: list[str]
) -> None:
    del index, packages
    for script in (as_uv(installed(**changes)), as_pip(installed(**changes))):
        subprocess.run(["/bin/sh", "-n"], input=script, text=True, check=True)


def test_for_uv_it_reads_like_this() -> None:
    assert as_uv(installed(indexes=(PYTORCH, PYPI))).splitlines() == [
        "# PyTorch 2.0.1+cu117 for x86_64 and Python 3.11: runs.",
        "# The host needs NVIDIA driver 450.80.02 or newer (it has 470.82.01).",
        "# The PyTorch wheel needs glibc 2.17 or newer.",
        "# Alternative: torch==2.0.1 from PyPI (the cu117 build).",
        "# uv downloads Python 3.11 if the host has none.",
        "# uv prefers https://index.example/cu117; only packages that it lacks come from",
        "#   the default index.", "uv venv --python 3.11 .venv &&",
        "uv pip install --python .venv \\", "  --index https://index.example/cu117 \\",
        "  torch==2.0.1+cu117 \\", "  'numpy<2' \\", "  pip",
    ]  # fmt: skip


@cases(
    "changes said",
    ("a local version", {}, "torch==2.0.1+cu117 comes from https://index."),
    ("a version that PyPI may have, too", {"indexes": (OWN._replace(requirement="torch==2.0.1"),)},
     "torch==2.0.1 comes from https://mirror.example/simple or from the default index"),
)  # fmt: skip
def test_pip_s_indexes_have_no_order(changes: dict[str, Any], said: str) -> None:
    for text in (as_pip(installed(**changes)), as_conda(installed(**changes))):
        assert said in " ".join(text.replace("#", " ").split())


@cases(
    "changes said",
    ("no driver", {"driver_have": None}, "450.80.02 or newer (none was found)"),
    ("a login", {"indexes": (OWN,)}, "login for https://mirror.example/"),
    ("CUDA of the system", {"system": True, "framework": "tensorflow"},
     "TensorFlow 2.0.1 loads CUDA 11.7 and cuDNN 8.5.0.96 from the system"),
    ("TensorFlow, which may not find the libraries of wheels", {"framework": "tensorflow"},
     "provision doctor explain tf-gpu-libraries-missing"),
    ("forward compatibility", {"verdict": "forward", "compat_package": "cuda-compat-11-7"},
     "Driver 470.82.01 runs CUDA 11.7 only with NVIDIA's cuda-compat-11-7"),
    ("the compiler of a devel image", {"flavour": "devel"}, "the CUDA Toolkit 11.7, g++"),
    ("a compiler from wheels", {"flavour": "devel", "base": BOOTSTRAP},
     "CUDA_HOME set to the directory of the wheels"),
)  # fmt: skip
def test_what_the_image_would_bring_is_said(changes: dict[str, Any], said: str) -> None:
    assert said in remarks(**changes)
    assert said not in remarks()


def test_no_login_is_printed() -> None:
    for render in FORMATS.values():
        assert "s3cret" not in render(installed(indexes=(OWN, OWN._replace(requirement="x"))))


def test_whatever_a_host_file_has_stays_a_comment() -> None:
    hostile = installed(driver_have="470\nrm -rf /\r\x0bx")
    for render in FORMATS.values():
        lines = [line for line in render(hostile).split("\n") if "rm -rf" in line]
        assert [line[0] for line in lines] == ["#"]


class TwoIndexes(LocalIndex):
    """A PyTorch index, and a default one whose builds have the same public versions."""

    def files(self, behaviour: str) -> dict[str, bytes]:
        local = "+cu117" if behaviour == "pytorch" else ""
        return {
            f"{name}-{version}{local}-py3-none-any.whl": wheel(
                name, f"{version}{local}", "py3-none-any"
            )
            for name, version in (("torch", "2.0.1"), ("torchvision", "0.15.2"))
        }


@pytest.fixture
def indexes() -> Iterator[LocalIndex]:
    with TwoIndexes().serving() as server:
        yield server


@pytest.mark.parametrize("form", ["uv", "pip"])
def test_what_is_printed_installs_the_builds_of_the_pytorch_index(
    form: str, indexes: LocalIndex, tmp_path: Path
) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    install = HostInstall(
        name="x",
        python=python,
        index_url=indexes.url("pytorch"),
        packages=("torch==2.0.1+cu117", "torchvision==0.15.2"),
        remarks=("A # and a '.",),
    )
    path = [str(Path(uv_program()).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    if form == "pip":  # a Debian without python3-venv cannot put pip into an environment
        program = tmp_path / "bin" / f"python{python}"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m venv --without-pip "$3"\n')
        program.chmod(0o755)
        path.insert(0, str(program.parent))
    subprocess.run(
        ["/bin/sh"],
        input=FORMATS[form](install),
        text=True,
        check=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(Path(pip.__file__).parents[1]) if form == "pip" else "",
            "UV_DEFAULT_INDEX": indexes.url("default"),
            "UV_PYTHON_DOWNLOADS": "never",
            "PIP_INDEX_URL": indexes.url("default"),
        },
    )
    found = {path.name for path in tmp_path.glob(".venv/lib/*/site-packages/torch*.dist-info")}
    assert found == {"torch-2.0.1+cu117.dist-info", "torchvision-0.15.2+cu117.dist-info"}
