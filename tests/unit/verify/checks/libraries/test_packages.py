"""Packages that were asked for: which module is theirs, and what importing it shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from verify.checks.libraries import native
from verify.checks.libraries.packages import (
    ImportedPackage,
    check_packages,
    judge_packages,
    main_module,
)
from verify.commands.main import choose
from verify.model.check import Check, Context, Outcome, Status
from verify.model.expectations import Expectations, ExpectationsError, parse

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP


@pytest.mark.parametrize(
    ("name", "files", "module"),
    [
        pytest.param("six", ["six.py", "six-1.0.dist-info/METADATA"], "six", id="one file"),
        pytest.param("flash-attn",
                     ["flash_attn/__init__.py",
                      "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so"], "flash_attn",
                     id="its own name, with another dash"),
        pytest.param("PyYAML", ["yaml/__init__.py", "_yaml/__init__.py"], "yaml",
                     id="another name"),
        pytest.param("black",
                     ["black/__init__.py", "blackd/__init__.py", "blackd/a.py", "blackd/b.py"],
                     "black", id="its own name goes before the largest"),
        pytest.param("protobuf",
                     ["google/protobuf/__init__.py", "google/protobuf/api.py",
                      "google/_upb/_message.abi3.so"], "google.protobuf",
                     id="a package in a namespace"),
        pytest.param("opencv-python",
                     ["cv2/__init__.py", "cv2/cv2.abi3.so", "opencv_python.libs/libavcodec.so.59"],
                     "cv2", id="libraries beside it"),
        pytest.param("uv", ["../../../bin/uv", "uv-1.0.dist-info/RECORD"], None, id="a program"),
        pytest.param("jupyter", ["jupyter-1.0.dist-info/METADATA"], None, id="only requirements"),
        pytest.param("data", ["share/table.csv"], None, id="only data"),
    ],
)  # fmt: skip
def test_the_module_that_a_package_is_used_by(
    name: str, files: list[str], module: str | None
) -> None:
    assert main_module(name, files) == module


GOOD = ImportedPackage("timm", "1.0.20", "timm")
DISABLED = "Disabling PyTorch because PyTorch >= 2.6 is required but found 2.0.1+cu117\n"
XFORMERS = (
    "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
    "    PyTorch 2.10.0+cu128 with CUDA 1208 (you have 2.14.1+cu130)\n"
)
NO_BINARY = (
    "Could not find the bitsandbytes CUDA binary at PosixPath('/x/libbitsandbytes_cuda124.so')\n"
)
MOCKED = (
    "bitsandbytes library load error: Configured CUDA binary not found at /x/lib.so\nTraceback\n"
)
SYMBOL = "ImportError: /site/xformers/_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"


@pytest.mark.parametrize(
    ("found", "gpus", "status", "words"),
    [
        pytest.param([GOOD], 0, PASS, "imported: timm 1.0.20", id="it imports"),
        pytest.param([], 0, SKIP, "no package", id="nothing was asked for"),
        pytest.param([GOOD, ImportedPackage("peft")], 0, FAIL, "peft is not installed",
                     id="it is not there"),
        pytest.param([ImportedPackage("xformers", "0.0.20", "xformers", SYMBOL)], 0, FAIL,
                     "SetDevice", id="a symbol is missing"),
        pytest.param([ImportedPackage("transformers", "5.23.0", "transformers", said=DISABLED)], 0,
                     FAIL, "PyTorch >= 2.6 is required but found 2.0.1",
                     id="it goes on without the framework"),
        pytest.param([ImportedPackage("xformers", "0.0.35", "xformers", said=XFORMERS)], 0, FAIL,
                     "xFormers can't load C++/CUDA extensions",
                     id="it goes on without its own extensions"),
        pytest.param([ImportedPackage("bitsandbytes", "0.41.0", "bitsandbytes", said=NO_BINARY)], 1,
                     FAIL,
                     "goes on without a part of it: Could not find the bitsandbytes CUDA binary",
                     id="it has no library for this CUDA and takes that for the CPU"),
        pytest.param([ImportedPackage("bitsandbytes", "0.49.2", "bitsandbytes", said=MOCKED)], 1,
                     FAIL, "Configured CUDA binary not found",
                     id="it has no library for this CUDA and fails when it is used"),
        pytest.param([ImportedPackage("uv", "0.9.0")], 0, PASS, "uv 0.9.0",
                     id="nothing to import in it"),
        pytest.param(
            [GOOD, ImportedPackage("x", "1", "x", "ImportError: libcuda.so.1: cannot open")], 0,
            PASS, "not judged without a GPU: x", id="it needs the driver, and there is none"),
        pytest.param([ImportedPackage("x", "1", "x", "ImportError: libcuda.so.1: cannot open")], 0,
                     SKIP, "not judged without a GPU: x", id="nothing else was asked for"),
        pytest.param([ImportedPackage("x", "1", "x", "RuntimeError: No CUDA GPUs are available")],
                     1, FAIL, "x 1 cannot be imported", id="the same where there is a GPU"),
        pytest.param([ImportedPackage("x", "1", "x",
                                      "x/_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa")], 0,
                     FAIL, "compiled for another release of the framework",
                     id="a symbol of the framework is missing"),
        pytest.param([ImportedPackage("x", "1", "x", "undefined symbol: __nvJitLinkAddData_12_1")],
                     0, FAIL, "is not the version that was linked against",
                     id="a symbol of CUDA is missing"),
    ],
)  # fmt: skip
def test_what_importing_shows(
    found: list[ImportedPackage], gpus: int, status: Status, words: str
) -> None:
    outcome = judge_packages(found, gpus=gpus)
    assert outcome.status is status
    assert words in f"{outcome.message} {outcome.cause}"
    assert status is not FAIL or (outcome.cause and outcome.fix)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        pytest.param("", PASS, "imported: real 1.0", id="a package that imports"),
        pytest.param("import gone_for_good", FAIL, "gone_for_good", id="one that does not"),
        pytest.param("import os; os.abort()", FAIL, "SIGABRT", id="one that crashes"),
    ],
)
def test_a_real_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: Status, words: str
) -> None:
    (tmp_path / "real_one").mkdir()
    (tmp_path / "real_one" / "__init__.py").write_text(text)
    info = tmp_path / "real-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: real\nVersion: 1.0\n")
    (info / "RECORD").write_text("real_one/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(native, "read_compiled", lambda _: [])  # of this Python's own packages
    assert "real_one" not in sys.modules
    outcome = check_packages(Context(expect=Expectations(packages=("real",))))
    assert outcome.status is status, outcome
    assert words in outcome.message


def nothing(context: Context) -> Outcome:
    del context
    return Outcome(PASS, "")


@pytest.mark.parametrize(
    ("packages", "only", "ids"),
    [
        pytest.param((), None, ["a"], id="no package was asked for"),
        pytest.param(("timm",), None, ["a", "b"], id="one was"),
        pytest.param((), "b", ["b"], id="the check was named"),
    ],
)
def test_the_check_belongs_to_a_level_if_there_is_something_to_import(
    packages: tuple[str, ...], only: str | None, ids: list[str]
) -> None:
    checks = [Check("a", "", nothing), Check("b", "", nothing, on_request=True)]
    chosen, _ = choose(checks, "quick", only, None, packages)
    assert [check.id for check in chosen] == ids


def test_expectations_name_packages() -> None:
    assert parse('{"schema": 1, "packages": ["timm", "peft"]}').packages == ("timm", "peft")
    assert parse('{"schema": 1}').packages == ()
    with pytest.raises(ExpectationsError, match="packages: expected a list of texts"):
        parse('{"schema": 1, "packages": "timm"}')
