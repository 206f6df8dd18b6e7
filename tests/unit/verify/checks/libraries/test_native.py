"""The compiled parts of packages that were not asked for, and what libraries open by name."""

from __future__ import annotations

import json
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from verify.checks.libraries import native
from verify.checks.libraries.native import (
    CompiledPackage,
    absent_libraries,
    extension_modules,
    read_compiled,
    what_is_wrong,
)
from verify.checks.libraries.packages import ImportedPackage, check_packages, judge_packages
from verify.model.check import Context, Status
from verify.model.expectations import Expectations

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def test_the_modules_that_this_python_loads() -> None:
    files = [
        f"speech/_core{SUFFIX}",
        "speech/fast.abi3.so",
        "_plain.so",
        f"typed/__init__{SUFFIX}",
        "speech/_core.cpython-27-x86_64-linux-gnu.so",
        "speech/libmath.so",
        "speech/tests/_fixture.abi3.so",
        "speech.libs/libz-0123abcd.so.1",
        "speech/lib-2/odd.so",
        "speech/__init__.py",
    ]
    assert extension_modules(files) == ("speech._core", "speech.fast", "_plain", "typed")


@cases(
    "error words",
    ("a library is missing",
     "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
     "the image lacks libGL.so.1"),
    ("a symbol is missing", "ImportError: /x/_core.so: undefined symbol: png_set_longjmp_fn",
     "the image lacks png_set_longjmp_fn"),
    ("a threading layer that is optional",
     "ImportError: libtbb.so.12: cannot open shared object file: No such file", ""),
    ("one build for each FFmpeg",
     "ImportError: libavcodec.so.58: cannot open shared object file: No such file", ""),
    ("the driver, which is not here",
     "ImportError: libcuda.so.1: cannot open shared object file: No such file", ""),
    ("another CUDA, of which the lock warns",
     "ImportError: libcudart.so.13: cannot open shared object file: No such file", ""),
    ("another release of the framework",
     "ImportError: x.so: undefined symbol: _ZN3c104cuda9SetDeviceEa", ""),
    ("it looks for a GPU", "RuntimeError: No CUDA GPUs are available", ""),
    ("an optional package", "ModuleNotFoundError: No module named 'scipy'", ""),
    ("a module that exits", "SystemExit: 1", ""),
)  # fmt: skip
def test_only_what_the_image_lacks_is_a_failure(error: str, words: str) -> None:
    wrong = what_is_wrong(CompiledPackage("speech", "1.0", 3, (("speech._core", error),)))
    assert (wrong is not None) == bool(words)
    if wrong is not None:
        assert words in " ".join(wrong)


def library(path: Path, *names: str, calls: str = "dlopen", code: bool = False) -> str:
    """A library that can open others, with these names among its constants, or in device code."""
    texts = b"".join(b"\0" + name.encode() + b"\0" for name in names)
    before = native._DEVICE_CODE if code else b""
    path.write_bytes(elf(wants=[calls], extra=bytes(native._LEAST_BYTES) + before + texts))
    return str(path)


@cases(
    "names there absent",
    ("it is nowhere", ["libcublas.so.97"], [], ["libcublas.so.97"]),
    ("another package has it", ["libcublas.so.97"], ["libcublas.so.97"], []),
    ("one of several", ["libcudart.so.96", "libcudart.so.97"], ["libcudart.so.96"], []),
    ("none of several", ["libcudart.so.96", "libcudart.so.97"], [],
     ["libcudart.so.96 or libcudart.so.97"]),
    ("the driver's", ["libcuda.so.1", "libnvidia-ml.so.1"], [], []),
)  # fmt: skip
def test_what_is_opened_by_name_must_be_in_the_image(
    tmp_path: Path, names: list[str], there: list[str], absent: list[str]
) -> None:
    assert absent_libraries([library(tmp_path / "a.so", *names)], there) == absent


