"""Broken images, each made from the real one: the suite must name what is broken."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from tests import need
from tests.engines.lab import Built, Done, World
from tests.kit.cases import cases
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker

Derive = Callable[..., str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Lines of a Dockerfile ({site} is site-packages), and the check that must notice."""

    id: str
    lines: str
    check: str
    words: str
    level: str = "quick"


FAULTS = (
    Fault(
        id="NCCL's library is missing",
        lines="RUN rm {site}/nvidia/nccl/lib/libnccl.so.2",
        check="libraries.nccl",
        words="libnccl.so.2",
    ),
    Fault(
        id="cuDNN's library is missing",
        lines="RUN rm {site}/nvidia/cudnn/lib/libcudnn.so.8",
        check="libraries.cudnn",
        words="libcudnn.so.8",
    ),
    Fault(
        id="another cuDNN comes first on LD_LIBRARY_PATH",
        lines="RUN mkdir /opt/other && cp {site}/nvidia/cudnn/lib/*ops_infer* /opt/other\n"
        "ENV LD_LIBRARY_PATH=/opt/other",
        check="libraries.files",
        words="/opt/other",
    ),
    Fault(
        id="a system CUDA is preloaded",
        lines="RUN mkdir -p /usr/local/cuda && cp -r {site}/nvidia/cuda_runtime/lib "
        "/usr/local/cuda/lib64\nENV LD_PRELOAD=/usr/local/cuda/lib64/libcudart.so.11.0",
        check="libraries.files",
        words="/usr/local/cuda/lib64",
    ),
    Fault(
        id="torch was compiled for another CUDA",
        lines="RUN sed -i \"s/^cuda = .*/cuda = '11.8'/\" {site}/torch/version.py",
        check="libraries.cuda",
        words="11.8 instead of the requested 11.7",
    ),
    Fault(
        id="torch is another version",
        lines="RUN sed -i \"s/^__version__ = .*/__version__ = '2.1.0+cu117'/\" "
        "{site}/torch/version.py",
        check="libraries.framework",
        words="2.1.0 instead of the requested 2.0.1",
    ),
    Fault(
        id="torch is the same version of another build",
        lines="RUN sed -i \"s/^__version__ = .*/__version__ = '2.0.1+cu118'/\" "
        "{site}/torch/version.py",
        check="libraries.framework",
        words="cu118 instead of the requested cu117",
    ),
    Fault(
        id="torch is a CPU build",
        lines="RUN sed -i 's/^cuda = .*/cuda = None/' {site}/torch/version.py",
        check="libraries.cuda",
        words="without CUDA",
    ),
    Fault(
        id="a CUDA library is cut short",
        lines="RUN truncate -s 4096 {site}/nvidia/cublas/lib/libcublas.so.11",
        check="libraries.cuda",
        words="truncated",
    ),
    Fault(
        id="a CUDA library is empty",
        lines="RUN truncate -s 0 {site}/nvidia/cublas/lib/libcublas.so.11",
        check="libraries.cuda",
        words="file too short",
    ),
    Fault(
        id="torch is gone",
        lines="RUN rm -r {site}/torch",
        check="libraries.framework",
        words="No module named 'torch'",
    ),
    Fault(
        id="importing torch ends the process",
        lines="RUN echo 'import os; os.abort()' > {site}/torch/__init__.py",
        check="libraries.framework",
        words="SIGABRT",
    ),
    Fault(
        id="a collective cannot be had",
        lines="RUN echo 'raise ImportError(\"no distributed here\")' > "
        "{site}/torch/distributed/__init__.py",
        check="collectives.gloo",
        words="no distributed here",
        level="standard",
    ),
)


