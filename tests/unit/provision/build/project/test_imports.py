"""What a project's code imports, and what of it neither Python nor the project has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.project.imports import imports_of, unknown_imports
from tests.kit.cases import cases


@cases(
    "text sure maybe",
    ("at the top", "import a, b.c\nfrom d.e import f\n", ["a", "b", "d"], []),
    ("relative", "from . import a\nfrom .b import c\n", [], []),
    ("in try", "try:\n import a\nexcept ImportError:\n a = None\n", [], ["a"]),
    ("in if", "if x:\n import a\nelse:\n import b\n", [], ["a", "b"]),
    ("in a function", "def f():\n import a\n", [], ["a"]),
    ("in a class body, which runs", "class C:\n import a\n", ["a"], []),
    ("in with", "with suppress(ImportError):\n import a\n", [], ["a"]),
    ("behind an end", "raise SystemExit\nimport a\n", [], ["a"]),
    ("of Python 2: not read", "print 'two'\nimport a\n", [], []),
    ("no source", "\0", [], []),
    ("nested too deeply", "(" * 500 + ")" * 500, [], []),
)
def test_what_runs_when_a_module_is_loaded(text: str, sure: list[str], maybe: list[str]) -> None:
    found = imports_of("app.py", text.encode()).imports
    assert [one.name for one in found if one.surely] == sure
    assert [one.name for one in found if not one.surely] == maybe


@pytest.mark.parametrize(
    "path",
    ["tests/a.py", "pkg/test_a.py", "pkg/a_test.py", "conftest.py", "setup.py", "docs/conf.py",
     "examples/x/a.py", "scripts/a.py", ".ci/a.py", "benchmarks/a.py", "demo.py", "gradio_app.py",
     "web_demo_8bit.py", "predict.py"],
)  # fmt: skip
def test_what_a_program_does_not_need_is_never_sure(path: str) -> None:
    assert [one.surely for one in imports_of(path, b"import a\n").imports] == [False]


@cases(
    "text changes",
    ("append", "import sys\nsys.path.append('x')\n", True),
    ("insert", "import sys\nsys.path.insert(0, 'x')\n", True),
    ("a slice", "import sys\nsys.path[:0] = ['x']\n", True),
    ("added", "import sys\nsys.path += ['x']\n", True),
    ("a site directory", "import site\nsite.addsitedir('x')\n", True),
    ("another path", "import os\nos.path.join('x')\n", False),
    ("another list", "names.append('x')\n", False),
)
def test_where_python_looks_may_be_changed(text: str, *, changes: bool) -> None:
    assert imports_of("a.py", text.encode()).changes_path is changes


PACKAGE = ["app.py", "modules/__init__.py", "modules/whisper/__init__.py", "modules/whisper/own.py"]


@cases(
    "path text more roots unknown",
    ("Python's own", "app.py", "import os, tomllib, distutils", [], [], []),
    ("a package of the project", "app.py", "import modules", [], [], []),
    ("another's", "app.py", "import numpy", [], [], ["numpy"]),
    ("a part of a package is no module of this name", "modules/whisper/own.py", "import whisper",
     [], [], ["whisper"]),
    ("a module beside a script", "modules/whisper/own.py", "import helper",
     ["modules/whisper/helper.py"], [], []),
    ("a folder that may be on the path", "app.py", "import helper", ["lib/helper.py"], [], []),
    ("a folder that is a package", "app.py", "import helper", ["lib/__init__.py", "lib/helper.py"],
     [], ["helper"]),
    ("a root", "app.py", "import helper", ["lib/__init__.py", "lib/helper.py"], ["lib"], []),
    ("a path that the code changes", "app.py",
     "import sys\nsys.path.append('modules')\nimport whisper", [], [], []),
    ("what the project compiles", "app.py", "import fast_cuda", ["csrc/fast_cuda.cpp"], [], []),
    ("a namespace", "app.py", "import space", ["space/deep/x.py"], [], []),
    ("the program itself", "app.py", "import __main__", [], [], []),
    ("what protoc makes", "app.py", "import svc_pb2", ["svc.proto"], [], []),
    ("an extension module that setup.py names", "setup.py", "import e\nExtension(name='pkg.e')", [],
     [], []),
)  # fmt: skip
def test_what_neither_python_nor_the_project_has(
    path: str, text: str, more: list[str], roots: list[str], unknown: list[str]
) -> None:
    files = {path: imports_of(path, text.encode())}
    found = unknown_imports(files, [*PACKAGE, *more], {"", *roots})
    assert [one.name for one in found] == unknown


PROGRAM = {
    "app.py": "from pkg.core import run", "tests/test_app.py": "import pkg.optional",
    "pkg/__init__.py": "",
    "pkg/core.py": "from . import util\nfrom .deep import a\nif a:\n import pkg.later",
    "pkg/util.py": "import x_util", "pkg/deep/__init__.py": "from ..up import b",
    "pkg/deep/a.py": "import x_a", "pkg/up.py": "import x_up", "pkg/later.py": "import x_later",
    "pkg/optional.py": "import x_optional", "lib/cmd/main.py": "import x_cmd",
    "demo/app.py": "import x_demo",
}  # fmt: skip


@cases(
    "roots calls sure",
    ("from the script at the top", [], [], {"x_util", "x_a", "x_up"}),
    ("from a command", [], ["lib/cmd/main"], {"x_util", "x_a", "x_up", "x_cmd"}),
    ("below a root", ["lib"], ["cmd/main"], {"x_util", "x_a", "x_up", "x_cmd"}),
)
def test_only_what_is_loaded_when_the_program_starts_is_sure(
    roots: list[str], calls: list[str], sure: set[str]
) -> None:
    files = {path: imports_of(path, text.encode()) for path, text in PROGRAM.items()}
    found = unknown_imports(files, list(PROGRAM), {"", *roots}, calls)
    assert {one.name for one in found if one.surely} == sure
    assert {one.name for one in found} == {
        "x_util", "x_a", "x_up", "x_later", "x_optional", "x_cmd", "x_demo"
    }  # fmt: skip


def test_a_path_outside_the_project_may_have_any_module() -> None:
    text = b"import sys\nsys.path.append('/opt/lib')\nimport vendor"
    found = unknown_imports({"app.py": imports_of("app.py", text)}, ["app.py"], {""})
    assert [(one.name, one.surely) for one in found] == [("vendor", False)]


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    for one in imports_of("a.py", b"import q\n" + data).imports:
        assert one.line >= 1