def test_names_that_cannot_be_opened_do_not_count(tmp_path: Path) -> None:
    one = library(tmp_path / "a.so", "libcublas.so.97", calls="open")
    other = library(tmp_path / "b.so", "libcublas.so.97", code=True)
    (tmp_path / "c.so").write_bytes(b"")
    assert absent_libraries([one, other, str(tmp_path / "c.so"), str(tmp_path / "no")], ()) == []


def installed(site: Path, name: str, files: dict[str, str]) -> None:
    """A package with these files; a library that has no text is one that opens libcublas.so.97."""
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".so") and not text:
            library(site / path, "libcublas.so.97")
        else:
            (site / path).write_text(text)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path; packages of other folders are not looked at."""
    monkeypatch.syspath_prepend(str(tmp_path))
    real = metadata.distributions
    monkeypatch.setattr(metadata, "distributions", lambda: real(path=[str(tmp_path)]))
    return tmp_path


def test_a_library_of_what_a_package_needs_is_found_out(site: Path) -> None:
    """As CTranslate2 for faster-whisper, in an image of CUDA 13."""
    installed(site, "whisper_fast", {"whisper_fast/__init__.py": ""})
    installed(site, "ctrans", {"ctrans/_ext.abi3.so": "x", "ctrans.libs/libctrans-0a.so": ""})
    outcome = check_packages(Context(expect=Expectations(packages=("whisper_fast",))))
    assert outcome.status is Status.FAIL
    assert outcome.message == "ctrans 1.0 opens libcublas.so.97, which cannot be loaded"


def test_a_module_that_is_no_library_is_listed_and_not_judged(site: Path) -> None:
    installed(site, "odd", {"odd/__init__.py": "", "odd/_c.abi3.so": "not a library"})
    ((name, loaded, failed),) = [(o.name, o.loaded, o.failed) for o in read_compiled(())]
    assert (name, loaded, failed[0][0]) == ("odd", 0, "odd._c")
    found = [ImportedPackage("x", "1", "x")]
    outcome = judge_packages(found, gpus=0, others=read_compiled(()))
    assert outcome.status is Status.PASS
    assert "odd._c" in json.dumps(outcome.measured)


@cases(
    "text row status words",
    ("it gives what is expected", "def ask(): return ['CPU', 'CUDA']", {"gives": "CUDA"},
     Status.PASS, "imported: real 1.0"),
    ("it gives something else", "def ask(): return ['CPU']", {"gives": "CUDA"}, Status.FAIL,
     "real:ask() gives ['CPU'], without CUDA"),
    ("it fails", "def ask(): raise OSError('libcublas.so.12 is not found')", {}, Status.FAIL,
     "libcublas.so.12 is not found"),
    ("it looks for a GPU", "def ask(): raise OSError('libcuda.so.1 is not found')", {}, Status.SKIP,
     "not judged without a GPU"),
    ("this release has no such function", "", {"gives": "CUDA"}, Status.PASS, "imported: real 1.0"),
    ("arguments", "def ask(one, two): assert (one, two) == (4, [5])", {"arguments": [4, [5]]},
     Status.PASS, "imported: real 1.0"),
)  # fmt: skip
def test_one_function_of_a_package_is_called(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    row: dict[str, Any],
    status: Status,
    words: str,
) -> None:
    installed(site, "real", {"real.py": text})
    table = {**native.table(), "calls": [{"package": "real", "function": "real:ask", **row}]}
    monkeypatch.setattr(native, "table", lambda: table)
    outcome = check_packages(Context(expect=Expectations(packages=("real",))))
    assert outcome.status is status, outcome
    assert words in f"{outcome.message} {outcome.cause}"


def test_every_row_of_the_table_has_a_function_and_a_source() -> None:
    for row in native.table()["calls"]:
        assert set(row) <= {"package", "function", "arguments", "gives", "source"}
        module, _, name = row["function"].partition(":")
        assert module.replace(".", "").replace("_", "").isalnum()
        assert name.isidentifier()
        assert row["source"].startswith("https://")