@pytest.fixture(scope="module")
def site(client: Any, built: Built) -> str:
    """The image's site-packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    command = ["python3", "-c", code]
    output: bytes = client.containers.run(built.tag, command, network_mode="none", remove=True)
    return output.decode().strip()


@pytest.fixture
def derive(client: Any, built: Built, site: str) -> Iterator[Derive]:
    """Makes an image from the real one; its name goes when the test ends."""
    made: list[str] = []

    def make(lines: str, folders: Mapping[str, Path] | None = None) -> str:
        tag = f"gpu-provision-test:fault-{len(made)}"
        text = f"FROM {built.tag}\n{lines.replace('{site}', site)}\n"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            entry = tarfile.TarInfo("Dockerfile")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
            for name, folder in (folders or {}).items():
                tar.add(folder, name)
        buffer.seek(0)
        client.images.build(
            fileobj=buffer, custom_context=True, tag=tag, network_mode="none", rm=True, forcerm=True
        )
        made.append(tag)
        return tag

    yield make
    for tag in made:
        client.images.remove(tag, force=True)


def verify(world: World, tag: str, level: str = "quick") -> Done:
    return world.provision("verify", tag, "--level", level, "--json")


def row(done: Done, check: str) -> Any:
    return next(row for row in done.account["checks"] if row["id"] == check)


def told(row: Any) -> str:
    return " ".join(str(row[part]) for part in ("message", "cause", "fix"))


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.id) for fault in FAULTS])
def test_a_broken_image_is_unfit_and_the_check_says_why(
    world: World, derive: Derive, fault: Fault
) -> None:
    done = verify(world, derive(fault.lines), fault.level)
    assert done.code == 1, done.err
    found = row(done, fault.check)
    assert found["status"] in {"fail", "error"}
    assert fault.words in told(found)
    assert found["cause"]
    assert found["fix"]


def test_a_numpy_of_another_abi_is_noticed(
    world: World, derive: Derive, tmp_path: Path, built: Built
) -> None:
    argv = [find_uv_bin(), "pip", "install", "--quiet", "--target", str(tmp_path / "numpy2")]
    argv += ["--python-version", built.account["plan"]["python"], "--only-binary", ":all:"]
    done = run_program(
        [
            *argv,
            "--python-platform",
            f"{built.account['plan']['arch']}-manylinux_2_28",
            "numpy==2.2.*",
        ]
    )
    if done.returncode != 0:
        need.lacking(f"numpy 2 cannot be fetched: {done.stderr}")
    tag = derive(
        "RUN rm -r {site}/numpy {site}/numpy.libs {site}/numpy-*\nCOPY numpy2 {site}/",
        {"numpy2": tmp_path / "numpy2"},
    )
    found = verify(world, tag)
    assert found.code == 1
    assert "numpy<2" in told(row(found, "libraries.numpy"))


HARMLESS = (  # torch finds its own libcudart all the same
    "RUN touch {site}/torch/version.py && mkdir -p /usr/local/cuda && "
    "cp -r {site}/nvidia/cuda_runtime/lib /usr/local/cuda/lib64\n"
    "ENV LD_LIBRARY_PATH=/nowhere:/usr/local/cuda/lib64"
)


def test_a_change_that_breaks_nothing_is_not_called_a_fault(world: World, derive: Derive) -> None:
    need.no_gpu()
    done = verify(world, derive(HARMLESS))
    assert done.code == 7
    assert {row["status"] for row in done.account["checks"]} == {"pass", "skip"}


SHAM = (
    "RUN rm /opt/venv/bin/python3 && printf '#!/bin/sh\\n%s\\n' {words} > /opt/venv/bin/python3 "
    "&& chmod +x /opt/venv/bin/python3"
)


@cases(
    "lines",
    ("the suite is gone", "RUN rm -r /opt/gpu-provision/lib/verify"),
    ("python prints garbage", SHAM.format(words="'echo garbage'")),
    ("python says nothing", SHAM.format(words="'exit 0'")),
    ("python prints JSON that is no object", SHAM.format(words="'echo null'")),
    ("python prints a bare claim", SHAM.format(words='"echo \'{\\"verdict\\": \\"fit\\"}\'"')),
    ("python is gone", "RUN rm /usr/bin/python3*"),
    ("the entrypoint swallows the command", 'ENTRYPOINT ["echo"]'),
    ("the image's user does not exist", "USER nobody:nosuchgroup"),
)
def test_an_image_that_gives_no_report_is_a_failure_in_one_sentence(
    world: World, derive: Derive, lines: str
) -> None:
    done = verify(world, derive(lines))
    assert done.code in {1, 5}, done.err
    assert set(done.account) - {"doctor"} == {"schema", "error"}
    if lines == "RUN rm /usr/bin/python3*":
        assert done.account["error"]["code"] == "no-program"
    assert done.account["error"]["fix"]


def test_an_entrypoint_that_prints_a_banner_takes_no_report_away(
    world: World, derive: Derive
) -> None:
    need.no_gpu()
    banner = 'ENTRYPOINT ["sh", "-c", "echo; echo == CUDA ==; exec \\"$@\\"", "sh"]'
    done = verify(world, derive(banner))
    assert done.code == 7, done.err


@cases(
    "value",
    ("an empty label", ""),
    ("an empty plan", "{}"),
    ("a list", "[1]"),
    ("a plan of wrong types", '{"cuda": 7}'),
    ("a long word", "x" * 9000),
)
def test_an_image_that_says_nonsense_of_itself_is_refused(
    world: World, derive: Derive, value: str
) -> None:
    done = verify(world, derive(f"LABEL org.gpu-provision.plan='{value}'"))
    assert done.code == 2, done.err


def test_an_image_that_we_did_not_make_is_refused(world: World, built: Built) -> None:
    done = verify(world, built.account["plan"]["base"]["reference"])
    assert done.code == 2
    assert "label" in done.account["error"]["message"]


def test_an_image_that_is_not_there_is_told_apart(world: World, built: Built) -> None:
    del built
    done = verify(world, "gpu-provision-test:nowhere")
    assert done.code == 5
    assert "no image" in done.account["error"]["message"]
