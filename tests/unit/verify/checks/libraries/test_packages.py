"""Packages that were asked for: which module is theirs, and what importing it shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.cases import cases
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


@cases(
    "name files module",
    ("one file", "six", ["six.py", "six-1.0.dist-info/METADATA"], "six"),
    ("its own name, with another dash", "flash-attn",
     ["flash_attn/__init__.py", "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so"], "flash_attn"),
    ("another name", "PyYAML", ["yaml/__init__.py", "_yaml/__init__.py"], "yaml"),
    ("its own name goes before the largest", "black",
     ["black/__init__.py", "blackd/__init__.py", "blackd/a.py", "blackd/b.py"], "black"),
    ("a package in a namespace", "protobuf",
     ["google/protobuf/__init__.py", "google/protobuf/api.py", "google/_upb/_message.abi3.so"],
     "google.protobuf"),
    ("libraries beside it", "opencv-python",
     ["cv2/__init__.py", "cv2/cv2.abi3.so", "opencv_python.libs/libavcodec.so.59"], "cv2"),
    ("a program", "uv", ["../../../bin/uv", "uv-1.0.dist-info/RECORD"], None),
    ("only requirements", "jupyter", ["jupyter-1.0.dist-info/METADATA"], None),
    ("only data", "data", ["share/table.csv"], None),
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


@cases(
    "found gpus status words",
    ("it imports", [GOOD], 0, PASS, "imported: timm 1.0.20"),
    ("nothing was asked for", [], 0, SKIP, "no package"),
    ("it is not there", [GOOD, ImportedPackage("peft")], 0, FAIL, "peft is not installed"),
    ("a symbol is missing", [ImportedPackage("xformers", "0.0.20", "xformers", SYMBOL)], 0, FAIL,
     "SetDevice"),
    ("it goes on without the framework",
     [ImportedPackage("transformers", "5.23.0", "transformers", said=DISABLED)], 0, FAIL,
     "PyTorch >= 2.6 is required but found 2.0.1"),
    ("it goes on without its own extensions",
     [ImportedPackage("xformers", "0.0.35", "xformers", said=XFORMERS)], 0, FAIL,
     "xFormers can't load C++/CUDA extensions"),
    ("it has no library for this CUDA and takes that for the CPU",
     [ImportedPackage("bitsandbytes", "0.41.0", "bitsandbytes", said=NO_BINARY)], 1, FAIL,
     "goes on without a part of it: Could not find the bitsandbytes CUDA binary"),
    ("it has no library for this CUDA and fails when it is used",
     [ImportedPackage("bitsandbytes", "0.49.2", "bitsandbytes", said=MOCKED)], 1, FAIL,
     "Configured CUDA binary not found"),
    ("nothing to import in it", [ImportedPackage("uv", "0.9.0")], 0, PASS, "uv 0.9.0"),
    ("it needs the driver, and there is none",
     [GOOD, ImportedPackage("x", "1", "x", "ImportError: libcuda.so.1: cannot open")], 0, PASS,
     "not judged without a GPU: x"),
    ("nothing else was asked for",
     [ImportedPackage("x", "1", "x", "ImportError: libcuda.so.1: cannot open")], 0, SKIP,
     "not judged without a GPU: x"),
    ("the same where there is a GPU",
     [ImportedPackage("x", "1", "x", "RuntimeError: No CUDA GPUs are available")], 1, FAIL,
     "x 1 cannot be imported"),
    ("a symbol of the framework is missing",
     [ImportedPackage("x", "1", "x", "x/_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa")], 0,
     FAIL, "compiled for another release of the framework"),
    ("a symbol of CUDA is missing",
     [ImportedPackage("x", "1", "x", "undefined symbol: __nvJitLinkAddData_12_1")], 0, FAIL,
     "is not the version that was linked against"),
)  # fmt: skip
def test_what_importing_shows(
    found: list[ImportedPackage], gpus: int, status: Status, words: str
) -> None:
    outcome = judge_packages(found, gpus=gpus)
    assert outcome.status is status
    assert words in f"{outcome.message} {outcome.cause}"
    assert status is not FAIL or (outcome.cause and outcome.fix)


@cases(
    "text status words",
    ("a package that imports", "", PASS, "imported: real 1.0"),
    ("one that does not", "import gone_for_good", FAIL, "gone_for_good"),
    ("one that crashes", "import os; os.abort()", FAIL, "SIGABRT"),
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


@cases(
    "packages only ids",
    ("no package was asked for", (), None, ["a"]),
    ("one was", ("timm",), None, ["a", "b"]),
    ("the check was named", (), "b", ["b"]),
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
