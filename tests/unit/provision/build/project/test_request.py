"""A declaration and the options of the command line: what holds, and what contradicts what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from provision.build.project.request import ProjectConflictError, request_of, with_locked_cuda
from provision.catalog.loading import load
from provision.model.plan import Request
from provision.model.request import parse_request
from provision.resolve import resolve
from provision.sources.declaration import Declaration, Declared
from provision.sources.find import Project
from tests.kit.cases import cases
from tests.kit.hosts import host

KNOWN = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def declared(*lines: str, **more: Any) -> Declaration:
    constraints = tuple(Declared(text, "uv.lock", 9) for text in more.pop("constraints", ()))
    packages = tuple(Declared(text, "r.txt", i) for i, text in enumerate(lines, start=1))
    return Declaration(source="r.txt", packages=packages, constraints=constraints, **more)


def merged(declaration: Declaration, checkout: str | None = None, /, **given: Any) -> Request:
    project = Project(
        root=Path("/p"),
        declared=declaration,
        python=Declared(checkout, ".python-version", 1) if checkout else None,
    )
    named = "framework" in given
    return request_of(project, parse_request(**given), named=named, arch="x86_64", known=KNOWN)


@cases(
    "lines given framework release cuda",
    ("a pin", ["torch==2.5.1"], {}, "pytorch", "==2.5.1", None),
    ("a build names its CUDA", ["torch==2.5.1+cu121"], {}, "pytorch", "==2.5.1", "12.1"),
    ("a build for CPUs keeps its release", ["torch==2.5.1+cpu"], {}, "pytorch", "==2.5.1", None),
    ("a range", ["torch>=2.4,<2.6"], {}, "pytorch", "<2.6,>=2.4", None),
    ("any release", ["torch"], {}, "pytorch", None, None),
    ("no framework at all", ["numpy"], {}, "pytorch", None, None),
    ("TensorFlow", ["tensorflow[and-cuda]==2.18.0"], {}, "tensorflow", "==2.18.0", None),
    ("TensorFlow for CPUs", ["tensorflow-cpu==2.18.0"], {}, "tensorflow", "==2.18.0", None),
    ("JAX", ["jax[cuda12]==0.4.35"], {}, "jax", "==0.4.35", None),
    ("PyTorch before JAX", ["jax", "torch==2.5.1"], {}, "pytorch", "==2.5.1", None),
    ("the framework that is named", ["jax==0.4.35", "torch"], {"framework": "jax"}, "jax",
     "==0.4.35", None),
    ("an option narrows a range", ["torch>=2.4"], {"framework_version": "2.5.1"}, "pytorch",
     "==2.5.1,>=2.4", None),
    ("a pin within an option's range", ["torch==2.5.1"], {"framework_version": ">=2"}, "pytorch",
     "==2.5.1,>=2", None),
    ("the same CUDA twice", ["torch==2.5.1+cu121"], {"cuda": "12.1"}, "pytorch", "==2.5.1", "12.1"),
    ("a CUDA that the project leaves open", ["torch==2.5.1"], {"cuda": "12.4"}, "pytorch",
     "==2.5.1", "12.4"),
)  # fmt: skip
def test_the_framework(
    lines: list[str], given: dict[str, Any], framework: str, release: str | None, cuda: str | None
) -> None:
    found = merged(declared(*lines), **given)
    clauses = sorted((found.framework_version or "").split(","))
    assert (found.framework, clauses, found.cuda) == (
        framework,
        sorted((release or "").split(",")),
        cuda,
    )


@cases(
    "declaration python given said",
    ("another release", declared("torch==2.5.1"), None, {"framework_version": "2.6.0"},
     ("--framework-version 2.6.0", "r.txt, line 1")),
    ("a release out of the range", declared("torch<2.5"), None, {"framework_version": "2.6.0"},
     ("--framework-version 2.6.0", "torch<2.5")),
    ("another CUDA", declared("torch==2.5.1+cu121"), None, {"cuda": "12.4"},
     ("--cuda 12.4", "r.txt, line 1", "12.1")),
    ("a Python that the project excludes", declared("torch", python=Declared("<3.12", "p.toml", 3)),
     None, {"python": "3.12"}, ("--python 3.12", "p.toml, line 3", "<3.12")),
    ("another release of a package", declared("torch", "peft==0.10"), None,
     {"companions": ["peft==0.12"]}, ("--with peft==0.12", "r.txt, line 2")),
    ("a Python that does not exist", declared("torch", python=Declared(">=4", "p.toml", 3)), None,
     {}, ("p.toml, line 3", ">=4")),
)  # fmt: skip
def test_a_contradiction_names_both(
    declaration: Declaration, python: str | None, given: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(ProjectConflictError, match=r".") as caught:
        merged(declaration, python, **given)
    assert [words for words in said if words not in caught.value.message] == []
    form = r"Remove --([a-z-]+)( '[^']+')?, or change \w\.\w+, line \d\.$"
    option = re.match(form, caught.value.fix)
    if given:
        assert option is not None, caught.value.fix
        field = "companions" if option[1] == "with" else option[1].replace("-", "_")
        without = {name: value for name, value in given.items() if name != field}
        assert without != given
        request = merged(declaration, python, **without)
        assert resolve([host("580.95.05", "8.6")], request, load()).error is None


def test_the_framework_and_what_comes_with_it_are_left_to_the_plan() -> None:
    found = merged(
        declared(
            "torch==2.5.1", "nvidia-cublas-cu12==12.1.3.1", "triton==3.1.0", "nvidia-ml-py==12.5",
            "torchvision==0.20.1+cpu", "numpy<2", "jax",
            constraints=["nvidia-cudnn-cu12==9.1.0.70", "sympy==1.13.1", "torch==2.5.1"],
        )
    )  # fmt: skip
    assert found.companions == ("nvidia-ml-py==12.5", "torchvision==0.20.1", "numpy<2", "jax")
    assert found.constraints == ("sympy==1.13.1",)


def test_without_the_framework_its_libraries_are_packages_like_others() -> None:
    found = merged(declared("onnxruntime-gpu", "nvidia-cudnn-cu12==9.1.0.70"))
    assert found.companions == ("onnxruntime-gpu", "nvidia-cudnn-cu12==9.1.0.70")


@cases(
    "declaration given settled",
    ("every line is a pin", declared("torch==2.5.1", "peft==0.1"), {}, True),
    ("a line is open", declared("torch==2.5.1", "peft"), {}, False),
    ("the framework is open", declared("peft==0.1"), {}, False),
    ("a lock", declared("torch==2.5.1", "peft", locked=True), {}, True),
    ("an option asks for more", declared("torch==2.5.1", locked=True), {"companions": ["vllm"]},
     False),
)  # fmt: skip
def test_whether_there_is_anything_to_choose(
    declaration: Declaration, given: dict[str, Any], *, settled: bool
) -> None:
    assert merged(declaration, **given).settled == settled


@cases(
    "limit checkout given python pythons",
    ("a range", ">=3.10,<3.12", None, None, None, ("3.10", "3.11")),
    ("the checkout's own", ">=3.10,<3.12", "3.11", None, "3.11", ()),
    ("that is excluded", ">=3.10,<3.12", "3.12", None, None, ("3.10", "3.11")),
    ("an option wins over a checkout", ">=3.10", "3.11", "3.12", "3.12", ()),
    ("nothing", None, None, None, None, ()),
)
def test_python(
    limit: str | None,
    checkout: str | None,
    given: str | None,
    python: str | None,
    pythons: tuple[str, ...],
) -> None:
    at = Declared(limit, "p.toml", 3) if limit else None
    found = merged(declared("torch", python=at), checkout, python=given)
    assert (found.python, found.pythons) == (python, pythons)


def test_a_lock_with_two_releases_takes_the_newer_one_and_its_pythons() -> None:
    lines = ('torch==2.8.0; python_version < "3.10"', 'torch==2.9.0; python_version >= "3.10"')
    limit = Declared(">=3.9,<3.12", "p.toml", 1)
    found = merged(declared(*lines, python=limit, locked=True))
    assert (found.framework_version, found.pythons) == ("==2.9.0", ("3.10", "3.11"))
    older = merged(declared(*lines, python=limit, locked=True), python="3.9")
    assert (older.framework_version, older.python) == ("==2.8.0", "3.9")


@cases(
    "constraints given cuda",
    ("the runtime of a lock", ["nvidia-cuda-runtime-cu12==12.8.90"], {}, "12.8"),
    ("its name since CUDA 13", ["nvidia-cuda-runtime==13.0.96"], {}, "13.0"),
    ("one that does not fit", ["nvidia-cuda-runtime==13.2.1"], {}, None),
    ("an option comes first", ["nvidia-cuda-runtime-cu12==12.8.90"], {"cuda": "12.6"}, "12.6"),
    ("the one for the newest Python",
     ['nvidia-cuda-runtime==13.0.96; python_version < "3.12"',
      "nvidia-cuda-runtime-cu12==12.8.90; python_version >= '3.12'"], {}, "12.8"),
    ("not a pin", ["nvidia-cuda-runtime-cu12>=12"], {}, None),
    ("another library", ["nvidia-cublas-cu12==12.8.3.14"], {}, None),
)  # fmt: skip
def test_the_cuda_of_a_lock_is_kept_if_it_fits(
    constraints: list[str], given: dict[str, Any], cuda: str | None
) -> None:
    found = declared("torch==2.9.1", constraints=constraints, locked=True)
    request = with_locked_cuda(
        merged(found, **given),
        found,
        arch="x86_64",
        known=KNOWN,
        cudas=CUDAS,
        fits=lambda asked: asked.cuda != "13.2",
    )
    assert request.cuda == cuda


CUDAS = ("11.8", "12.6", "12.9", "13.0")


@cases(
    "line given fitting cuda",
    ("the newest of the extra", "jax[cuda12]==0.7.2", {}, "12.9", "12.9"),
    ("the newest that fits", "jax[cuda12]==0.7.2", {}, "12.6", "12.6"),
    ("none fits: the plan will say why", "jax[cuda12]", {}, "13.0", "12.9"),
    ("with local libraries", "jax[k8s,cuda13-local]", {}, "13.0", "13.0"),
    ("another extra", "jax[k8s]", {}, "13.0", None),
    ("another Python's", "jax[cuda12]; python_version<'3'", {}, "12.9", None),
    ("an option within it", "jax[cuda12]", {"cuda": "12.6"}, "12.6", "12.6"),
)
def test_the_cuda_of_an_extra_of_jax(
    line: str, given: dict[str, Any], fitting: str, cuda: str | None
) -> None:
    found = declared("jax", line)
    request = with_locked_cuda(
        merged(found, **given),
        found,
        arch="x86_64",
        known=KNOWN,
        cudas=CUDAS,
        fits=lambda asked: asked.cuda == fitting,
    )
    assert request.cuda == cuda


def test_an_option_contradicts_the_cuda_of_an_extra() -> None:
    found = declared("jax[cuda12]")
    with pytest.raises(ProjectConflictError, match=r"--cuda 13\.0 contradicts r\.txt"):
        with_locked_cuda(
            merged(found, cuda="13.0"),
            found,
            arch="x86_64",
            known=KNOWN,
            cudas=CUDAS,
            fits=lambda _: True,
        )


def test_what_was_read_and_what_was_not_is_noted() -> None:
    found = merged(declared("jax", "torch==2.5.1+cpu", left_out=("ffmpeg (line 3)",)))
    said = " ".join(note.message for note in found.notes)
    assert "The plan is for PyTorch; JAX is installed beside it" in said
    assert "torch==2.5.1+cpu (r.txt, line 2) is not a build for CUDA" in said
    assert "Not taken from the project: ffmpeg (line 3)." in said
    bare = merged(declared("numpy"))
    assert "r.txt requires no framework; the image gets PyTorch" in bare.notes[0].message


PAIRS = ("torch==2.4.1", "torchvision==0.15.2; python_version<'3.10'")


@cases(
    "lines given companions pythons",
    ("the line that most Pythons have", [*PAIRS, "torchvision==0.19.1; python_version>='3.10'"], {},
     ["torchvision==0.19.1"], ("3.10", "3.11", "3.12", "3.13", "3.14")),
    ("the line of the Python that is asked for",
     [*PAIRS, "torchvision==0.19.1; python_version>='3.10'"], {"python": "3.9"},
     ["torchvision==0.15.2"], ()),
    ("the line beside the newer framework",
     ["torch==2.0.1; python_version<'3.10'", "torch==2.4.1; python_version>='3.10'",
      "torchaudio==2.0.2; python_version<'3.10'", "torchaudio==2.4.1; python_version>='3.10'"], {},
     ["torchaudio==2.4.1"], ("3.10", "3.11", "3.12", "3.13", "3.14")),
    ("a line of another architecture",
     [*PAIRS[:1], "torchvision==0.15.2; platform_machine=='aarch64'"], {}, [], ()),
)  # fmt: skip
def test_a_companion_s_line_counts_by_its_marker(
    lines: list[str], given: dict[str, Any], companions: list[str], pythons: tuple[str, ...]
) -> None:
    found = merged(declared(*lines), **given)
    assert [one.partition(";")[0] for one in found.companions] == companions
    assert found.pythons == pythons


def test_a_lock_s_companions_count_by_their_markers() -> None:
    rows = (
        "torchvision==0.15.2; python_version<'3.10'",
        "torchvision==0.19.1; python_version>='3.10'",
    )
    found = merged(declared("torch==2.4.1", constraints=rows))
    assert [one.partition(";")[0] for one in found.constraints] == ["torchvision==0.19.1"]
